// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"
)

// pipes connect the shim with containerd's task service, which asks for FIFOs
// by path: an anonymous pipe's path in /proc serves as well and leaves nothing behind.
type pipes struct {
	ours, theirs ends
}

type ends struct{ stdin, stdout, stderr *os.File }

func newPipes(stdin bool) (p *pipes, err error) {
	p = &pipes{}
	defer func() {
		if err != nil {
			p.closeOurs()
			p.closeTheirs()
			p.closeStdin()
			err = fmt.Errorf("make pipes: %w", err)
		}
	}()
	if p.ours.stdout, p.theirs.stdout, err = os.Pipe(); err != nil {
		return p, err
	}
	if p.ours.stderr, p.theirs.stderr, err = os.Pipe(); err != nil {
		return p, err
	}
	if stdin {
		p.theirs.stdin, p.ours.stdin, err = os.Pipe()
	}
	return p, err
}

// path names a pipe for as long as f is open.
func (p *pipes) path(f *os.File) string {
	if f == nil {
		return ""
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return ""
	}
	path := ""
	_ = raw.Control(func(fd uintptr) { path = "/proc/self/fd/" + strconv.Itoa(int(fd)) })
	return path
}

func (p *pipes) closeOurs() { closeFiles(p.ours.stdin, p.ours.stdout, p.ours.stderr) }

// closeTheirs is called when the task service has opened its own ends. It opens
// that of stdin some time later: until the process ends, ours keeps the pipe
// from being one that nobody reads.
func (p *pipes) closeTheirs() { closeFiles(p.theirs.stdout, p.theirs.stderr) }

func (p *pipes) closeStdin() { closeFiles(p.theirs.stdin) }

func closeFiles(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close() // twice is harmless
		}
	}
}
