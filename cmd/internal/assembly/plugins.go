// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"bytes"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	toml "github.com/pelletier/go-toml/v2"

	"github.com/sandflow-cri/sandflow/cmd/internal/config"
)

// checkPlugins refuses settings of plugins that are not built in, and keys that
// a plugin does not have: containerd itself only warns of either.
func checkPlugins(c *config.Config) error {
	known := map[string]plugin.Registration{}
	for _, r := range registry.Graph(func(*plugin.Registration) bool { return false }) {
		known[r.URI()] = r
	}
	var errs []error
	for _, uri := range slices.Sorted(maps.Keys(c.Containerd.Plugins)) {
		path := "containerd.plugins." + strconv.Quote(uri)
		r, ok := known[uri]
		if !ok {
			errs = append(errs, c.Fault(path, "there is no such plugin in this build", configurable(known)...))
			continue
		}
		for _, fault := range checkTable(r.Config, c.Containerd.Plugins[uri]) {
			errs = append(errs, c.Fault(strings.TrimSuffix(path+"."+fault.key, "."), fault.msg))
		}
	}
	return errors.Join(errs...)
}

func configurable(known map[string]plugin.Registration) []string {
	var out []string
	for uri, r := range known {
		if r.Config != nil {
			out = append(out, uri)
		}
	}
	slices.Sort(out)
	return out
}

type tableFault struct{ key, msg string }

// checkTable decodes a table strictly into a fresh value of the plugin's type.
func checkTable(settings, table any) []tableFault {
	if settings == nil {
		return []tableFault{{"", "this plugin has no settings"}}
	}
	text, err := toml.Marshal(table)
	if err != nil {
		return []tableFault{{"", err.Error()}}
	}
	into := reflect.New(reflect.Indirect(reflect.ValueOf(settings)).Type()).Interface()
	d := toml.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err = d.Decode(into)
	var missing *toml.StrictMissingError
	var bad *toml.DecodeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &missing):
		var out []tableFault
		for _, e := range missing.Errors {
			out = append(out, tableFault{strings.Join(e.Key(), "."), "unknown key"})
		}
		return out
	case errors.As(err, &bad):
		return []tableFault{{strings.Join(bad.Key(), "."), strings.TrimPrefix(bad.Error(), "toml: ")}}
	default:
		return []tableFault{{"", err.Error()}}
	}
}
