// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtimetest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Recording is an OCI runtime that is runc but for checkpoint and restore, which need a
// kernel that CRIU works on: a dump is a few files, and a restored container is one that
// is made anew. It records what it is asked, and fails or hangs on command.
type Recording struct {
	// Path is the runtime's program.
	Path string
	dir  string
}

// recordingScript takes its directory and the path of runc. It may not have children of
// its own where it hangs: it is killed alone.
const recordingScript = `#!/bin/sh
dir=%q real=%q
global= verb= next= log=
for a in "$@"; do
	if [ -z "$verb" ]; then
		case "$a" in
		checkpoint|restore|pause|resume) verb=$a ;;
		*) global="$global $a"; [ "$next" = log ] && log=$a; next=; [ "$a" = --log ] && next=log ;;
		esac
	else
		case "$next" in
		image) image=$a ;;
		work) work=$a ;;
		pid) pid=$a ;;
		bundle) bundle=$a ;;
		console) console="--console-socket $a" ;;
		esac
		next=
		case "$a" in
		--image-path) next=image ;;
		--work-path) next=work ;;
		--pid-file) next=pid ;;
		--bundle) next=bundle ;;
		--console-socket) next=console ;;
		esac
	fi
	id=$a
done
[ -n "$verb" ] || exec "$real" "$@"
state=$("$real" $global state "$id" 2>/dev/null | sed -n 's/.*"status": "\(.*\)".*/\1/p')
echo "$verb $id ${state:-none}" >> "$dir/calls"
order=$(cat "$dir/$verb.$id" 2>/dev/null || cat "$dir/$verb" 2>/dev/null)
case "$order" in
fail)
	[ -n "$work" ] && echo "(00.000001) Error (criu/fake.c:1): made to fail" > "$work/dump.log"
	[ -n "$log" ] && echo '{"level":"error","msg":"made to fail"}' >> "$log"
	echo "made to fail" >&2
	exit 1 ;;
hang) exec sleep 1000 ;;
esac
case "$verb" in
checkpoint)
	echo "$id" > "$image/pages-1.img"
	echo inventory > "$image/inventory.img"
	echo "(00.000001) Dumping finished successfully" > "$work/dump.log"
	echo stats > "$work/stats-dump" ;;
restore)
	cat "$image/pages-1.img" >> "$dir/restored" || exit 1
	echo "(00.000001) Restore finished successfully" > "$work/restore.log"
	"$real" $global create --bundle "$bundle" --pid-file "$pid" $console "$id" && "$real" $global start "$id" ;;
*) exec "$real" "$@" ;;
esac
`

// NewRecording writes the runtime into dir, which must be there.
func NewRecording(dir, runc string) (*Recording, error) {
	r := &Recording{Path: filepath.Join(dir, "recording"), dir: dir}
	script := fmt.Sprintf(recordingScript, dir, runc)
	return r, os.WriteFile(r.Path, []byte(script), 0o755)
}

// Calls are the calls so far, "VERB ID STATE": the state that the container was in.
func (r *Recording) Calls() ([]string, error) {
	raw, err := os.ReadFile(filepath.Join(r.dir, "calls"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Split(strings.TrimSpace(string(raw)), "\n"), err
}

// Restored are the containers whose dumps were restored.
func (r *Recording) Restored() ([]string, error) {
	raw, err := os.ReadFile(filepath.Join(r.dir, "restored"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(raw)), err
}

// Order makes a verb "fail" or "hang", for one container or (id empty) for all; an
// empty order lets it work again.
func (r *Recording) Order(verb, id, order string) error {
	name := filepath.Join(r.dir, verb)
	if id != "" {
		name += "." + id
	}
	if order == "" {
		return os.RemoveAll(name)
	}
	return os.WriteFile(name, []byte(order), 0o600)
}
