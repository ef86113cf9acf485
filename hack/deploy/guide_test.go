// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// runnable finds the blocks of a guide that are marked to be run.
var runnable = regexp.MustCompile("(?s)<!-- run -->\n```sh\n(.*?)```")

// commands are the blocks of a guide that are marked to be run.
func commands(t *testing.T, guide string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", guide))
	must(t, err)
	var blocks []string
	for _, m := range runnable.FindAllSubmatch(text, -1) {
		blocks = append(blocks, string(m[1]))
	}
	if len(blocks) == 0 {
		t.Fatalf("docs/%s has no block to run", guide)
	}
	return blocks
}

// follow runs the commands of a guide in the machine as they stand there.
func (n *node) follow(guide string) {
	n.t.Helper()
	for _, block := range commands(n.t, guide) {
		n.run("bash", "-euc", "cd /root\n"+block)
	}
}
