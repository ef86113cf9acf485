// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
)

// Overrides are settings of the command line; empty ones do not count.
type Overrides struct {
	Root, State, Socket, AdminSocket string
}

// Default is the built-in configuration.
func Default() *Config {
	c, err := parseOver(&Config{}, "", defaultText)
	if err != nil {
		panic(fmt.Sprintf("the built-in configuration is broken: %v", err))
	}
	c.origin = origin{}
	return c
}

// Load reads file over the default and checks the result. An empty name means
// DefaultPath if that exists, else the default alone. The error joins every
// fault that was found, each an *Error.
func Load(file string, o Overrides) (*Config, error) {
	c, err := read(file)
	if err != nil {
		return nil, err
	}
	c.apply(o)
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}

// Parse lays text over the default and checks the result; file is its name, for errors.
func Parse(file string, text []byte) (*Config, error) {
	c, err := parseOver(Default(), file, text)
	if err != nil {
		return nil, err
	}
	c.apply(Overrides{})
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}

func read(file string) (*Config, error) {
	optional := file == ""
	if optional {
		file = DefaultPath
	}
	text, err := os.ReadFile(file)
	if optional && errors.Is(err, fs.ErrNotExist) {
		return Default(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return parseOver(Default(), file, text)
}

func parseOver(base *Config, file string, text []byte) (*Config, error) {
	tree, o, err := parse(file, text)
	if err != nil {
		return nil, err
	}
	d := decoder{origin: o}
	d.decode("", tree, reflect.ValueOf(base).Elem())
	if err := d.err(); err != nil {
		return nil, err
	}
	base.origin = o
	return base, nil
}

// apply lays the overrides over c, and lets sockets that nobody has set follow State.
func (c *Config) apply(o Overrides) {
	for _, s := range []struct {
		field *string
		value string
	}{{&c.Root, o.Root}, {&c.State, o.State}} {
		if s.value != "" {
			*s.field = s.value
		}
	}
	for _, s := range []struct {
		field       *string
		path, value string
	}{
		{&c.CRI.Socket, "cri.socket", o.Socket},
		{&c.Admin.Socket, "admin.socket", o.AdminSocket},
		{&c.Containerd.Socket, "containerd.socket", ""},
	} {
		switch {
		case s.value != "":
			*s.field = s.value
		case !c.origin.set(s.path):
			*s.field = filepath.Join(c.State, filepath.Base(*s.field))
		}
	}
}
