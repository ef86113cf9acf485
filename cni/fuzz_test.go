// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"maps"
	"testing"

	"github.com/containernetworking/cni/libcni"
)

// FuzzConf: whatever is in the directory, reading it neither panics nor gives
// a list that would not survive being saved.
func FuzzConf(f *testing.F) {
	for _, s := range []string{
		`{"name":"a","cniVersion":"1.0.0","plugins":[{"type":"bridge","capabilities":{"portMappings":true}}]}`,
		`{"name":"a","cniVersion":"0.4.0","type":"bridge"}`,
		`{"name":"a","cniVersions":["1.0.0","1.1.0"],"disableGC":"true","plugins":[{"type":"x","ipam":{"type":"y"}}]}`,
		`{"name":"a","type":"x","plugins":null}`, `null`, `[]`, `{"name":7}`, `{"name":"../x","type":"y"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := parseConf(data)
		if err != nil || len(list.Plugins) == 0 {
			return
		}
		if err := freeze(list); err != nil {
			t.Fatalf("accepted, but cannot be saved: %v", err)
		}
		again, err := thaw(list.Bytes)
		if err != nil {
			t.Fatalf("saved, but cannot be read: %v", err)
		}
		if again.Name != list.Name || again.CNIVersion != list.CNIVersion || len(again.Plugins) != len(list.Plugins) {
			t.Fatalf("saved %+v, read %+v", list, again)
		}
		for i, p := range again.Plugins {
			if p.Network.Type != list.Plugins[i].Network.Type || !maps.Equal(p.Network.Capabilities, list.Plugins[i].Network.Capabilities) {
				t.Fatalf("saved %s, read %s", list.Plugins[i].Bytes, p.Bytes)
			}
		}
	})
}

// FuzzResult: whatever a plugin answers, reading it does not panic.
func FuzzResult(f *testing.F) {
	for _, s := range []string{
		`{"ips":[{"address":"10.0.0.2/24","interface":0}],"interfaces":[{"name":"eth0","sandbox":"/x"}]}`,
		`{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}`,
		`{"cniVersion":"0.4.0","ips":[{"version":"6","address":"fd00::2/64"}],"interfaces":[null]}`,
		`null`, `[]`, `{}`, `{"ips":[null]}`, `{"cniVersion":7}`, `{"ips":[{"interface":-1}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(_ *testing.T, data []byte) {
		hasIPs(data)
		if checkRaw(data) != nil {
			return
		}
		for _, v := range []string{"0.2.0", "0.4.0", "1.0.0"} {
			res, err := parseResult(data, v)
			if err != nil {
				continue
			}
			r, err := newNetResult(&libcni.NetworkConfigList{Name: "a", CNIVersion: v}, "eth0", res, data)
			if err != nil {
				continue
			}
			addresses(r.Result)
		}
	})
}
