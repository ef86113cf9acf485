// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"path/filepath"
	"strings"
	"testing"
)

// What a kind node has that setup.sh changes or that kind looks at.
const (
	kindContainerd = `# explicitly use v2 config format
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = true
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.10"
  restrict_oom_score_adj = true
`
	kindUnit = `[Unit]
After=network.target local-fs.target
[Service]
ExecStart=/usr/local/bin/containerd
Type=notify
Delegate=yes
KillMode=process
Restart=always
RestartSec=1
[Install]
WantedBy=multi-user.target
`
	kindKubelet = "KUBELET_EXTRA_ARGS=--runtime-cgroups=/system.slice/containerd.service\n"
)

// kindNode is a machine laid out like a kind node, with an image as kind preloads it, and
// with sandflow put on it the way the Dockerfile does.
func kindNode(t *testing.T, mode string) *node {
	t.Helper()
	n := newNode(t)
	for _, program := range []string{"containerd", "containerd-shim-runc-v2"} {
		n.put(n.lab.Bin(program), "/usr/local/bin/"+program)
	}
	n.put(filepath.Join(n.lab.Build, "cni")+"/.", "/opt/cni/bin")
	n.put("../../deploy/cni/ptp.conflist", "/etc/cni/net.d/10-kindnet.conflist")
	n.write("/etc/containerd/config.toml", kindContainerd)
	n.write("/etc/systemd/system/containerd.service", kindUnit)
	n.write("/etc/default/kubelet", kindKubelet)
	n.run("systemctl", "daemon-reload")
	n.run("systemctl", "enable", "--now", "containerd")
	n.put(filepath.Join(n.lab.Images(), "demo.tar"), "/tmp/demo.tar")
	n.run("ctr", "--namespace=k8s.io", "images", "import", "--label=io.cri-containerd.pinned=pinned",
		"--all-platforms", "--no-unpack", "--digests", "/tmp/demo.tar")
	n.run("systemctl", "stop", "containerd")

	for _, program := range []string{"sandflowd", "sandflow", "containerd-shim-sandflow-v1"} {
		n.put(n.lab.Bin(program), "/usr/bin/"+program)
	}
	for _, unit := range []string{"sandflowd.service", "sandflow.slice", "sandflow-pods.slice"} {
		n.put("../../deploy/systemd/"+unit, "/etc/systemd/system/"+unit)
	}
	n.put("../../deploy/kind/attached.toml", "/etc/sandflow/attached.toml")
	n.put("../../deploy/kind/embedded.toml", "/etc/sandflow/embedded.toml")
	n.put("../../deploy/kind/setup.sh", "/kind/bin/sandflow-setup.sh")
	n.run("/kind/bin/sandflow-setup.sh", mode)
	return n
}

func TestKind(t *testing.T) {
	for _, mode := range []string{"attached", "embedded"} {
		t.Run(mode, func(t *testing.T) {
			n := kindNode(t, mode)
			must(t, n.PowerOff()) // the node image is built; now it becomes a node
			must(t, n.Boot(t.Context()))
			if got := n.run("systemctl", "is-active", "sandflowd"); got != "active" {
				t.Errorf("sandflowd is %s", got)
			}
			if out, err := n.Run(t.Context(), "systemctl", "is-active", "containerd"); (err == nil) != (mode == "attached") {
				t.Errorf("containerd is %s", out)
			}

			// The image that came with the node was never unpacked.
			p := n.runPod("preloaded", "sandflow.example/demo:1", "")
			if state := n.process(p.container); !strings.Contains(state, "CONTAINER_RUNNING") {
				t.Errorf("a container of a preloaded image is %s", state)
			}
			if got := n.run("crictl", "inspecti", "-o", "go-template", "--template", "{{.status.pinned}}", "sandflow.example/demo:1"); got != "true" {
				t.Errorf("the preloaded image is pinned: %s", got)
			}

			// What "kind load" runs on a node.
			if got := n.run("containerd", "config", "dump"); !strings.Contains(got, "snapshotter = 'overlayfs'") {
				t.Errorf("kind would not find the snapshotter in %s", got)
			}
			// (--local: otherwise ctr may end before it has written the end of the archive.)
			n.run("sh", "-c", "cd /tmp && ctr --namespace=k8s.io images tag sandflow.example/demo:1 loaded.example/it:2 && "+
				"ctr --namespace=k8s.io images export --local it.tar loaded.example/it:2 && ctr --namespace=k8s.io images rm loaded.example/it:2")
			n.run("sh", "-c", "ctr --namespace=k8s.io images import --all-platforms --digests --snapshotter=overlayfs - </tmp/it.tar")
			if got := n.run("crictl", "inspecti", "loaded.example/it:2"); !strings.Contains(got, `"loaded.example/it:2"`) {
				t.Errorf("the loaded image is %s", got)
			}
			loaded := n.runPod("loaded", "loaded.example/it:2", "")
			n.run("crictl", "rmp", "-f", p.id, loaded.id)
		})
	}
}
