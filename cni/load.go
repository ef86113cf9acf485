// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// loaded is an immutable picture of the configuration directory.
type loaded struct {
	nets    []network
	skipped []Skipped
	dirErr  error // the directory cannot be read

	stamp   string            // fingerprint of the directory when it was read
	plugins map[string]string // plugins that files name → path, "" if missing
}

// network is one configuration in use.
type network struct {
	list *libcni.NetworkConfigList
	file string // base name
	// portless is the frozen list for pods without host ports.
	portless []byte
}

func (w network) plugins() []string {
	var types []string
	for _, p := range w.list.Plugins {
		types = append(types, p.Network.Type)
	}
	return types
}

// load reads the directory. The first valid file in lexical order wins; what
// is not used is kept with the reason.
func load(c Config, stamp string) *loaded {
	l := &loaded{stamp: stamp, plugins: map[string]string{}}
	entries, err := os.ReadDir(c.ConfDir) // sorted by name
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		l.dirErr = err
		return l
	}
	byName := map[string]string{}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		file := e.Name()
		w, err := l.consider(c, file, byName)
		if err != nil {
			l.skipped = append(l.skipped, Skipped{File: file, Why: err.Error()})
			continue
		}
		byName[w.list.Name] = file
		l.nets = append(l.nets, w)
	}
	return l
}

// consider reads one file; the error says why it is not used.
func (l *loaded) consider(c Config, file string, byName map[string]string) (network, error) {
	if strings.HasPrefix(file, ".") {
		return network{}, errors.New("hidden file")
	}
	switch filepath.Ext(file) {
	case ".conflist", ".conf", ".json":
	default:
		return network{}, errors.New("not a .conflist, .conf or .json file")
	}
	list, err := readConf(filepath.Join(c.ConfDir, file))
	if err != nil {
		return network{}, err
	}
	w := network{list: list, file: file}
	if missing := l.find(w.plugins(), c.BinDirs); len(missing) > 0 {
		return network{}, fmt.Errorf("plugin %s not found in %s", strings.Join(missing, ", "), strings.Join(c.BinDirs, ":"))
	}
	if first, taken := byName[list.Name]; taken {
		return network{}, fmt.Errorf("network %q is already configured by %s", list.Name, first)
	}
	if c.MaxConf > 0 && len(l.nets) >= c.MaxConf {
		return network{}, fmt.Errorf("not needed: enough networks are configured by earlier files, at most %d used", c.MaxConf)
	}
	if w.portless, err = portless(list); err != nil {
		return network{}, err
	}
	return w, nil
}

// find looks the plugins up, remembers where they are, and returns the missing ones.
func (l *loaded) find(plugins, dirs []string) []string {
	var missing []string
	for _, p := range plugins {
		path, err := invoke.FindInPath(p, dirs)
		if err != nil {
			path = ""
			missing = append(missing, p)
		}
		l.plugins[p] = path
	}
	return missing
}

// fresh tells whether the picture still shows what is on disk.
func (l *loaded) fresh(stamp string, dirs []string) bool {
	if l.stamp != stamp {
		return false
	}
	for p, was := range l.plugins {
		path, err := invoke.FindInPath(p, dirs)
		if err != nil {
			path = ""
		}
		if path != was {
			return false
		}
	}
	return true
}

// fingerprint changes whenever a file of the directory, or of a directory
// just below it (plugins beside a list are read from there), is changed,
// made, removed or replaced.
func fingerprint(dir string) string {
	var b strings.Builder
	stampDir(&b, dir, 1)
	return b.String()
}

func stampDir(b *strings.Builder, dir string, depth int) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		fmt.Fprintf(b, "%s: %v\n", dir, err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		var st unix.Stat_t // of the file that a link points to: a mounted ConfigMap is links
		if err := unix.Stat(path, &st); err != nil {
			fmt.Fprintf(b, "%s: %v\n", path, err)
			continue
		}
		fmt.Fprintf(b, "%q %d %d %d %d %d %d\n", path, st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano(), st.Mode)
		if depth > 0 && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			stampDir(b, path, depth-1)
		}
	}
}

// log says what was chosen and what was not, if that is news.
func (l *loaded) log(log klog.Logger, before *loaded) {
	if before != nil && slices.Equal(l.describe(), before.describe()) {
		return
	}
	for i, w := range l.nets {
		log.Info("Using CNI network", "network", w.list.Name, "file", w.file, "order", i+1, "plugins", w.plugins(), "version", w.list.CNIVersion)
	}
	for _, s := range l.skipped {
		log.Info("Not using CNI configuration file", "file", s.File, "why", s.Why)
	}
	if l.dirErr != nil {
		log.Error(l.dirErr, "Cannot read CNI configurations")
	} else if len(l.nets) == 0 {
		log.Info("No CNI network is configured: pods with a network of their own cannot start")
	}
}

func (l *loaded) describe() []string {
	var d []string
	for _, w := range l.nets {
		d = append(d, w.file+"="+string(w.list.Bytes))
	}
	for _, s := range l.skipped {
		d = append(d, s.File+": "+s.Why)
	}
	return append(d, fmt.Sprint(l.dirErr))
}
