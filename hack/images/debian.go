// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// debian holds unpacked Debian packages and finds programs and libraries in them.
type debian struct {
	dir string
}

// unpack downloads packages with the libraries they depend on and unpacks them into dir.
func unpack(ctx context.Context, dir string, packages ...string) (*debian, error) {
	debs := filepath.Join(dir, "debs")
	root := filepath.Join(dir, "root")
	for _, d := range []string{debs, root} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	all, err := withLibraries(ctx, packages)
	if err != nil { // on a fresh machine apt has no lists yet
		if _, err := run(ctx, "", "apt-get", "update", "-qq"); err != nil {
			return nil, fmt.Errorf("could not update apt's package lists: %w", err)
		}
		all, err = withLibraries(ctx, packages)
	}
	if err != nil {
		return nil, err
	}
	if _, err := run(ctx, debs, "apt-get", append([]string{"download", "-qq"}, all...)...); err != nil {
		return nil, fmt.Errorf("could not download Debian packages %s: %w", strings.Join(all, " "), err)
	}
	found, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return nil, err
	}
	for _, deb := range found {
		if _, err := run(ctx, "", "dpkg-deb", "-x", deb, root); err != nil {
			return nil, fmt.Errorf("could not unpack %s: %w", filepath.Base(deb), err)
		}
	}
	return &debian{dir: root}, nil
}

var library = regexp.MustCompile(`^(lib|zlib)[a-z0-9.+-]+$`)

// withLibraries adds the libraries that packages depend on, however far down.
func withLibraries(ctx context.Context, packages []string) ([]string, error) {
	seen := map[string]bool{}
	out := []string{}
	for queue := packages; len(queue) > 0; queue = queue[1:] {
		p := queue[0]
		if seen[p] {
			continue
		}
		seen[p] = true
		text, err := run(ctx, "", "apt-cache", "depends", "--important", p)
		if err != nil {
			return nil, fmt.Errorf("could not look up Debian package %s: %w", p, err)
		}
		out = append(out, p)
		for line := range strings.Lines(text) {
			_, dep, ok := strings.Cut(strings.TrimSpace(line), "Depends: ")
			if ok && library.MatchString(dep) {
				queue = append(queue, dep)
			}
		}
	}
	return out, nil
}

// find returns the path of a file by its base name; links are followed.
func (d *debian) find(name string) (string, error) {
	var hit string
	err := filepath.WalkDir(d.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.Name() == name && !e.IsDir() {
			hit = path
			return fs.SkipAll
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if hit == "" {
		return "", fmt.Errorf("no file %s in the unpacked packages", name)
	}
	target, err := filepath.EvalSymlinks(hit)
	if err != nil {
		return "", fmt.Errorf("could not follow %s: %w", hit, err)
	}
	return target, nil
}

// program returns the files of a dynamic program: itself at the path "at", its interpreter
// where it asks for it, and its libraries in /lib, where every glibc looks.
func (d *debian) program(name, at string) ([]file, error) {
	path, err := d.find(name)
	if err != nil {
		return nil, err
	}
	files := []file{{path: at, from: path, mode: 0o755}}
	interp, queue, err := needs(path)
	if err != nil {
		return nil, err
	}
	if interp == "" {
		return nil, fmt.Errorf("%s is not a dynamic program", name)
	}
	loader, err := d.find(filepath.Base(interp))
	if err != nil {
		return nil, err
	}
	files = append(files, file{path: strings.TrimPrefix(interp, "/"), from: loader, mode: 0o755})
	seen := map[string]bool{filepath.Base(interp): true}
	for ; len(queue) > 0; queue = queue[1:] {
		if seen[queue[0]] {
			continue
		}
		seen[queue[0]] = true
		lib, err := d.find(queue[0])
		if err != nil {
			return nil, err
		}
		files = append(files, file{path: "lib/" + queue[0], from: lib, mode: 0o644})
		_, more, err := needs(lib)
		if err != nil {
			return nil, err
		}
		queue = append(queue, more...)
	}
	return files, nil
}

// needs reads an ELF file's interpreter and the libraries it is linked with.
func needs(path string) (interp string, libs []string, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", nil, fmt.Errorf("could not read ELF file %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		raw := make([]byte, p.Filesz)
		if _, err := p.ReadAt(raw, 0); err != nil {
			return "", nil, fmt.Errorf("could not read the interpreter of %s: %w", path, err)
		}
		interp = strings.TrimRight(string(raw), "\x00")
	}
	libs, err = f.ImportedLibraries()
	return interp, libs, err
}

// applets lists what a dynamic busybox among the files can do.
func applets(ctx context.Context, files []file) ([]string, error) {
	dir, err := os.MkdirTemp("", "applets")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, f := range files {
		if err := os.Symlink(f.from, filepath.Join(dir, filepath.Base(f.path))); err != nil {
			return nil, err
		}
	}
	text, err := run(ctx, dir, files[1].from, "--library-path", dir, files[0].from, "--list")
	if err != nil {
		return nil, fmt.Errorf("could not list the applets of busybox: %w", err)
	}
	return strings.Fields(text), nil
}

// run runs a program and returns its standard output.
func run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(exit.Stderr)))
	}
	return string(out), err
}
