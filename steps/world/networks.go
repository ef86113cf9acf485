// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// defaultAddressDir is where host-local keeps its leases if it is not told.
const defaultAddressDir = "/var/lib/cni/networks"

// networks is what the configurations say of where plugins leave things.
type networks struct {
	names     map[string]bool
	bridges   map[string]bool
	addresses map[string]bool // directories, one a network
}

// readNetworks reads the configurations in use, and those that pods were attached with.
func (l *look) readNetworks() error {
	l.networks = networks{names: map[string]bool{}, bridges: map[string]bool{}, addresses: map[string]bool{}}
	for _, dir := range l.AddressDirs {
		found, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			return err
		}
		for _, d := range found {
			l.networks.addresses[d] = true
		}
	}
	var files []string
	for _, pattern := range []string{"*.conf", "*.conflist", "*.json"} {
		if l.ConfDir == "" {
			break
		}
		found, err := filepath.Glob(filepath.Join(l.ConfDir, pattern))
		if err != nil {
			return err
		}
		files = append(files, found...)
	}
	if l.Root != "" {
		saved, err := filepath.Glob(filepath.Join(l.Root, "networks", "*.json"))
		if err != nil {
			return err
		}
		files = append(files, saved...)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue // gone meanwhile
		}
		var v any
		if json.Unmarshal(raw, &v) == nil { // whoever uses a bad one complains
			l.networks.read(v, "")
		}
	}
	return nil
}

// read looks through a configuration of any shape: a list, a plugin's, or what
// an attachment keeps, in which they are somewhere below (also as text).
func (n *networks) read(v any, name string) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			n.read(e, name)
		}
	case map[string]any:
		text := func(key string) string { s, _ := v[key].(string); return s }
		if _, list := v["plugins"]; list || text("type") != "" {
			if own := text("name"); own != "" {
				name = own
				n.names[name] = true
			}
		}
		switch text("type") {
		case "bridge":
			bridge := text("bridge")
			if bridge == "" {
				bridge = "cni0"
			}
			n.bridges[bridge] = true
		case "host-local":
			dir := text("dataDir")
			if dir == "" {
				dir = defaultAddressDir
			}
			n.addresses[filepath.Join(dir, name)] = true
		}
		for _, e := range v {
			n.read(e, name)
		}
	}
}

// addresses are host-local's leases: a file for each, with the pod's ID in it.
func addresses(_ context.Context, l *look) error {
	var errs []error
	for dir := range l.networks.addresses {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("list address leases: %w", err))
			continue
		}
		for _, e := range entries {
			if e.IsDir() || e.Name() == "lock" || strings.HasPrefix(e.Name(), "last_reserved_ip") {
				continue
			}
			raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				continue // released meanwhile
			}
			l.add(Addresses, e.Name(), idIn(string(raw)))
		}
	}
	return errors.Join(errs...)
}
