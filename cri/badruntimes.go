// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go/features"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtimesSafe is the condition of Status that is false while a handler's OCI runtime has a
// published hole. Kubelet goes on; operators and their tools see it.
const runtimesSafe = "OCIRuntimesSafe"

// version is that of a program, as semantic versioning orders it. pre is the number of a
// release candidate; a release proper comes after all of them.
type version struct{ major, minor, patch, pre int }

const released = 1 << 30

var versionText = regexp.MustCompile(`(\d+)\.(\d+)(?:\.(\d+))?(?:-rc\.?(\d+))?`)

func parseVersion(text string) (version, bool) {
	m := versionText.FindStringSubmatch(text)
	if m == nil {
		return version{}, false
	}
	v := version{pre: released}
	for i, to := range []*int{&v.major, &v.minor, &v.patch, &v.pre} {
		if m[i+1] == "" {
			continue
		}
		n, err := strconv.Atoi(m[i+1])
		if err != nil {
			return version{}, false
		}
		*to = n
	}
	return v, true
}

func (v version) before(o version) bool {
	return slices.Compare([]int{v.major, v.minor, v.patch, v.pre}, []int{o.major, o.minor, o.patch, o.pre}) < 0
}

// hole is a published fault of an OCI runtime that lets a container out. fixed lists the first
// good version of each line that got a fix, oldest first: what is older than the first is bad,
// and so is what is between a line's beginning and its fix.
type hole struct {
	program, ids string
	fixed        []version
}

// holes are those of SECURITY.md whose closing is a matter of the runtime's version alone.
var holes = []hole{
	{"runc", "CVE-2021-30465", []version{{1, 0, 0, 95}}},
	{"runc", "CVE-2024-21626", []version{{1, 1, 12, released}}},
	{"runc", "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881", []version{{1, 2, 8, released}, {1, 3, 3, released}, {1, 4, 0, 3}}},
	{"runc", "CVE-2026-41579", []version{{1, 3, 6, released}, {1, 4, 3, released}, {1, 5, 0, 3}}},
	{"runc", "CVE-2026-119101 (when it restores checkpoints)", []version{{1, 4, 4, released}, {1, 5, 3, released}, {1, 6, 0, 2}}},
	{"crun", "CVE-2025-24965", []version{{1, 20, 0, released}}},
	{"crun", "CVE-2026-47766", []version{{1, 28, 0, released}}},
}

func (h hole) has(v version) bool {
	for _, f := range h.fixed {
		if v.major == f.major && v.minor == f.minor || v.before(f) {
			return v.before(f)
		}
	}
	return false
}

// knownBad says which holes the program has whose --version printed the text.
func knownBad(text string) []string {
	line, _, _ := strings.Cut(text, "\n")
	v, ok := parseVersion(line)
	if !ok {
		return nil
	}
	var found []string
	for _, h := range holes {
		if strings.HasPrefix(line, h.program+" ") && h.has(v) {
			last := h.fixed[len(h.fixed)-1]
			found = append(found, fmt.Sprintf("%s has %s, unless it was patched (fixed in %d.%d.%d)", line, h.ids, last.major, last.minor, last.patch))
		}
	}
	return found
}

// badRuntime says what is known against a handler's OCI runtime, whose version is in the
// features it told, or else asked for.
func badRuntime(ctx context.Context, binary string, can *features.Features) []string {
	for key, program := range map[string]string{"org.opencontainers.runc.version": "runc", "run.oci.crun.version": "crun"} {
		if v := can.Annotations[key]; v != "" {
			return knownBad(program + " version " + v)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "--version").Output()
	if err != nil {
		return nil // whoever asked for its features has said so
	}
	return knownBad(string(out))
}

// safe is the condition of Status about published holes.
func (f *handlerFeatures) safe() *runtime.RuntimeCondition {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.bad) == 0 {
		return &runtime.RuntimeCondition{Type: runtimesSafe, Status: true}
	}
	return &runtime.RuntimeCondition{Type: runtimesSafe, Reason: "KnownVulnerability", Message: strings.Join(f.bad, "; ")}
}
