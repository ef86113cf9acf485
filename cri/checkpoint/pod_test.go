// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// read reads all of a checkpoint that is read in a restoration.
func read(t *testing.T, dir string) error {
	t.Helper()
	p, err := Open(dir, here)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	for _, name := range p.Names() {
		if _, err := p.Config(name); err != nil {
			return err
		}
		if _, err := p.Spec(name); err != nil {
			return err
		}
		to := t.TempDir()
		target := Target{
			Dump: filepath.Join(to, "dump"), Rootfs: tree(t, filepath.Join(to, "rootfs")),
			Volumes: []string{tree(t, filepath.Join(to, "abc"))},
		}
		if err := p.Fill(t.Context(), name, target); err != nil {
			return err
		}
		if err := p.FillShm(t.Context(), tree(t, filepath.Join(to, "shm"))); err != nil {
			return err
		}
	}
	return nil
}

// TestCase92Links has links, and other things that are no files, in the place of each file
// of a checkpoint.
func TestCase92Links(t *testing.T) {
	good := podOf(t, source(t))
	must(t, read(t, good))
	for _, name := range []string{
		"pod.options", "c1", "c1/checkpoint", "c1/checkpoint/pages-1.img", "c1/config.dump", "c1/spec.dump",
		"c1/rootfs-diff.tar", "c1/deleted.files", "c1/volumes", "c1/volumes/abc.tar", "c1/devshm-checkpoint.tar",
	} {
		for kind, replace := range map[string]func(path, secret string) error{
			"symbolic link": func(path, secret string) error { return os.Symlink(secret, path) },
			"hard link":     func(path, secret string) error { return os.Link(secret, path) },
			"pipe":          func(path, _ string) error { return unix.Mkfifo(path, 0o600) },
			"device":        func(path, _ string) error { return unix.Mknod(path, unix.S_IFCHR, int(unix.Mkdev(1, 3))) },
		} {
			dir := t.TempDir()
			must(t, os.CopyFS(dir, os.DirFS(good)))
			path := filepath.Join(dir, name)
			secret := filepath.Join(dir, "secret")
			must(t, os.Rename(path, secret)) // the right contents, elsewhere
			if st, err := os.Stat(secret); err == nil && st.IsDir() && kind == "hard link" {
				continue
			}
			must(t, replace(path, secret))
			if err := read(t, dir); !errdefs.IsInvalidArgument(err) {
				t.Errorf("%s in the place of %s: %v", kind, name, err)
			}
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(good, link))
	if err := read(t, link); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a link to the checkpoint: %v", err)
	}
}

// TestCase92Metadata has metadata that lies.
func TestCase92Metadata(t *testing.T) {
	good := podOf(t, source(t))
	for name, change := range map[string]func(o *metadata.CheckpointedPodOptions){
		"directory above":       func(o *metadata.CheckpointedPodOptions) { o.Containers["web"] = ".." },
		"directory elsewhere":   func(o *metadata.CheckpointedPodOptions) { o.Containers["web"] = "/etc" },
		"directory by a detour": func(o *metadata.CheckpointedPodOptions) { o.Containers["web"] = "c1/../c1" },
		"no directory":          func(o *metadata.CheckpointedPodOptions) { o.Containers["web"] = "" },
		"unknown directory":     func(o *metadata.CheckpointedPodOptions) { o.Containers["web"] = "c2" },
		"no name":               func(o *metadata.CheckpointedPodOptions) { o.Containers[""] = "c1" },
		"version":               func(o *metadata.CheckpointedPodOptions) { o.Version = 2 },
		"engine": func(o *metadata.CheckpointedPodOptions) {
			o.Annotations[metadata.CheckpointAnnotationEngine] = "podman"
		},
		"runtime": func(o *metadata.CheckpointedPodOptions) {
			o.Annotations[metadata.CheckpointAnnotationRuntimeName] = "kata"
		},
		"architecture": func(o *metadata.CheckpointedPodOptions) {
			o.Annotations[metadata.CheckpointAnnotationHostArch] = "s390x"
		},
	} {
		dir := t.TempDir()
		must(t, os.CopyFS(dir, os.DirFS(good)))
		o, _, err := metadata.ReadCheckpointPodOptions(dir)
		must(t, err)
		change(o)
		_, err = metadata.WriteJSONFile(o, dir, metadata.PodOptionsFile)
		must(t, err)
		if err := read(t, dir); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, text := range map[string]string{"no JSON": "x", "too long": `"` + strings.Repeat("x", mostMetadata) + `"`, "empty": ""} {
		for _, file := range []string{"pod.options", "c1/config.dump", "c1/spec.dump", "c1/deleted.files"} {
			dir := t.TempDir()
			must(t, os.CopyFS(dir, os.DirFS(good)))
			must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), fileMode))
			if err := read(t, dir); !errdefs.IsInvalidArgument(err) {
				t.Errorf("%s is %s: %v", file, name, err)
			}
		}
	}
}

