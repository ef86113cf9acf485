// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package users

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func tree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	return root
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Case 91: files of an image that are made to hurt.
func TestHostileFiles(t *testing.T) {
	sparse := func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o644), os.Truncate(p, 2<<30)) }
	for name, c := range map[string]struct {
		make func(string) error
		want string
	}{
		"2 GiB sparse": {sparse, "above the limit"},
		"long line":    {func(p string) error { return os.WriteFile(p, []byte(strings.Repeat("x", 2<<20)), 0o644) }, "limit"},
		"FIFO":         {func(p string) error { return unix.Mkfifo(p, 0o644) }, "not a regular file"},
		"directory":    {func(p string) error { return os.Mkdir(p, 0o755) }, "not a regular file"},
		"link out":     {func(p string) error { return os.Symlink("/proc/self/mem", p) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := tree(t)
			must(t, c.make(filepath.Join(root, "etc/passwd")))
			for _, image := range []string{"web", "33"} {
				_, err := Resolve(root, Who{Image: image})
				if c.want == "" {
					continue // the link leads nowhere in the image: no file
				}
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("user %s: got %v, want an error with %q", image, err, c.want)
				}
			}
		})
	}
}

func TestTooManyGroups(t *testing.T) {
	root := tree(t)
	must(t, os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("web:x:33:33::/:\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(root, "etc/group"), []byte(strings.Repeat("g:x:1:web\n", maxGroups+1)), 0o644))
	if _, err := Resolve(root, Who{Image: "web"}); err == nil || !strings.Contains(err.Error(), "limit of 65536 groups") {
		t.Error(err)
	}
}

// Case 93: a link in the image is followed inside of it.
func TestLinksStayInside(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "real/etc"), 0o755))
	must(t, os.Symlink("/real/etc", filepath.Join(root, "etc")))
	must(t, os.WriteFile(filepath.Join(root, "real/etc/passwd"), []byte("web:x:33:34::/:\n"), 0o644))
	u, err := Resolve(root, Who{Name: "web"})
	must(t, err)
	if u.UID != 33 || u.GID != 34 {
		t.Errorf("%+v", u)
	}
}

func FuzzResolve(f *testing.F) {
	f.Add("root:x:0:0::/:\nweb:x:33:34", "extra:x:5:web,root", "web:extra")
	f.Add("a:b", ":::::", "1:2")
	f.Fuzz(func(t *testing.T, passwd, group, user string) {
		root := tree(t)
		must(t, os.WriteFile(filepath.Join(root, "etc/passwd"), []byte(passwd), 0o644))
		must(t, os.WriteFile(filepath.Join(root, "etc/group"), []byte(group), 0o644))
		u, err := Resolve(root, Who{Image: user})
		if err == nil && len(u.Groups) > maxGroups {
			t.Error("too many groups")
		}
	})
}
