// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// TestScopes has the network fail at once, while systemd is still making the scopes of the
// pods' inits: systemd must be left without any of them.
func TestScopes(t *testing.T) {
	n := newNode(t)
	n.put(filepath.Join(n.lab.Build, "cni")+"/.", "/opt/cni/bin")
	n.install(n.build("1.0.0"))
	n.write("/etc/cni/net.d/10-node.conflist",
		`{"cniVersion": "1.0.0", "name": "node", "plugins": [{"type": "failcni", "control": "/root/failcni"}]}`)
	n.write("/root/failcni", "fail ADD\n")
	n.write("/etc/crictl.yaml", "runtime-endpoint: unix:///run/sandflow/sandflow.sock\ntimeout: 60\n")
	n.run("systemctl", "start", "sandflowd")
	for i := range 12 {
		name := fmt.Sprintf("/root/failing-%d.json", i)
		n.write(name, fmt.Sprintf(`{"metadata": {"name": "failing", "namespace": "default", "uid": "%d"}, "linux": {}}`, i))
		if _, err := n.Run(t.Context(), "crictl", "runp", name); err == nil {
			t.Fatal("a pod without a network was made")
		}
	}
	if out := n.run("sandflow", "timeline"); strings.Count(out, "default/failing") != 12 {
		t.Errorf("the pods that failed are %s", out)
	}
	wait(t, "systemd to have no scope of a pod", func() bool {
		return n.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "sandflow-*.scope") == ""
	})
}
