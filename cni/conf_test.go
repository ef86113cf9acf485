// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/cni/cnitest"
)

func TestMain(m *testing.M) { cnitest.Main(m) }

// lab is a configuration directory and plugins, all in temporary directories.
type lab struct {
	t         *testing.T
	conf, bin string
	cfg       cni.Config
}

func newLab(t *testing.T, change ...func(*cni.Config)) *lab {
	t.Helper()
	dir := t.TempDir()
	l := &lab{t: t, conf: filepath.Join(dir, "net.d"), bin: filepath.Join(dir, "bin")}
	for _, d := range []string{l.conf, l.bin} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l.cfg = cni.Config{ConfDir: l.conf, BinDirs: []string{l.bin}, CacheDir: filepath.Join(dir, "cache"), MaxConf: 1}
	for _, c := range change {
		c(&l.cfg)
	}
	return l
}

func (l *lab) net() *cni.Network {
	l.t.Helper()
	n, err := cni.New(l.cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(n.Close)
	return n
}

func (l *lab) write(file, text string) {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.conf, file), []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// list is a configuration list whose plugins have no settings.
func list(name, version string, plugins ...string) string {
	var p []string
	for _, t := range plugins {
		p = append(p, fmt.Sprintf(`{"type":%q,"capabilities":{"portMappings":true,"bandwidth":true,"dns":true,"ipRanges":true,"aliases":true,"cgroupPath":true}}`, t))
	}
	return fmt.Sprintf(`{"name":%q,"cniVersion":%q,"plugins":[%s]}`, name, version, strings.Join(p, ","))
}

func names(s cni.Status) string {
	var n []string
	for _, l := range s.Networks {
		n = append(n, l.Name)
	}
	return strings.Join(n, " ")
}

func why(t *testing.T, s cni.Status, file string) string {
	t.Helper()
	for _, k := range s.Skipped {
		if k.File == file {
			return k.Why
		}
	}
	t.Fatalf("%s is not listed as skipped: %+v", file, s.Skipped)
	return ""
}

func wantIn(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q does not say %q", text, p)
		}
	}
}

// TestWhichConfigWins is CASES 78.
func TestWhichConfigWins(t *testing.T) {
	for _, c := range []struct {
		max  int
		want string
	}{{1, "a"}, {2, "a b"}, {0, "a b c"}} {
		t.Run(fmt.Sprint("max ", c.max), func(t *testing.T) {
			l := newLab(t, func(cfg *cni.Config) { cfg.MaxConf = c.max })
			cnitest.NewFake(t, l.bin, "fake")
			l.write("00-bad.conflist", `{"name": "bad", "plugins": [`)
			l.write("01-missing.conflist", list("missing", "1.0.0", "fake", "nosuchplugin"))
			l.write("02-future.conflist", list("future", "9.0.0", "fake"))
			l.write("03-noname.conflist", `{"cniVersion":"1.0.0","plugins":[{"type":"fake"}]}`)
			l.write("04-empty.conflist", `{"name":"empty","plugins":[]}`)
			l.write(".05-hidden.conflist", list("hidden", "1.0.0", "fake"))
			l.write("06-backup.conflist~", list("backup", "1.0.0", "fake"))
			l.write("07-null.conf", `null`)
			l.write("10-a.conflist", list("a", "1.0.0", "fake"))
			l.write("11-again.conflist", list("a", "1.0.0", "fake"))
			l.write("20-b.conf", `{"name":"b","cniVersion":"0.4.0","type":"fake"}`)
			l.write("30-c.json", list("c", "0.3.1", "fake"))

			s := l.net().Status(t.Context())
			if !s.Ready || s.Reason != "" || names(s) != c.want {
				t.Fatalf("ready %v (%s), networks %q, want %q", s.Ready, s.Message, names(s), c.want)
			}
			if got := s.Networks[0]; got.File != filepath.Join(l.conf, "10-a.conflist") || got.CNIVersion != "1.0.0" || got.Plugins[0] != "fake" {
				t.Errorf("first network: %+v", got)
			}
			wantIn(t, why(t, s, "00-bad.conflist"), "JSON")
			wantIn(t, why(t, s, "01-missing.conflist"), "nosuchplugin", l.bin)
			wantIn(t, why(t, s, "02-future.conflist"), "9.0.0", "newer")
			wantIn(t, why(t, s, "03-noname.conflist"), "name")
			wantIn(t, why(t, s, "04-empty.conflist"), "no plugins")
			wantIn(t, why(t, s, ".05-hidden.conflist"), "hidden")
			wantIn(t, why(t, s, "06-backup.conflist~"), ".conflist")
			why(t, s, "07-null.conf")
			wantIn(t, why(t, s, "11-again.conflist"), "10-a.conflist")
			if c.max == 1 {
				wantIn(t, why(t, s, "20-b.conf"), "at most 1")
			}
		})
	}
}

