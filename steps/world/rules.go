// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

// rule is one rule of the firewall.
type rule struct{ chain, text string }

// rules are those of nftables, which iptables-nft's are a part of, and those of
// the older iptables where it is in use.
func rules(ctx context.Context, l *look) error {
	all, err := nftRules(ctx)
	older, olderErr := legacyRules(ctx)
	all = append(all, older...)
	owners, jumped := ownersOf(all)
	for _, r := range all {
		id := idIn(r.text)
		if id == "" {
			id = owners[r.chain]
		}
		// A pod's chain that nobody jumps to any more is left over, whoever made it.
		dangling := podChain.MatchString(r.chain) && !jumped[r.chain]
		if l.Node || dangling || id != "" && l.mentions(r.text, owners[r.chain]) {
			l.add(Rules, r.text, id)
		}
	}
	return errors.Join(err, olderErr)
}

// mentions says that a rule is of one of our networks: another runtime's bear IDs too.
func (l *look) mentions(text, owner string) bool {
	if owner != "" {
		return true
	}
	for name := range l.networks.names {
		if strings.Contains(text, name) {
			return true
		}
	}
	return len(l.networks.names) == 0
}

// jump finds the chain that a rule jumps to.
var jump = regexp.MustCompile(`(?:jump|goto|-j|-g) ([^\s]+)`)

// podChain is a chain that CNI plugins make for one pod.
var podChain = regexp.MustCompile(`^CNI-(DN-)?[0-9a-f]{12,}$`)

// ownersOf finds whose the chains of single pods are: they are jumped to by a
// rule that bears the pod's ID, while those in them need not. It also says which are jumped to.
func ownersOf(all []rule) (owners map[string]string, jumped map[string]bool) {
	owners, jumped = map[string]string{}, map[string]bool{}
	for _, r := range all {
		if m := jump.FindStringSubmatch(r.text); m != nil && podChain.MatchString(m[1]) {
			jumped[m[1]] = true
			if id := idIn(r.text); id != "" {
				owners[m[1]] = id
			}
		}
	}
	return owners, jumped
}

func nftRules(ctx context.Context) ([]rule, error) {
	text, err := exec.CommandContext(ctx, "nft", "--stateless", "list", "ruleset").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("nft list ruleset: %w", err)
	}
	return parseNft(string(text)), nil
}

// proxyTable is kube-proxy's: it changes with every service, and has nothing of networks.
const proxyTable = " kube-proxy"

func parseNft(text string) []rule {
	var out []rule
	table, chain := "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch name, opens := strings.CutSuffix(line, " {"); {
		case opens && strings.HasPrefix(name, "table "):
			table = name
		case strings.HasSuffix(table, proxyTable):
		case opens && strings.HasPrefix(name, "chain "):
			chain = strings.TrimPrefix(name, "chain ")
		case opens || line == "" || line == "}":
		default:
			out = append(out, rule{chain, line})
		}
	}
	return out
}

func legacyRules(ctx context.Context) ([]rule, error) {
	var out []rule
	for names, save := range map[string]string{
		"/proc/net/ip_tables_names": "iptables-legacy-save", "/proc/net/ip6_tables_names": "ip6tables-legacy-save",
	} {
		if raw, err := os.ReadFile(names); err != nil || len(raw) == 0 {
			continue // no table is in use
		}
		text, err := exec.CommandContext(ctx, save).Output()
		if errors.Is(err, exec.ErrNotFound) {
			continue
		}
		if err != nil {
			return out, fmt.Errorf("%s: %w", save, err)
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) > 2 && f[0] == "-A" {
				out = append(out, rule{f[1], strings.TrimSpace(line)})
			}
		}
	}
	return out, nil
}
