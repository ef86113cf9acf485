// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cnitest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Fake is a plugin program that records its calls and does what it is told.
type Fake struct {
	Name string
	Bin  string // its directory
	dir  string // its memory
}

const script = `#!/bin/sh
D=%q
cat > "$D/$CNI_COMMAND.stdin"
[ "$CNI_COMMAND" = VERSION ] && { echo '{"cniVersion":"1.1.0","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}'; exit 0; }
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME netns=$CNI_NETNS args=$CNI_ARGS" >> "$D/log"
[ -f "$D/$CNI_COMMAND.sh" ] && . "$D/$CNI_COMMAND.sh"
[ "$CNI_COMMAND" = ADD ] && echo '{"ips":[{"address":"10.9.0.2/24"}]}'
exit 0
`

// NewFake makes a plugin that succeeds at everything and gives 10.9.0.2.
func NewFake(tb testing.TB, bin, name string) *Fake {
	tb.Helper()
	f := &Fake{Name: name, Bin: bin, dir: tb.TempDir()}
	if err := os.WriteFile(filepath.Join(bin, name), fmt.Appendf(nil, script, f.dir), 0o755); err != nil {
		tb.Fatal(err)
	}
	return f
}

// On makes the plugin run a piece of shell for a verb. It may exit; if it does
// not, the verb succeeds.
func (f *Fake) On(tb testing.TB, verb, shell string) {
	tb.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, verb+".sh"), []byte(shell+"\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// Dir is a directory for the plugin's own notes: $D in its shell.
func (f *Fake) Dir() string { return f.dir }

// Calls lists the calls so far, one line each; VERSION does not count.
func (f *Fake) Calls(tb testing.TB) []string {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join(f.dir, "log"))
	if err != nil && !os.IsNotExist(err) {
		tb.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")[:strings.Count(string(data), "\n")]
}

// Verbs lists the verbs of the calls so far.
func (f *Fake) Verbs(tb testing.TB) string {
	tb.Helper()
	var verbs []string
	for _, c := range f.Calls(tb) {
		verbs = append(verbs, strings.Fields(c)[0])
	}
	return strings.Join(verbs, " ")
}

// Stdin is the configuration that the last call of the verb got.
func (f *Fake) Stdin(tb testing.TB, verb string) string {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join(f.dir, verb+".stdin"))
	if err != nil {
		tb.Fatal(err)
	}
	return string(data)
}
