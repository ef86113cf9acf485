// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Missing looks for the files that the configuration names and says which are not there, or
// are not what they have to be. A daemon starts without most of them, and then cannot run pods.
func (c *Config) Missing() []*Error {
	var out []*Error
	note := func(path string, err error) {
		if err != nil {
			out = append(out, c.Fault(path, err.Error()))
		}
	}
	_, err := c.FindShim()
	note("runtime.shim", err)
	for _, name := range slices.Sorted(maps.Keys(c.Runtime.Handlers)) {
		h, key := c.Runtime.Handlers[name], "runtime.handlers."+name
		if h.Type == TypeSandflow {
			note(key+".binary", program(h.Binary))
			continue
		}
		note(key+".type", program(shimOf(h.Type)))
		if binary, ok := h.Options["BinaryName"].(string); ok && binary != "" {
			note(key+".options", program(binary))
		}
	}
	note("cni.conf_dir", networksIn(c.CNI.ConfDir))
	note("cni.bin_dirs", someDirectory(c.CNI.BinDirs))
	if c.Containerd.Address != "" {
		_, err := os.Stat(strings.TrimPrefix(c.Containerd.Address, "unix://"))
		note("containerd.address", err)
	}
	return out
}

// FindShim turns the configured shim into an absolute path: a bare name is
// looked for beside this program first, so that a build runs with its own shim.
func (c *Config) FindShim() (string, error) {
	name := c.Runtime.Shim
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if executable(beside) == nil {
			return beside, nil
		}
	}
	found, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("there is no program %q beside the daemon or in PATH", name)
	}
	return filepath.Abs(found)
}

// shimOf is the program of a containerd runtime: io.containerd.runc.v2 is containerd-shim-runc-v2.
func shimOf(kind string) string {
	if strings.Contains(kind, "/") {
		return kind
	}
	parts := strings.Split(kind, ".")
	if len(parts) < 2 {
		return kind
	}
	return "containerd-shim-" + strings.Join(parts[len(parts)-2:], "-")
}

func program(name string) error {
	if strings.Contains(name, "/") {
		return executable(name)
	}
	if _, err := exec.LookPath(name); err != nil {
		return fmt.Errorf("there is no program %q in PATH", name)
	}
	return nil
}

func executable(path string) error {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case st.IsDir() || st.Mode()&0o111 == 0:
		return fmt.Errorf("%s is not a program", path)
	default:
		return nil
	}
}

func networksIn(dir string) error {
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("there is no network configuration: %w", err)
	}
	for _, pattern := range []string{"*.conf", "*.conflist", "*.json"} {
		if found, err := filepath.Glob(filepath.Join(dir, pattern)); err != nil || len(found) > 0 {
			return err
		}
	}
	return fmt.Errorf("there is no network configuration in %s", dir)
}

func someDirectory(dirs []string) error {
	var errs []error
	for _, dir := range dirs {
		st, err := os.Stat(dir)
		if err == nil && st.IsDir() {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("%s is not a directory", dir)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
