// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// commands are the blocks of a guide that are marked to be run by a comment before them.
func commands(t *testing.T, guide, mark string) []string {
	t.Helper()
	runnable := regexp.MustCompile("(?s)<!-- " + mark + " -->\n```sh\n(.*?)```")
	text, err := os.ReadFile(filepath.Join("../../docs", guide))
	must(t, err)
	var blocks []string
	for _, m := range runnable.FindAllSubmatch(text, -1) {
		blocks = append(blocks, string(m[1]))
	}
	if len(blocks) == 0 {
		t.Fatalf("docs/%s has no block marked %q", guide, mark)
	}
	return blocks
}

// follow runs the commands of a guide in the machine as they stand there.
func (n *node) follow(guide string) { n.t.Helper(); n.followMarked(guide, "run") }

func (n *node) followMarked(guide, mark string) {
	n.t.Helper()
	for _, block := range commands(n.t, guide, mark) {
		n.run("bash", "-euc", "cd /root\n"+block)
	}
}
