// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// netResult is what one network gave.
type netResult struct {
	Network string          `json:"network"`
	IfName  string          `json:"ifName"`
	Result  *current.Result `json:"result"`
}

// newNetResult converts a result of any version. withIPs, if not nil, is an
// earlier result of the same chain, used if the last one has no address.
func newNetResult(list *libcni.NetworkConfigList, ifName string, res types.Result, withIPs []byte) (netResult, error) {
	r := netResult{Network: list.Name, IfName: ifName}
	if res == nil {
		return r, fmt.Errorf("the plugins gave no result: %w", ErrNoAddress)
	}
	var err error
	if r.Result, err = current.NewResultFromResult(res); err != nil {
		return r, fmt.Errorf("read the result: %w", err)
	}
	if len(r.Result.IPs) == 0 && withIPs != nil {
		earlier, err := parseResult(withIPs, list.CNIVersion)
		if err != nil {
			return r, fmt.Errorf("read the result: %w", err)
		}
		r.Result.IPs, r.Result.Interfaces = earlier.IPs, earlier.Interfaces
	}
	return r, nil
}

// parseResult reads a raw result; one without a version has the configuration's.
func parseResult(raw []byte, confVersion string) (*current.Result, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, err
	}
	var version string
	if v, ok := fields["cniVersion"]; ok {
		if err := json.Unmarshal(v, &version); err != nil {
			return nil, err
		}
	}
	if version == "" && fields != nil {
		version = confVersion
		fields["cniVersion"] = []byte(strconv.Quote(version))
	}
	full, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	res, err := create.Create(version, full)
	if err != nil {
		return nil, err
	}
	return current.NewResultFromResult(res)
}

// checkRaw refuses a null inside of a list: libcni's conversions would panic.
func checkRaw(raw []byte) error {
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return fmt.Errorf("its output is not JSON: %w", err)
	}
	if hasNull(v) {
		return errors.New("its output has a null in a list")
	}
	return nil
}

func hasNull(v any) bool {
	switch v := v.(type) {
	case []any:
		return slices.ContainsFunc(v, func(e any) bool { return e == nil || hasNull(e) })
	case map[string]any:
		for _, e := range v {
			if hasNull(e) {
				return true
			}
		}
	}
	return false
}

// hasIPs looks into a raw result of any version for addresses.
func hasIPs(raw []byte) bool {
	var r struct {
		IPs []json.RawMessage `json:"ips"`
		IP4 json.RawMessage   `json:"ip4"`
		IP6 json.RawMessage   `json:"ip6"`
	}
	return json.Unmarshal(raw, &r) == nil && (len(r.IPs) > 0 || r.IP4 != nil || r.IP6 != nil)
}

// addresses are the pod's addresses in one result, in the plugin's order.
// Those that the plugin put on an interface of the node are not the pod's.
func addresses(r *current.Result) []string {
	var pods, all []string
	for _, ip := range r.IPs {
		if ip == nil || len(ip.Address.IP) == 0 {
			continue
		}
		addr := ip.Address.IP.String()
		all = append(all, addr)
		if !onNode(r, ip.Interface) {
			pods = append(pods, addr)
		}
	}
	if len(pods) == 0 {
		return all // a plugin that does not tell its interfaces apart
	}
	return pods
}

func onNode(r *current.Result, index *int) bool {
	if index == nil || *index < 0 || *index >= len(r.Interfaces) || r.Interfaces[*index] == nil {
		return false
	}
	return r.Interfaces[*index].Sandbox == ""
}

// collect joins the results of all networks.
func (n *Network) collect(a Attachment, results []netResult) (Result, error) {
	r := Result{Saved: a.Saved}
	for _, nr := range results {
		for _, ip := range addresses(nr.Result) {
			if !slices.Contains(r.IPs, ip) {
				r.IPs = append(r.IPs, ip)
			}
		}
	}
	if len(r.IPs) == 0 {
		return Result{}, fmt.Errorf("attach %s: %w", a, ErrNoAddress)
	}
	prefer(r.IPs, n.cfg.IPPreference)
	raw, err := json.Marshal(results)
	if err != nil {
		return Result{}, fmt.Errorf("attach %s: encode the results: %w", a, err)
	}
	r.Raw = raw
	return r, nil
}

// prefer moves the addresses of the preferred family to the front and keeps the order otherwise.
func prefer(ips []string, family string) {
	if family == "" {
		return
	}
	slices.SortStableFunc(ips, func(x, y string) int {
		return cmp.Compare(rank(x, family), rank(y, family))
	})
}

func rank(ip, family string) int {
	if is4 := net.ParseIP(ip).To4() != nil; is4 == (family == PreferIPv4) {
		return 0
	}
	return 1
}
