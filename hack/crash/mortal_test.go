// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"fmt"
	"os"
	"path/filepath"
)

// mortal is a program that can be killed on command: the control file holds a word and when.
// The word is looked for in the command line and, for CNI plugins, in the verb.
const mortal = `#!/bin/sh
control=%q
program=%q
[ -r "$control" ] && read -r when word < "$control" || when=
case " $* $CNI_COMMAND " in
*" $word "*) ;;
*) when= ;;
esac
case $when in
before) kill -9 $$ ;;
after) "$program" "$@"; kill -9 $$ ;;
0.*) "$program" "$@" <&0 & sleep "$when"; kill -9 $!; kill -9 $$ ;;
esac
exec "$program" "$@"
`

// mortalRuntime writes an OCI runtime that can be killed.
func (n *node) mortalRuntime(name string) string {
	n.t.Helper()
	path := filepath.Join(n.lab.Dir, name+".runc")
	must(n.t, os.WriteFile(path, fmt.Appendf(nil, mortal, n.control+".runc", n.lab.Bin("runc")), 0o755))
	return path
}

// mortalPlugins writes a CNI plugin that can be killed, into a directory of its own.
func (n *node) mortalPlugins(name string) string {
	n.t.Helper()
	dir := filepath.Join(n.lab.Dir, name+".cni")
	must(n.t, os.MkdirAll(dir, 0o755))
	for _, plugin := range []string{"bridge", "portmap"} {
		text := fmt.Appendf(nil, mortal, n.control+"."+plugin, filepath.Join(n.lab.Build, "cni", plugin))
		must(n.t, os.WriteFile(filepath.Join(dir, plugin), text, 0o755))
	}
	return dir
}

// killing sets when a mortal program is killed; an empty text ends that.
func (n *node) killing(program, text string) {
	n.t.Helper()
	path := n.control + "." + program
	if text == "" {
		_ = os.Remove(path)
		return
	}
	must(n.t, os.WriteFile(path, []byte(text+"\n"), 0o644))
}
