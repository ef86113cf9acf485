// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Adding says whether a process is a plugin in an ADD, or one that such a plugin has delegated
// to, for a network namespace below a directory. Those of a daemon that has died have to be
// ended before a DEL: the kernel kills the plugin with the daemon, but not what that has
// started, by which an address could be taken after the DEL that should give it back. A process
// that has gone is none, nor is one with mounts of its own: the environment of a container can
// say anything.
func Adding(pid int, dir string) bool {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return false
	}
	if its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid)); err != nil || its != own {
		return false
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	add, below := false, false
	for kv := range bytes.SplitSeq(environ, []byte{0}) {
		switch key, value, _ := strings.Cut(string(kv), "="); key {
		case "CNI_COMMAND":
			add = value == "ADD"
		case "CNI_NETNS":
			rel, err := filepath.Rel(dir, value)
			below = err == nil && filepath.IsLocal(rel)
		}
	}
	return add && below
}
