#!/usr/bin/env bash
# Copyright The sandflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Turns a kind node, while its image is built, into one that runs its pods with sandflow.
#
#   setup.sh attached|embedded
set -euo pipefail

mode=$1
containerd=/etc/containerd/config.toml

case $mode in
attached)
	# containerd goes on with images alone: two servers of CRI would both look after pods, and
	# of NRI's socket there is one. (kind reads the configuration of the plugins that are
	# left: "kind load" must know the snapshotter.)
	sed -i '1i disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri"]' "$containerd"
	;;
embedded)
	systemctl disable containerd.service
	# The images that come with the node.
	mkdir -p /var/lib/sandflow
	chmod 711 /var/lib/sandflow
	if [ -d /var/lib/containerd ]; then
		mv /var/lib/containerd /var/lib/sandflow/containerd
	fi
	sed -i 's|/system.slice/containerd.service|/sandflow.slice/sandflowd.service|' /etc/default/kubelet
	;;
*)
	echo "sandflow: unknown mode $mode: know attached, embedded" >&2
	exit 1
	;;
esac

mv "/etc/sandflow/$mode.toml" /etc/sandflow/config.toml
rm -f /etc/sandflow/attached.toml /etc/sandflow/embedded.toml
echo 'runtime-endpoint: unix:///run/sandflow/sandflow.sock' >/etc/crictl.yaml
systemctl enable sandflowd.service