// tarOf makes a tar file.
func tarOf(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		text := h.Linkname
		if h.Typeflag == tar.TypeReg {
			h.Linkname, h.Size = "", int64(len(text))
		}
		h.Mode = 0o644
		must(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := w.Write([]byte(text))
			must(t, err)
		}
	}
	must(t, w.Close())
	return &b
}

// TestCase92Rootfs has changes to a root file system that want to leave it.
func TestCase92Rootfs(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	for name, headers := range map[string][]tar.Header{
		"name above":             {{Name: "../outside/a", Typeflag: tar.TypeReg, Linkname: "x"}},
		"link, then a name":      {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "l/a", Typeflag: tar.TypeReg, Linkname: "x"}},
		"link of the image":      {{Name: "out/a", Typeflag: tar.TypeReg, Linkname: "x"}},
		"hard link to a file":    {{Name: "h", Typeflag: tar.TypeLink, Linkname: "../outside/secret"}, {Name: "h", Typeflag: tar.TypeReg, Linkname: "x"}},
		"file over a link":       {{Name: "file", Typeflag: tar.TypeReg, Linkname: "x"}},
		"deletion through links": {{Name: "out/.wh.secret", Typeflag: tar.TypeReg}},
		"device":                 {{Name: "d", Typeflag: tar.TypeBlock, Devmajor: 8}},
	} {
		dir := t.TempDir()
		outside := tree(t, filepath.Join(dir, "outside"), "secret=s")
		root := tree(t, filepath.Join(dir, "root"), "etc/")
		must(t, os.Symlink(outside, filepath.Join(root, "out")))
		must(t, os.Symlink(filepath.Join(outside, "secret"), filepath.Join(root, "file")))
		err := apply(t.Context(), root, tarOf(t, headers...))
		if name == "device" && !errdefs.IsInvalidArgument(err) {
			t.Errorf("device: %v", err)
		}
		if got := files(t, outside); !slices.Equal(got, []string{"secret=s"}) {
			t.Errorf("%s: outside is %q (%v)", name, got, err)
		}
	}
	for _, path := range []string{"../outside/secret", "/../../outside/secret", "out/secret", "file", "/", "", ".", "out/../..", "etc/../../outside"} {
		dir := t.TempDir()
		outside := tree(t, filepath.Join(dir, "outside"), "secret=s")
		root := tree(t, filepath.Join(dir, "root"), "etc/")
		must(t, os.Symlink(outside, filepath.Join(root, "out")))
		must(t, os.Symlink(filepath.Join(outside, "secret"), filepath.Join(root, "file")))
		err := remove(root, path)
		if got := files(t, outside); !slices.Equal(got, []string{"secret=s"}) {
			t.Errorf("delete %q: outside is %q (%v)", path, got, err)
		}
		if _, err := os.Stat(root); err != nil {
			t.Errorf("delete %q: %v", path, err)
		}
	}
}
