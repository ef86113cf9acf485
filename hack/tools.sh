#!/usr/bin/env bash
# Copyright The sandflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Installs what building, testing and the demo need, at the versions of
# hack/versions.env, into build/bin and build/cni. Doing it again costs nothing.
#
#   hack/tools.sh [GROUP...]      (no argument: run test lint)
#
#   run       Debian packages, runc, CNI plugins, crictl, ctr
#   test      critest, ginkgo, an upstream containerd with its shim
#   lint      golangci-lint, shellcheck
#   package   nfpm
#   machine   systemd, D-Bus and kubeadm, for the machine that the package is tried in
#   node      kubelet, and the image program agnhost
#   cluster   etcd, Kubernetes' control plane, kube-proxy, kubectl
#   e2e       Kubernetes' node tests and end-to-end tests, and a program of their images
#   generate  protoc and its Go plugins
set -euo pipefail

cd "$(dirname "$0")/.."
root=$PWD
# shellcheck source=hack/versions.env
. hack/versions.env
# shellcheck source=hack/kubernetes.sh
. hack/kubernetes.sh

bin=$root/build/bin
cni=$root/build/cni
stamps=$root/build/stamps
mkdir -p "$bin" "$cni" "$stamps"

say() { printf '%s\n' "tools: $*" >&2; }

die() {
	say "$*"
	exit 1
}

