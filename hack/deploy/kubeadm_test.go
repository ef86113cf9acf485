// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// kubeadmDir is where the package puts the examples.
const kubeadmDir = "/usr/share/doc/sandflow/deploy/kubeadm/"

// TestKubeadm has kubeadm validate the examples, check sandflow as the runtime of a node,
// and remove the pods of a node that leaves its cluster.
func TestKubeadm(t *testing.T) {
	n := newNode(t)
	n.put(n.lab.Bin("kubeadm"), "/usr/local/bin/kubeadm")
	n.put(filepath.Join(n.lab.Build, "cni")+"/.", "/opt/cni/bin")
	n.put(n.build("1.0.0"), "/root/sandflow_1.0.0.deb")
	n.follow("install.md")
	n.run("ip", "address", "add", "192.0.2.1/32", "dev", "lo") // the node's, which kubeadm wants

	files, err := filepath.Glob("../../deploy/kubeadm/*.yaml")
	must(t, err)
	for _, file := range files {
		n.run("kubeadm", "config", "validate", "--config", kubeadmDir+filepath.Base(file))
	}
	n.preflight()

	p := n.runPod("web", n.importImage(), "")
	n.run("sh", "-c", "yes | kubeadm reset --config "+kubeadmDir+"reset.yaml")
	if out := n.run("crictl", "pods", "-q"); strings.Contains(out, p.id) {
		t.Error("kubeadm reset left a pod")
	}
}

// preflight runs kubeadm's own checks of a node: those of the runtime must pass, and must
// be able to fail.
func (n *node) preflight() {
	n.t.Helper()
	text, err := os.ReadFile("../../deploy/kubeadm/init.yaml")
	must(n.t, err)
	// There is no registry to pull the control plane from.
	config := strings.Replace(string(text), "nodeRegistration:\n",
		"localAPIEndpoint:\n  advertiseAddress: 192.0.2.1\nnodeRegistration:\n  imagePullPolicy: Never\n", 1)
	check := func(config string) string {
		n.write("/root/preflight.yaml", config)
		// This machine is none that kubeadm would like; what is looked for is in the warnings.
		return n.run("sh", "-c", "kubeadm init phase preflight --config /root/preflight.yaml --ignore-preflight-errors=all 2>&1")
	}
	out := check(config)
	for _, name := range []string{"[WARNING CRI]", "[WARNING ContainerRuntimeVersion]", "[WARNING ImagePull]"} {
		if strings.Contains(out, name) {
			n.t.Errorf("kubeadm finds fault with the runtime: %s", out)
		}
	}
	n.t.Logf("kubeadm's checks of the node:\n%s", out)
	if out := check(strings.ReplaceAll(config, "sandflow.sock", "nobody.sock")); !strings.Contains(out, "[WARNING CRI]") {
		n.t.Errorf("kubeadm did not look at the runtime: %s", out)
	}
	if _, err := n.Run(n.t.Context(), "sh", "-c", "sed s/criSocket/criSockets/ /root/preflight.yaml >/root/wrong.yaml && kubeadm config validate --config /root/wrong.yaml"); err == nil {
		n.t.Error("kubeadm does not mind what it does not know")
	}
}
