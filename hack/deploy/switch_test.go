// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"path/filepath"
	"strings"
	"testing"
)

// kubeletUnit is kubelet without a control plane.
const kubeletUnit = `[Service]
ExecStart=/usr/local/bin/kubelet --config=/var/lib/kubelet/config.yaml --hostname-override=machine
Restart=always
RestartSec=1
[Install]
WantedBy=multi-user.target
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
staticPodPath: /etc/kubernetes/manifests
failCgroupV1: false
failSwapOn: false
enableServer: true
address: 127.0.0.1
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
evictionHard: {imagefs.available: 0%, memory.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
# The settings of the kernel are not the machine's own.
featureGates: {KubeletInUserNamespace: true}
`

const staticPod = `apiVersion: v1
kind: Pod
metadata: {name: static}
spec:
  containers:
    - name: c
      image: sandflow.example/demo:1
      imagePullPolicy: Never
      command: [sleep, "100000"]
`

// TestSwitch follows the guide on a node that runs a static pod with containerd, to sandflow
// and back.
func TestSwitch(t *testing.T) {
	n := newNode(t)
	for _, program := range []string{"containerd", "containerd-shim-runc-v2", "kubelet"} {
		n.put(n.lab.Bin(program), "/usr/local/bin/"+program)
	}
	n.put(filepath.Join(n.lab.Build, "cni")+"/.", "/opt/cni/bin")
	n.put("../../deploy/cni/bridge.conflist", "/etc/cni/net.d/10-node.conflist")
	n.write("/etc/containerd/config.toml", strings.ReplaceAll(kindContainerd, "registry.k8s.io/pause:3.10", "sandflow.example/demo:1"))
	n.write("/etc/systemd/system/containerd.service", kindUnit)
	n.write("/etc/systemd/system/kubelet.service", kubeletUnit)
	n.write("/etc/crictl.yaml", "runtime-endpoint: unix:///run/containerd/containerd.sock\ntimeout: 60\n")
	n.write("/var/lib/kubelet/config.yaml", kubeletConfig)
	n.write("/var/lib/kubelet/instance-config.yaml", "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n")
	n.write("/etc/kubernetes/manifests/static.yaml", staticPod)
	n.run("mknod", "/dev/kmsg", "c", "1", "3") // kubelet reads it; what the kernel says is not the machine's
	n.run("systemctl", "daemon-reload")
	n.run("systemctl", "enable", "--now", "containerd")
	n.put(filepath.Join(n.lab.Images(), "demo.tar"), "/tmp/demo.tar")
	n.run("ctr", "-n", "k8s.io", "images", "import", "/tmp/demo.tar")
	n.run("systemctl", "enable", "--now", "kubelet")
	n.staticRuns("containerd")
	n.install(n.build("1.0.0"))

	n.follow("switch.md")
	n.staticRuns("sandflow")
	if out := n.run("sandflow", "doctor"); !strings.Contains(out, "nothing is there that belongs to nobody") {
		t.Errorf("after the switch, the doctor says %s", out)
	}
	for _, file := range []string{"config.yaml", "instance-config.yaml"} {
		if out := n.run("cat", "/var/lib/kubelet/"+file); !strings.Contains(out, "containerRuntimeEndpoint: unix:///run/sandflow/sandflow.sock") {
			t.Errorf("%s is %s", file, out)
		}
	}

	n.followMarked("switch.md", "run back")
	n.staticRuns("containerd")
	if out := n.run("systemctl", "show", "--value", "-p", "ActiveState,UnitFileState", "sandflowd"); out != "inactive\ndisabled" {
		t.Errorf("after the way back, sandflowd is %s", out)
	}
}

// staticRuns waits until the static pod runs with a runtime.
func (n *node) staticRuns(runtime string) {
	n.t.Helper()
	wait(n.t, "the static pod to run with "+runtime, func() bool {
		out, err := n.Run(n.t.Context(), "crictl", "ps", "--state", "Running", "--label", "io.kubernetes.pod.name=static-machine")
		return err == nil && strings.Count(out, "\n") == 2
	})
	if out := n.run("crictl", "version"); !strings.Contains(out, "RuntimeName:  "+runtime+"\n") {
		n.t.Errorf("the runtime is %s", out)
	}
}
