// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import "testing"

// TestMatrix runs all matrices that one daemon, killed and started again, can go through.
func TestMatrix(t *testing.T) {
	n := newNode(t, "")
	for _, m := range []struct {
		name string
		run  func(*node)
	}{
		{"crash", (*node).crashes},
		{"recovery", (*node).recoveries},
		{"others", (*node).deaths},
		{"faults", (*node).failures},
		{"undos", (*node).stuckUndos},
		{"mutations", (*node).mutants},
		{"reboot", (*node).reboots},
	} {
		n.try(m.name, func() { m.run(n) })
	}
}