// TestDirectoryChanges is the directory's life as Status sees it, without Run.
func TestDirectoryChanges(t *testing.T) {
	l := newLab(t)
	n := l.net()
	expect := func(want string, says ...string) {
		t.Helper()
		s := n.Status(t.Context())
		if names(s) != want || s.Ready != (want != "") {
			t.Fatalf("networks %q, ready %v, want %q: %s", names(s), s.Ready, want, s.Message)
		}
		wantIn(t, s.Message, says...)
	}
	remove := func() {
		t.Helper()
		if err := os.RemoveAll(l.conf); err != nil {
			t.Fatal(err)
		}
	}
	remake := func() {
		t.Helper()
		if err := os.Mkdir(l.conf, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	expect("", "no CNI configuration", l.conf)
	remove()
	expect("", "no CNI configuration", l.conf)
	remake()
	l.write("10-a.conflist", list("a", "1.0.0", "late"))
	expect("", "10-a.conflist", "plugin late not found in "+l.bin)
	cnitest.NewFake(t, l.bin, "late")
	expect("a")
	l.write("10-a.conflist", list("b", "1.0.0", "late"))
	expect("b")
	l.write("10-a.conflist", "{")
	expect("", "10-a.conflist", "JSON")
	remove()
	remake()
	l.write("5.conf", `{"name":"c","type":"late"}`)
	expect("c")
	other := l.conf + "-other"
	if err := os.Rename(l.conf, other); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, l.conf); err != nil {
		t.Fatal(err)
	}
	expect("c")
	if err := os.Remove(filepath.Join(l.bin, "late")); err != nil {
		t.Fatal(err)
	}
	expect("", "plugin late not found")
}

// TestPluginsBesideTheList is CNI 1.1.0's directory of plugins with the network's name.
func TestPluginsBesideTheList(t *testing.T) {
	l := newLab(t)
	first, second := cnitest.NewFake(t, l.bin, "first"), cnitest.NewFake(t, l.bin, "second")
	l.write("10-a.conflist", list("a", "1.1.0", "first"))
	if err := os.Mkdir(filepath.Join(l.conf, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	n := l.net()
	if got := n.Status(t.Context()).Networks[0].Plugins; len(got) != 1 {
		t.Fatalf("plugins %v", got)
	}
	l.write("a/50-more.conf", `{"type":"second"}`)
	at := l.attach(n, "p1")
	if err := os.RemoveAll(l.conf); err != nil {
		t.Fatal(err)
	}
	if err := n.Detach(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*cnitest.Fake{first, second} {
		wantIn(t, f.Verbs(t), "ADD", "DEL")
	}
}

// attach attaches a pod and returns what Detach needs.
func (l *lab) attach(n *cni.Network, id string) cni.Attachment {
	l.t.Helper()
	a := cni.Attachment{ID: id, PodName: "web", PodNamespace: "default", PodUID: "u1"}
	res, err := n.Attach(l.t.Context(), a)
	if err != nil {
		l.t.Fatal(err)
	}
	return cni.Attachment{ID: id, Saved: res.Saved}
}

// TestRunNotices changes the directory behind a watching Run, which must not
// need a Status to see it: the log tells.
func TestRunNotices(t *testing.T) {
	l := newLab(t)
	f := cnitest.NewFake(t, l.bin, "fake")
	if err := os.RemoveAll(l.conf); err != nil {
		t.Fatal(err)
	}
	n := l.net()
	logged, ctx := logTo(t)
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()

	logged.wait("No CNI network is configured")
	if err := os.Mkdir(l.conf, 0o755); err != nil {
		t.Fatal(err)
	}
	l.write("10-a.conflist", list("a", "1.0.0", f.Name))
	logged.wait(`network="a"`)
	l.write("10-a.conflist", list("b", "1.0.0", f.Name))
	logged.wait(`network="b"`)
	if err := os.RemoveAll(l.conf); err != nil {
		t.Fatal(err)
	}
	logged.wait("No CNI network is configured")
	if err := os.Mkdir(l.conf, 0o755); err != nil {
		t.Fatal(err)
	}
	l.write("10-a.conflist", list("c", "1.0.0", f.Name))
	l.write("09-bad.conflist", "{")
	logged.wait(`network="c"`)
	logged.wait(`file="09-bad.conflist"`)
	n.Close()
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Run has not ended after Close")
	}
}
