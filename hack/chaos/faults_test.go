// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sandflow-cri/sandflow/hack/chaos/story"
	"github.com/sandflow-cri/sandflow/hack/harness"
)

// faults are all that is meant to happen now. Each is meant for one life.
type faults struct {
	path string // the daemon's file
	dir  string // of the programs that can be killed

	// always are in the daemon's file too, whoever is meant.
	always []string

	mu    sync.Mutex
	of    map[string][]*fault // by the life's name
	noted map[string]int      // how often each has happened, by what the daemon's log of them says
	read  int64               // how far that log has been read
	kills int                 // of those, how many deaths of the daemon
	spent int                 // of those, how many are known
	fails int                 // of those, how many records could not be written
}

// fault is one, with how often it may kill, and how often the like has happened before.
type fault struct {
	at, kind      string
	kills, before int
}

// set lets faults befall a life's pods; ids are what records without a name have.
func (f *faults) set(life string, all []story.Fault, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.look(); err != nil {
		return err
	}
	var made []*fault
	for _, one := range all {
		if one.Program != "" {
			if err := f.die(life, id, one); err != nil {
				return err
			}
			continue
		}
		whose := life
		if strings.HasSuffix(one.Point, ".gone") {
			whose = id
		}
		x := &fault{at: one.Point + "@" + whose, kind: one.Kind}
		if one.Deadly() {
			kind, times, _ := strings.Cut(one.Kind, "*")
			x.kind, x.kills = kind, 1
			if n, err := strconv.Atoi(times); err == nil {
				x.kills = n
			}
			x.before = f.noted[x.at+"="+x.kind]
		}
		made = append(made, x)
	}
	f.of[life] = made
	return f.write()
}

// clear ends what befalls a life.
func (f *faults) clear(life, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range []string{life, id} {
		if name == "" {
			continue
		}
		if err := os.Remove(filepath.Join(f.dir, name)); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	if len(f.of[life]) == 0 && life != "" {
		return nil
	}
	delete(f.of, life)
	return f.write()
}

// write replaces the daemon's file at once, since it is read all the time. f.mu is held.
func (f *faults) write() error {
	var b strings.Builder
	for _, all := range f.of {
		for _, one := range all {
			fmt.Fprintf(&b, "%s=%s\n", one.at, one.kind)
		}
	}
	for _, line := range f.always {
		fmt.Fprintln(&b, line)
	}
	next := f.path + ".next"
	if err := os.WriteFile(next, []byte(b.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(next, f.path)
}

// used says how often the faults of a life have happened since ever.
func (f *faults) used(life string, all []story.Fault, id string) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.look(); err != nil {
		return 0, err
	}
	times := 0
	for _, one := range all {
		kind, _, _ := strings.Cut(one.Kind, "*")
		for _, whose := range []string{life, id} {
			times += f.noted[one.Point+"@"+whose+"="+kind]
		}
	}
	return times, nil
}

// look reads what the daemon has noted since the last time. f.mu is held.
func (f *faults) look() error {
	log, err := os.Open(f.path + ".log")
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	if _, err := log.Seek(f.read, io.SeekStart); err != nil {
		return err
	}
	raw, err := io.ReadAll(log)
	if err != nil {
		return err
	}
	whole := raw[:strings.LastIndexByte(string(raw), '\n')+1]
	f.read += int64(len(whole))
	if f.noted == nil {
		f.noted = map[string]int{}
	}
	for _, line := range strings.Fields(string(whole)) {
		f.noted[line]++
		if strings.HasSuffix(line, "=kill") || strings.HasSuffix(line, "=killafter") {
			f.kills++
		}
		if strings.HasPrefix(line, "journal:") && strings.HasSuffix(line, "=fail") {
			f.fails++
		}
	}
	return nil
}

// failed says how many records could not be written since ever: records of several lives are
// written together, so this is felt by others.
func (f *faults) failed() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fails, f.look()
}

// spend takes away the faults that have just killed the daemon, and says how many there were.
func (f *faults) spend() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.look(); err != nil {
		return 0, err
	}
	fresh := f.kills - f.spent
	f.spent = f.kills
	for life, all := range f.of {
		f.of[life] = slices.DeleteFunc(all, func(one *fault) bool {
			return one.kills > 0 && f.noted[one.at+"="+one.kind]-one.before >= one.kills
		})
	}
	return fresh, f.write()
}

// deadly says whether a death is still to come, or has come and is not known yet.
func (f *faults) deadly() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.look() == nil && f.kills > f.spent
}

// mortal is a program that can be killed, each call of it for itself: a file of the name of the
// container, or of the pod for CNI plugins, says when.
const mortal = `#!/bin/sh
dir=%q
program=%q
when=
pod=${CNI_ARGS#*K8S_POD_NAME=}
for name in ${pod%%%%;*} "$@"; do
	case $name in */* | "") continue ;; esac
	[ -r "$dir/$name" ] && read -r who when word < "$dir/$name"
done
case " $* $CNI_COMMAND " in
*" $word "*) [ "$who" = "${program##*/}" ] || when= ;;
*) when= ;;
esac
case $when in
before) kill -9 $$ ;;
after) "$program" "$@"; kill -9 $$ ;;
0.*) "$program" "$@" <&0 & sleep "$when"; kill -9 $!; kill -9 $$ ;;
esac
exec "$program" "$@"
`

// mortals writes the programs that can be killed: CNI plugins into a directory, and an OCI runtime.
func (f *faults) mortals(l *harness.Lab, name string) (plugins, runc string, err error) {
	plugins, runc = filepath.Join(l.Dir, name+".cni"), filepath.Join(l.Dir, name+".runc")
	if err := os.MkdirAll(plugins, 0o755); err != nil {
		return "", "", err
	}
	for path, program := range map[string]string{
		filepath.Join(plugins, "bridge"):  filepath.Join(l.Build, "cni", "bridge"),
		filepath.Join(plugins, "portmap"): filepath.Join(l.Build, "cni", "portmap"),
		runc:                              l.Bin("runc"),
	} {
		if err := os.WriteFile(path, fmt.Appendf(nil, mortal, f.dir, program), 0o755); err != nil {
			return "", "", err
		}
	}
	return plugins, runc, nil
}

// die lets a program be killed when it works for a life.
func (f *faults) die(life, id string, one story.Fault) error {
	name := life
	if one.Program == "runc" {
		name = id
	}
	return os.WriteFile(filepath.Join(f.dir, name), fmt.Appendf(nil, "%s %s %s\n", one.Program, one.Kind, one.Point), 0o644)
}
