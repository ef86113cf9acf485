#!/usr/bin/env bash
# Copyright The sandflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Shows sandflow from a user's side: a pod run with crictl and looked at from all sides,
# a create that is made to fail and leaves nothing, and an empty node at the end. Runs in
# a laboratory (private namespaces): "make demo". Ends with 1 if anything is not so.
set -euo pipefail

[ -n "${SANDFLOW_LAB:-}" ] || {
	echo 'demo: run "make demo"' >&2
	exit 1
}

lab=$SANDFLOW_LAB
build=$SANDFLOW_BUILD
state=/run/sandflow # the built-in default, on the laboratory's own tmpfs
cgroup=$SANDFLOW_LAB_CGROUP
control=$lab/failcni
pid=

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

# show prints a command as one would type it, then runs it.
show() {
	printf '$%s\n' "$(printf ' %q' "$@")"
	"$@"
}

# shown passes its input on and shows it. (tee /dev/stderr would cut off a file that
# standard error goes to.)
shown() {
	local text
	text=$(cat)
	printf '%s\n' "$text" >&2
	printf '%s\n' "$text"
}

# keep is show that leaves the last line of the output in "kept".
kept=
keep() {
	printf '$ %s\n' "$*"
	kept=$("$@")
	printf '%s\n' "$kept"
	kept=${kept##*$'\n'}
}

fail() {
	printf '\ndemo: NOT SO: %s\n' "$*" >&2
	exit 1
}

# want fails unless the text has the words.
want() {
	local text=$1
	shift
	for word in "$@"; do
		[[ $text == *"$word"* ]] || fail "expected \"$word\" in: $text"
	done
}

stop_daemon() {
	[ -n "$pid" ] || return 0
	kill "$pid" 2>/dev/null || true
	wait "$pid" || true
	pid=
}

finish() {
	local code=$?
	stop_daemon
	if [ "$code" != 0 ]; then
		printf '\ndemo: the end of the daemon'\''s log:\n' >&2
		tail -n 30 "$lab/sandflowd.log" >&2 || true
	fi
	exit "$code"
}
trap finish EXIT

# count names what the demo's pods might leave; node what the daemon might.
node() { lab "$1" "$2" -leases "$lab/leases" -cgroups "$cgroup"; }
count() { lab "$1" "$2" -leases "$lab/leases" -cgroups "$cgroup" -state "$state" -root "$lab/root" -containerd "$state/containerd.sock"; }

say 'A network: bridge, addresses, and a plugin that fails when it is told to'
mkdir -p "$lab/net.d"
cat >"$lab/net.d/10-demo.conflist" <<JSON
{
  "cniVersion": "1.0.0",
  "name": "demo",
  "plugins": [
    {"type": "bridge", "bridge": "demo0", "isGateway": true,
     "ipam": {"type": "host-local", "dataDir": "$lab/leases", "ranges": [[{"subnet": "10.89.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
    {"type": "failcni", "control": "$control"}
  ]
}
JSON
show cat "$lab/net.d/10-demo.conflist"
ip link add demo0 type bridge # the plugin makes it with the first pod, and never removes it
printf 'runtime-endpoint: unix://%s/sandflow.sock\ntimeout: 60\n' "$state" >"$lab/crictl.yaml"
export CRI_CONFIG_FILE=$lab/crictl.yaml

say 'The daemon, with its defaults; only directories and the network are our own'
cat >"$lab/config.toml" <<TOML
root = "$lab/root"
state = "$state"
[cni]
conf_dir = "$lab/net.d"
bin_dirs = ["$build/cni"]
[runtime]
default_cgroup_parent = "$cgroup"
TOML
show cat "$lab/config.toml"
show sandflow config check "$lab/config.toml"
node count "$lab/node.json"
printf '$ sandflowd --config %s &\n' "$lab/config.toml"
sandflowd --config "$lab/config.toml" >"$lab/sandflowd.log" 2>&1 &
pid=$!
for _ in $(seq 200); do
	! crictl version >/dev/null 2>&1 || break
	kill -0 "$pid" 2>/dev/null || fail 'sandflowd ended at its start'
	sleep 0.05
done
show crictl version || fail 'sandflowd does not answer'

say 'An image that this repository built; no registry'
show ctr -a "$state/containerd.sock" -n k8s.io images import "$(lab archive)"
show crictl images
want "$(crictl images)" sandflow.example/demo
for _ in $(seq 200); do
	! crictl info | grep -A1 '"type": "NetworkReady"' >/dev/null || break
	sleep 0.05
done
count count "$lab/before.json"

say 'A pod with a container'
mkdir -p "$lab/logs"
cat >"$lab/pod.json" <<JSON
{"metadata": {"name": "web", "namespace": "demo", "uid": "web-1"}, "hostname": "web", "log_directory": "$lab/logs",
 "linux": {"cgroup_parent": "$cgroup", "security_context": {"namespace_options": {"network": 0, "pid": 1, "ipc": 0}}}}
JSON
cat >"$lab/container.json" <<'JSON'
{"metadata": {"name": "httpd"}, "image": {"image": "sandflow.example/demo:1"}, "log_path": "httpd.log",
 "labels": {"io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "demo"},
 "command": ["sh", "-c", "echo serving on port 80 as $(hostname); exec httpd -f -p 80 -h /www"], "linux": {}}
JSON
pod=$(show crictl runp "$lab/pod.json" | shown | tail -n 1)
ctr=$(show crictl create "$pod" "$lab/container.json" "$lab/pod.json" | shown | tail -n 1)
show crictl start "$ctr"
show crictl pods
show crictl ps
want "$(crictl pods)" web Ready
want "$(crictl ps)" httpd Running

say 'Its log, a command in it, its address'
for _ in $(seq 100); do
	[ ! -s "$lab/logs/httpd.log" ] || break
	sleep 0.05
done
show crictl logs "$ctr"
want "$(crictl logs "$ctr" 2>&1)" 'serving on port 80 as web'
show crictl exec "$ctr" sh -c 'hostname; id'
want "$(crictl exec "$ctr" hostname)" web
ip=$(crictl inspectp -o go-template --template '{{.status.network.ip}}' "$pod")
printf '$ GET http://%s/\n' "$ip"
answer=$(get() {
	exec 3<>"/dev/tcp/$1/80"
	printf 'GET / HTTP/1.0\r\n\r\n' >&3
	cat <&3
}; get "$ip") || fail "the pod's address $ip does not answer"
printf '%s\n' "$answer"
want "$answer" '200 OK' 'hello from a sandflow pod'

say 'What its creation was made of'
show sandflow timeline "$pod"
want "$(sandflow timeline "$pod")" create files namespaces network shim ok

say 'A create that fails: the last network plugin fails after an address was leased'
printf 'fail ADD\n' >"$control"
sed -e 's/"web/"broken/g' "$lab/pod.json" >"$lab/broken.json"
count count "$lab/running.json"
if show crictl runp "$lab/broken.json"; then
	fail 'the create should have failed'
fi
rm "$control"
show sandflow timeline demo/broken
want "$(sandflow timeline demo/broken)" network failed rollback
printf '\nLeft of the failed create:\n'
count same "$lab/running.json" || fail 'the failed create left something'
printf '\nThe same request, now that the plugin works again:\n'
broken=$(show crictl runp "$lab/broken.json" | shown | tail -n 1)

say 'The end of all pods'
show crictl rmp -f "$broken" "$pod"
printf '\nLeft of the pods:\n'
count same "$lab/before.json" || fail 'the pods left something'
show sandflow sweep --dry-run

say 'The end of the daemon'
stop_daemon
rm -rf "$lab/root" "$state"
printf 'Left on the node:\n'
node same "$lab/node.json" || fail 'the daemon left something'
printf '\nAll as it should be: nothing is left.\n'