# debian PACKAGE... installs those that are missing.
debian() {
	local missing=() p
	for p in "$@"; do
		if [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" != installed ]; then
			missing+=("$p")
		fi
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	[ "$(id -u)" = 0 ] || die "these Debian packages are missing, and only root can install them: ${missing[*]}"
	say "installing ${missing[*]}"
	apt-get update -qq >/dev/null
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# once NAME VERSION COMMAND... runs the command unless it has succeeded for that version.
once() {
	local name=$1 version=$2 stamp
	stamp=$stamps/$name@$version
	shift 2
	[ ! -e "$stamp" ] || return 0
	say "building $name $version"
	"$@"
	rm -f "$stamps/$name@"*
	touch "$stamp"
}

# modgo ARGUMENT... runs go for static programs in modules that may still be completed.
modgo() { GOFLAGS=-mod=mod CGO_ENABLED=0 GOWORK=off go "$@"; }

# goinstall DIR PACKAGE@VERSION... builds static programs into DIR. Without -trimpath, so
# that packages which our own programs use too are compiled only once.
goinstall() {
	local dir=$1
	shift
	GOBIN=$dir modgo install -ldflags '-s -w' "$@"
}

runc() {
	# Without the tag seccomp runc refuses every pod that has a seccomp profile.
	GOBIN=$bin GOFLAGS=-mod=mod CGO_ENABLED=1 GOWORK=off go install -tags seccomp -ldflags '-s -w' \
		"github.com/opencontainers/runc@$RUNC_VERSION"
}

plugins() {
	local m=github.com/containernetworking/plugins/plugins v=$CNI_PLUGINS_VERSION
	goinstall "$cni" \
		"$m/main/bridge@$v" "$m/main/loopback@$v" "$m/main/ptp@$v" "$m/main/macvlan@$v" \
		"$m/main/ipvlan@$v" "$m/main/host-device@$v" "$m/main/dummy@$v" \
		"$m/ipam/host-local@$v" "$m/ipam/static@$v" \
		"$m/meta/portmap@$v" "$m/meta/bandwidth@$v" "$m/meta/firewall@$v" "$m/meta/tuning@$v"
}

crictl() { goinstall "$bin" "sigs.k8s.io/cri-tools/cmd/crictl@$CRI_TOOLS_VERSION"; }

# critest is a test binary, which go install does not build: it needs a module around it.
critest() {
	local dir=$root/build/src/critest
	rm -rf "$dir"
	mkdir -p "$dir"
	(
		cd "$dir"
		modgo mod init critest.test 2>/dev/null
		modgo mod edit -require="sigs.k8s.io/cri-tools@$CRI_TOOLS_VERSION"
		modgo test -c -ldflags '-s -w' -o "$bin/critest" sigs.k8s.io/cri-tools/cmd/critest
	)
}

ginkgo() { goinstall "$bin" "github.com/onsi/ginkgo/v2/ginkgo@$GINKGO_VERSION"; }

upstream() {
	local m=github.com/containerd/containerd/v2/cmd v=$CONTAINERD_VERSION
	goinstall "$bin" "$m/containerd@$v" "$m/containerd-shim-runc-v2@$v"
}

ctr() { goinstall "$bin" "github.com/containerd/containerd/v2/cmd/ctr@$CONTAINERD_VERSION"; }

golangci() { goinstall "$bin" "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$GOLANGCI_LINT_VERSION"; }

run_tools() {
	debian gcc libc6-dev libseccomp-dev pkg-config iproute2 iptables nftables util-linux ca-certificates
	once runc "$RUNC_VERSION" runc
	once cni-plugins "$CNI_PLUGINS_VERSION" plugins
	once crictl "$CRI_TOOLS_VERSION" crictl
	once ctr "$CONTAINERD_VERSION" ctr
}

test_tools() {
	debian crun
	once critest "$CRI_TOOLS_VERSION" critest
	once containerd "$CONTAINERD_VERSION" upstream
	once ginkgo "$GINKGO_VERSION" ginkgo
}

lint_tools() {
	debian shellcheck
	once golangci-lint "$GOLANGCI_LINT_VERSION" golangci
}

nfpm() { goinstall "$bin" "github.com/goreleaser/nfpm/v2/cmd/nfpm@$NFPM_VERSION"; }

package_tools() { once nfpm "$NFPM_VERSION" nfpm; }

machine_tools() {
	debian systemd dbus
	once kubeadm "$KUBERNETES_VERSION" kubernetes build cmd/kubeadm
}

node_tools() {
	once kubelet "$KUBERNETES_VERSION" kubernetes build cmd/kubelet
	once agnhost "$KUBERNETES_VERSION" kubernetes build test/images/agnhost
}

cluster_tools() {
	local program
	once etcd "$ETCD_VERSION" etcd
	for program in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubectl; do
		once "$program" "$KUBERNETES_VERSION" kubernetes build "cmd/$program"
	done
}

e2e_tools() {
	once e2e_node.test "$KUBERNETES_VERSION" kubernetes test test/e2e_node
	once e2e.test "$KUBERNETES_VERSION" kubernetes test test/e2e
	once sample-device-plugin "$KUBERNETES_VERSION" kubernetes build test/images/sample-device-plugin
}

generate_tools() {
	debian protobuf-compiler
	once protoc-gen-go "$PROTOC_GEN_GO_VERSION" \
		goinstall "$bin" "google.golang.org/protobuf/cmd/protoc-gen-go@$PROTOC_GEN_GO_VERSION"
	once protoc-gen-go-grpc "$PROTOC_GEN_GO_GRPC_VERSION" \
		goinstall "$bin" "google.golang.org/grpc/cmd/protoc-gen-go-grpc@$PROTOC_GEN_GO_GRPC_VERSION"
	once protoc-gen-go-ttrpc "$PROTOC_GEN_GO_TTRPC_VERSION" \
		goinstall "$bin" "github.com/containerd/ttrpc/cmd/protoc-gen-go-ttrpc@$PROTOC_GEN_GO_TTRPC_VERSION"
}

command -v go >/dev/null || die "Go is missing: install the version that go.mod names, from https://go.dev/dl/"
[ $# -gt 0 ] || set -- run test lint
for group in "$@"; do
	case $group in
	run | test | lint | package | machine | node | cluster | e2e | generate) "${group}_tools" ;;
	*) die "unknown group $group: know run, test, lint, package, machine, node, cluster, e2e, generate" ;;
	esac
done
