// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandflow-cri/sandflow/hack/chaos/story"
	"github.com/sandflow-cri/sandflow/hack/world"
)

// soon is how long a node has to be whole that will not be.
const soon = time.Second

// TestBrokenUndoIsFound lets one undo after the other do nothing, and looks whether that would be
// found after some lives. Those of task and of NRI's actions leave nothing that the pod's end does
// not take with it; the matrices in hack/crash find them.
func TestBrokenUndoIsFound(t *testing.T) {
	n := newNode(t, "mutants")
	for i, action := range []string{"files", "namespaces", "network", "shim", "sandbox-container", "rootfs", "volumes", "spec"} {
		handler := ""
		if action == "sandbox-container" {
			handler = story.Boxed
		}
		n.faults.always = []string{"undo:" + action + "=skip"}
		if err := n.faults.clear("", ""); err != nil {
			t.Fatal(err)
		}
		wrong := newLife(n, plain(i, handler)).play(t.Context())
		if wrong == nil {
			wrong = n.whole(t.Context(), soon)
		}
		if wrong == nil {
			t.Errorf("that the undo of %s does nothing is not found", action)
		} else {
			text, _, _ := strings.Cut(wrong.Error(), "\n")
			t.Logf("undo of %s does nothing: %s …", action, text)
		}
		n.mend(t)
	}
}

// mend ends what breaks undos; the next start sweeps what they have left, as far as that can be.
func (n *node) mend(t *testing.T) {
	t.Helper()
	n.faults.always = nil
	if err := n.faults.clear("", ""); err != nil {
		t.Fatal(err)
	}
	if err := n.end(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var err error
	if n.before, err = world.Count(t.Context(), n.where()); err != nil {
		t.Fatal(err)
	}
}
