// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"strings"

	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/utils"
)

// The bridge plugin (1.10) removes the masquerade rules of a pod only in the DEL that finds
// the pod's link, and it removes the link first. If it is killed in between, or the network
// namespace has gone before, no later DEL removes them; so we do, by what it says of them.

// Masquerade are the iptables rules by which one pod's traffic is masqueraded.
type Masquerade struct {
	Network, ID string
	// Ours says that the network is configured, and to be collected (see GC).
	Ours bool

	sources []*net.IPNet
}

// masqueraded is the comment on each of the rules, as iptables prints it.
var masqueraded = regexp.MustCompile(`--comment "name: \\"([^"\\]+)\\" id: \\"([^"\\]+)\\""`)

// source is the pod's address in the rule that leads to its own.
var source = regexp.MustCompile(`(?:^| )-s ([0-9a-f.:]+)(?:/\d+)?(?: |$)`)

// Masquerades lists the pods that have such rules. Where iptables is not installed there are none.
func (n *Network) Masquerades(ctx context.Context) ([]Masquerade, error) {
	ours := map[string]bool{}
	for _, w := range n.current(ctx).nets {
		ours[w.list.Name] = !w.list.DisableGC
	}
	var found []Masquerade
	var errs []error
	for program, none := range map[string]string{"iptables": "0.0.0.0", "ip6tables": "::"} {
		out, err := exec.CommandContext(ctx, program, "-w", "-t", "nat", "-S").Output() //nolint:gosec // one of the two
		if errors.Is(err, exec.ErrNotFound) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("list the rules of %s: %w", program, err))
			continue
		}
		found = addMasquerades(found, string(out), none)
	}
	for i, m := range found {
		found[i].Ours = ours[m.Network]
	}
	return found, errors.Join(errs...)
}

// addMasquerades reads the rules of one family, of which none is an address of nobody.
func addMasquerades(found []Masquerade, rules, none string) []Masquerade {
	for line := range strings.Lines(rules) {
		m := masqueraded.FindStringSubmatch(line)
		// The chain's name is a hash of both: nobody else makes such a rule by chance.
		if m == nil || !strings.Contains(line, " "+utils.FormatChainName(m[1], m[2])+" ") &&
			!strings.HasSuffix(strings.TrimSpace(line), " "+utils.FormatChainName(m[1], m[2])) {
			continue
		}
		i := 0
		for i < len(found) && (found[i].Network != m[1] || found[i].ID != m[2]) {
			i++
		}
		if i == len(found) {
			found = append(found, Masquerade{Network: m[1], ID: m[2]})
		}
		address := none // of a chain that nothing leads to any more
		if s := source.FindStringSubmatch(line); s != nil {
			address = s[1]
		}
		if at := net.ParseIP(address); at != nil {
			found[i].add(at)
		}
	}
	return found
}

// add notes an address; one of nobody stands for its family until there is another.
func (m *Masquerade) add(at net.IP) {
	if at.IsUnspecified() {
		for _, s := range m.sources {
			if (s.IP.To4() == nil) == (at.To4() == nil) {
				return
			}
		}
	}
	const bits4, bits6 = 32, 128
	mask := net.CIDRMask(bits6, bits6)
	if at.To4() != nil {
		mask = net.CIDRMask(bits4, bits4)
	}
	m.sources = append(m.sources, &net.IPNet{IP: at, Mask: mask})
}

// RemoveMasquerade removes them. Nothing there is success.
func (n *Network) RemoveMasquerade(ctx context.Context, m Masquerade) error {
	failed := ip.TeardownIPMasqForNetworks(m.sources, m.Network, "eth0", m.ID)
	// It complains of a chain that two rules led to, and removes it with the second.
	left, err := n.Masquerades(ctx)
	for _, l := range left {
		if err == nil && l.Network == m.Network && l.ID == m.ID {
			err = fmt.Errorf("they are still there: %w", failed)
		}
	}
	if err != nil {
		return fmt.Errorf("remove masquerade rules of pod %s from network %q: %w", m.ID, m.Network, err)
	}
	return nil
}

// unmasquerade removes what a DEL that was cut short has left of a pod.
func (n *Network) unmasquerade(ctx context.Context, id string) error {
	all, err := n.Masquerades(ctx)
	errs := []error{err}
	for _, m := range all {
		if m.ID == id {
			errs = append(errs, n.RemoveMasquerade(ctx, m))
		}
	}
	return errors.Join(errs...)
}
