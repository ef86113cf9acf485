# Copyright The sandflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds programs of Kubernetes and etcd from the Go module proxy. Sourced by tools.sh,
# whose root, bin and modgo it uses.
#
# k8s.io/kubernetes cannot be installed by "go install": it replaces its staging modules by
# folders that the published module lacks. So a module of our own takes its requirements and
# sums from Kubernetes' go.mod, with the published versions of the staging modules.
# shellcheck shell=bash disable=SC2154

# kubernetes_module DIR makes that module.
kubernetes_module() {
	local dir=$1 v=$KUBERNETES_VERSION source
	rm -rf "$dir"
	mkdir -p "$dir"
	source=$(go env GOMODCACHE)/k8s.io/kubernetes@$v
	(cd "$dir" && modgo mod download "k8s.io/kubernetes@$v")
	sed -e 's|^module .*|module kubernetes.test|' -e '/^replace (/,/^)/d' \
		-e "s|\(k8s.io/[a-z-]*\) v0.0.0$|\1 v0.${v#v1.}|" "$source/go.mod" >"$dir/go.mod"
	install -m 644 "$source/go.sum" "$dir/go.sum"
	(cd "$dir" && modgo mod edit -require="k8s.io/kubernetes@$v")
	touch "$dir/$v"
}

# kubernetes build|test PATH builds a program, or the tests of a package, into build/bin.
kubernetes() {
	local dir=$root/build/src/kubernetes v=$KUBERNETES_VERSION how=$1 path=$2 out flags
	[ -e "$dir/$v" ] || kubernetes_module "$dir"
	out=$bin/$(basename "$path")
	[ "$how" = build ] || out=$out.test
	flags="-s -w -X k8s.io/component-base/version.gitVersion=$v -X k8s.io/client-go/pkg/version.gitVersion=$v"
	[ "$how" = build ] || how="test -c"
	# shellcheck disable=SC2086 # "test -c" is two words
	(cd "$dir" && modgo $how -ldflags "$flags" -o "$out" "k8s.io/kubernetes/$path")
}

etcd() {
	local dir=$root/build/src/etcd
	rm -rf "$dir"
	mkdir -p "$dir"
	(
		cd "$dir" || exit
		modgo mod init etcd.test 2>/dev/null
		modgo get "go.etcd.io/etcd/server/v3@$ETCD_VERSION"
		modgo build -ldflags '-s -w' -o "$bin/etcd" go.etcd.io/etcd/server/v3
	)
}
