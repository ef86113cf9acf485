// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Somebody has removed the pod's directory: the shim is found, with what it runs.
func TestShutdownWithoutDirectory(t *testing.T) {
	for name, shared := range map[string]bool{"own PID namespaces": false, "a shared one": true} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, func(r *LaunchRequest) { r.SharedPID = shared })
			id := l.run(func(s *specs.Spec) {
				if shared {
					s.Linux.Namespaces[0].Path = l.shim.PIDNamespace
				}
			}, CreateRequest{}, "sleep", "1000")
			state, err := l.tasks.State(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(l.dir()); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := l.m.Shutdown(t.Context(), "pod1", l.dir()); err != nil {
					t.Fatal(err)
				}
			}
			l.delete(id)
			for what, pid := range map[string]int{"shim": l.shim.PID, "container": state.PID} {
				if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) && !zombie(pid) {
					t.Errorf("the %s is left (process %d): %v", what, pid, err)
				}
			}
		})
	}
}

// zombie tells whether a process has ended and waits only to be reaped.
func zombie(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(raw), ") Z ")
}
