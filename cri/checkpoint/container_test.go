// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/steps/runtime"
)

// dumper is an OCI runtime that writes what CRIU would.
type dumper struct{ fail error }

func (d dumper) Checkpoint(_ context.Context, r runtime.CheckpointRequest) error {
	if d.fail != nil {
		_ = os.WriteFile(filepath.Join(r.Work, metadata.DumpLogFile), []byte("x\n(0.1) Error (criu/x.c:1): why\ny\n"), fileMode)
		return d.fail
	}
	return errors.Join(
		os.WriteFile(filepath.Join(r.Images, "pages-1.img"), []byte(r.ID), fileMode),
		os.WriteFile(filepath.Join(r.Work, metadata.DumpLogFile), nil, fileMode),
		os.WriteFile(filepath.Join(r.Work, "stats-dump"), nil, fileMode))
}

var here = Made{Runtime: "sandflow runc", Arch: "amd64"}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree makes files, "NAME=CONTENTS"; a name with a slash at its end is a directory.
func tree(t *testing.T, dir string, files ...string) string {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	for _, f := range files {
		name, text, _ := strings.Cut(f, "=")
		path := filepath.Join(dir, name)
		if strings.HasSuffix(name, "/") {
			must(t, os.MkdirAll(path, 0o755))
			continue
		}
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return dir
}

// files lists what is in a directory, "NAME=CONTENTS".
func files(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		text, _ := os.ReadFile(path)
		if to, err := os.Readlink(path); err == nil {
			text = []byte("-> " + to)
		}
		list = append(list, name+"="+string(text))
		return nil
	}))
	return list
}

// source is a container with a life behind it.
func source(t *testing.T) *Container {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	c := &Container{
		ID: "c1", Tasks: dumper{},
		Bundle:  tree(t, filepath.Join(dir, "bundle"), `config.json={"ociVersion":"1.2.0","process":{"args":["sleep"],"cwd":"/"}}`),
		Base:    tree(t, filepath.Join(dir, "base"), "etc/kept=1", "etc/gone=2", "tree/a=3", "tree/b=4"),
		Rootfs:  tree(t, filepath.Join(dir, "rootfs"), "etc/kept=1", "etc/new=5", "empty/"),
		Volumes: []string{tree(t, filepath.Join(dir, "volumes", "abc"), "v=6")},
		Shm:     tree(t, filepath.Join(dir, "shm"), "s=7"),
		Config:  metadata.ContainerConfig{ID: "c1", Name: "web", RootfsImageRef: "sha256:1"},
	}
	st, err := os.Stat(filepath.Join(c.Base, "etc/kept"))
	must(t, err)
	must(t, os.Chtimes(filepath.Join(c.Rootfs, "etc/kept"), st.ModTime(), st.ModTime()))
	must(t, os.Symlink("new", filepath.Join(c.Rootfs, "etc/link")))
	must(t, unix.Mknod(filepath.Join(c.Rootfs, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	return c
}

// podOf takes a checkpoint of a pod with that one container.
func podOf(t *testing.T, c *Container) string {
	t.Helper()
	dir := t.TempDir()
	must(t, c.Describe(filepath.Join(dir, c.ID)))
	must(t, c.Take(t.Context(), filepath.Join(dir, c.ID)))
	must(t, WritePod(dir, here, map[string]string{"web": c.ID}))
	return dir
}

func TestFormat(t *testing.T) {
	c := source(t)
	dir := filepath.Join(podOf(t, c), "c1")
	// What checkpointctl itself reads.
	config, _, err := metadata.ReadContainerCheckpointConfigDump(dir)
	if err != nil || config.Name != "web" {
		t.Errorf("config.dump: %+v, %v", config, err)
	}
	if spec, _, err := metadata.ReadContainerCheckpointSpecDump(dir); err != nil || spec.Process.Args[0] != "sleep" {
		t.Errorf("spec.dump: %v", err)
	}
	if _, _, err := metadata.ReadContainerCheckpointStatusFile(dir); err != nil {
		t.Errorf("status: %v", err)
	}
	deleted, _, err := metadata.ReadContainerCheckpointDeletedFiles(dir)
	if want := []string{"/etc/gone", "/tree"}; err != nil || !slices.Equal(deleted, want) {
		t.Errorf("deleted.files: %q, want %q, %v", deleted, want, err)
	}
	if st, err := os.Stat(filepath.Join(dir, metadata.ConfigDumpFile)); err != nil || st.Mode().Perm() != fileMode {
		t.Errorf("config.dump: %v, %v", st, err)
	}

	path := filepath.Join(t.TempDir(), "checkpoint.tar")
	must(t, Pack(t.Context(), dir, path))
	f, err := os.Open(path)
	must(t, err)
	defer func() { _ = f.Close() }()
	var names []string
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		names = append(names, h.Name)
	}
	want := []string{
		"checkpoint/", "checkpoint/pages-1.img", "config.dump", "deleted.files", "devshm-checkpoint.tar",
		"dump.log", "rootfs-diff.tar", "spec.dump", "stats-dump", "status", "volumes/", "volumes/abc.tar",
	}
	if !slices.Equal(names, want) {
		t.Errorf("the archive has %q, want %q", names, want)
	}
	if err := Pack(t.Context(), dir, path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("onto what is there: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Pack(ended, dir, path+"2"); !errors.Is(err, context.Canceled) {
		t.Errorf("without time: %v", err)
	}
}

func TestDumpThatFails(t *testing.T) {
	c := source(t)
	c.Tasks = dumper{errMade}
	dir := filepath.Join(t.TempDir(), "d")
	must(t, c.Describe(dir))
	if err := c.Take(t.Context(), dir); !errors.Is(err, errMade) || !strings.Contains(err.Error(), "criu/x.c:1): why") {
		t.Errorf("error %v", err)
	}
}

func TestFill(t *testing.T) {
	c := source(t)
	p, err := Open(podOf(t, c), here)
	must(t, err)
	defer func() { _ = p.Close() }()
	dir := t.TempDir()
	target := Target{
		Dump:    filepath.Join(dir, "dump", "checkpoint"),
		Rootfs:  tree(t, filepath.Join(dir, "rootfs"), "etc/kept=1", "etc/gone=2", "tree/a=3", "tree/b=4"),
		Volumes: []string{tree(t, filepath.Join(dir, "v", "abc"), "of the image=8")},
	}
	must(t, p.Fill(t.Context(), "web", target))
	shm := tree(t, filepath.Join(dir, "shm"), "old=9")
	must(t, p.FillShm(t.Context(), shm))
	for in, want := range map[string][]string{
		target.Dump:       {"pages-1.img=c1"},
		target.Rootfs:     {"etc/kept=1", "etc/link=-> new", "etc/new=5"},
		target.Volumes[0]: {"v=6"},
		shm:               {"s=7"},
	} {
		if got := files(t, in); !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", in, got, want)
		}
	}
	if _, err := os.Stat(filepath.Join(target.Rootfs, "empty")); err != nil {
		t.Error(err)
	}
	if got := p.Names(); !slices.Equal(got, []string{"web"}) {
		t.Errorf("names %q", got)
	}
}
