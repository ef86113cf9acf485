// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// FuzzPod reads checkpoints whose metadata is anything.
func FuzzPod(f *testing.F) {
	f.Add([]byte(`{"version":1,"containers":{"web":"c1"},"annotations":{"org.criu.checkpoint.engine.name":"sandflow"}}`),
		[]byte(`{"name":"web"}`), []byte(`["/etc/gone"]`))
	f.Add([]byte(`{"version":1,"containers":{"web":".."}}`), []byte(`[]`), []byte(`["/../x", ""]`))
	f.Fuzz(func(t *testing.T, options, config, deleted []byte) {
		dir := t.TempDir()
		outside := tree(t, filepath.Join(dir, "outside"), "secret=s")
		c := tree(t, filepath.Join(dir, "pod", "c1"), "checkpoint/pages-1.img=1", "spec.dump={}")
		must(t, os.WriteFile(filepath.Join(dir, "pod", "pod.options"), options, fileMode))
		must(t, os.WriteFile(filepath.Join(c, "config.dump"), config, fileMode))
		must(t, os.WriteFile(filepath.Join(c, "deleted.files"), deleted, fileMode))
		must(t, os.WriteFile(filepath.Join(c, "rootfs-diff.tar"), nil, fileMode))
		_ = read(t, filepath.Join(dir, "pod")) // any error will do
		if got := files(t, outside); !slices.Equal(got, []string{"secret=s"}) {
			t.Errorf("outside is %q", got)
		}
	})
}

// FuzzRootfs unpacks anything into a root file system with links out of it.
func FuzzRootfs(f *testing.F) {
	for _, h := range []tar.Header{
		{Name: "out/a", Typeflag: tar.TypeReg}, {Name: "../a", Typeflag: tar.TypeReg},
		{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "out/secret"},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if w.WriteHeader(&h) != nil || w.Close() != nil {
			f.Fatal("no archive")
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if os.Getuid() != 0 {
			t.Skip("needs root")
		}
		dir := t.TempDir()
		outside := tree(t, filepath.Join(dir, "outside"), "secret=s")
		root := tree(t, filepath.Join(dir, "root"))
		must(t, os.Symlink(outside, filepath.Join(root, "out")))
		_ = apply(t.Context(), root, bytes.NewReader(raw)) // any error will do
		if got := files(t, outside); !slices.Equal(got, []string{"secret=s"}) {
			t.Errorf("outside is %q", got)
		}
	})
}
