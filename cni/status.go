// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// Reasons of Status.
const (
	ReasonNoConfig    = "NoNetworkConfig"
	ReasonPluginState = "NetworkPluginNotReady"
)

// Status says whether pods can be attached.
type Status struct {
	Ready bool `json:"ready"`
	// Reason is one word for machines, empty when ready.
	Reason string `json:"reason,omitempty"`
	// Message is for a person: what is wrong, and where.
	Message string `json:"message,omitempty"`
	// Networks are the configurations that pods get, in order.
	Networks []Loaded `json:"networks"`
	// Skipped are the files that are not used.
	Skipped []Skipped `json:"skipped,omitempty"`
}

// Loaded is a configuration in use.
type Loaded struct {
	Name       string   `json:"name"`
	File       string   `json:"file"`
	CNIVersion string   `json:"cniVersion"`
	Plugins    []string `json:"plugins"`
}

// Skipped is a file of the configuration directory that is not used, and why.
type Skipped struct {
	File string `json:"file"`
	Why  string `json:"why"`
}

// Status reads the configuration directory anew if it has changed, and asks
// the plugins of networks that are new enough for the STATUS verb (1.1.0).
// It takes at most a few seconds, however long a plugin thinks.
func (n *Network) Status(ctx context.Context) Status {
	l := n.current(ctx)
	s := Status{Skipped: l.skipped}
	for _, w := range l.nets {
		s.Networks = append(s.Networks, Loaded{
			Name: w.list.Name, File: filepath.Join(n.cfg.ConfDir, w.file),
			CNIVersion: w.list.CNIVersion, Plugins: w.plugins(),
		})
	}
	if len(l.nets) == 0 {
		s.Reason, s.Message = ReasonNoConfig, l.whyNone(n.cfg.ConfDir)
		return s
	}
	if err := n.ask(ctx, l); err != nil {
		s.Reason, s.Message = ReasonPluginState, err.Error()
		return s
	}
	s.Ready = true
	return s
}

// ask runs the STATUS verb where there is one.
func (n *Network) ask(ctx context.Context, l *loaded) error {
	ctx, cancel := context.WithTimeoutCause(ctx, statusTimeout, timeoutError(statusTimeout))
	defer cancel()
	var errs []error
	for _, w := range l.nets {
		if err := n.lib(nil).GetStatusNetworkList(ctx, w.list); err != nil {
			errs = append(errs, fmt.Errorf("network %q (%s) is not ready: %w", w.list.Name, w.file, plain(err)))
		}
	}
	return errors.Join(errs...)
}

// whyNone explains to a person why no network is configured.
func (l *loaded) whyNone(dir string) string {
	if l.dirErr != nil {
		return fmt.Sprintf("cannot read the CNI configurations: %v", l.dirErr)
	}
	if len(l.skipped) == 0 {
		return fmt.Sprintf("no CNI configuration (*.conflist, *.conf, *.json) in %s yet", dir)
	}
	var why []string
	for _, s := range l.skipped {
		why = append(why, s.File+": "+s.Why)
	}
	return fmt.Sprintf("no usable CNI configuration in %s: %s", dir, strings.Join(why, "; "))
}

// noNetworkError is ErrNoNetwork with the reason.
type noNetworkError struct{ why string }

func (e *noNetworkError) Error() string { return e.why }
func (e *noNetworkError) Unwrap() error { return ErrNoNetwork }
