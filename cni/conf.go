// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
)

// maxConfSize bounds a configuration file, in bytes.
const maxConfSize = 1 << 20

// readConf reads a list, or a single plugin's configuration as a list of one.
// What it returns is complete in itself: plugins that the list takes from a
// directory beside it (CNI 1.1.0, loadOnlyInlinedPlugins) are inlined.
func readConf(path string) (*libcni.NetworkConfigList, error) {
	data, err := readBounded(path)
	if err != nil {
		return nil, err
	}
	list, err := parseConf(data)
	if err != nil {
		return nil, err
	}
	if !list.LoadOnlyInlinedPlugins {
		beside, err := libcni.NetworkPluginConfsFromFiles(filepath.Dir(path), list.Name)
		if err != nil {
			return nil, err
		}
		list.Plugins = append(list.Plugins, beside...)
	}
	if len(list.Plugins) == 0 {
		return nil, errors.New("it names no plugin")
	}
	if err := freeze(list); err != nil {
		return nil, err
	}
	return list, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxConfSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxConfSize {
		return nil, fmt.Errorf("larger than %d bytes", maxConfSize)
	}
	return data, nil
}

// parseConf decodes and checks a configuration of either form.
func parseConf(data []byte) (*libcni.NetworkConfigList, error) {
	var form struct {
		Name    string          `json:"name"`
		Type    string          `json:"type"`
		Plugins json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(data, &form); err != nil {
		return nil, fmt.Errorf("not valid JSON for a network: %w", err)
	}
	list, err := decodeConf(data, form.Type != "" && form.Plugins == nil)
	if err != nil {
		return nil, err
	}
	if err := utils.ValidateNetworkName(list.Name); err != nil {
		return nil, fmt.Errorf("network name %q is not valid: %w", list.Name, err)
	}
	if list.CNIVersion == "" {
		list.CNIVersion = "0.1.0" // the specification's meaning of an absent version
	}
	newer, err := version.GreaterThan(list.CNIVersion, version.Current())
	if err != nil {
		return nil, fmt.Errorf("CNI version %q is not valid: %w", list.CNIVersion, err)
	}
	if newer {
		return nil, fmt.Errorf("CNI version %s is newer than %s, the newest known", list.CNIVersion, version.Current())
	}
	return list, nil
}

func decodeConf(data []byte, single bool) (*libcni.NetworkConfigList, error) {
	if !single {
		return libcni.NetworkConfFromBytes(data)
	}
	one, err := libcni.NetworkPluginConfFromBytes(data)
	if err != nil {
		return nil, err
	}
	// A single plugin's configuration has no directory of more plugins beside it.
	return &libcni.NetworkConfigList{
		Name:                   one.Network.Name,
		CNIVersion:             one.Network.CNIVersion,
		LoadOnlyInlinedPlugins: true,
		Plugins:                []*libcni.PluginConfig{one},
	}, nil
}

// freeze writes the list's Bytes so that thaw gives the same list.
func freeze(list *libcni.NetworkConfigList) error {
	plugins := make([]json.RawMessage, 0, len(list.Plugins))
	for _, p := range list.Plugins {
		plugins = append(plugins, p.Bytes)
	}
	data, err := json.Marshal(map[string]any{
		"name":                   list.Name,
		"cniVersion":             list.CNIVersion,
		"disableCheck":           list.DisableCheck,
		"disableGC":              list.DisableGC,
		"loadOnlyInlinedPlugins": true,
		"plugins":                plugins,
	})
	if err != nil {
		return fmt.Errorf("encode network %q: %w", list.Name, err)
	}
	list.LoadOnlyInlinedPlugins = true
	list.Bytes = data
	return nil
}

// thaw reads what freeze wrote.
func thaw(data []byte) (*libcni.NetworkConfigList, error) {
	list, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		return nil, fmt.Errorf("decode the saved network configuration: %w", err)
	}
	return list, nil
}
