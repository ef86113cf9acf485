// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/plugins/pkg/ns"
)

// Prepare freezes what an attachment will be made with: the chosen
// configurations and the runtime arguments. Keep the returned value durably
// before Attach, and hand it to Attach and Detach in Attachment.Saved.
// It runs no plugin. Without a usable configuration it returns ErrNoNetwork;
// names that CNI_ARGS cannot carry are an errdefs.ErrInvalidArgument.
func (n *Network) Prepare(ctx context.Context, a Attachment) (json.RawMessage, error) {
	l := n.current(ctx)
	if len(l.nets) == 0 {
		return nil, fmt.Errorf("attach %s: %w", a, &noNetworkError{why: l.whyNone(n.cfg.ConfDir)})
	}
	args, err := a.args()
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", a, err)
	}
	s := saved{ID: a.ID, Pod: a.pod(), NetNS: a.NetNS, Args: args, Capabilities: a.capabilities()}
	for i, w := range l.nets {
		config := w.list.Bytes
		if len(a.PortMappings) == 0 {
			config = w.portless
		}
		s.Networks = append(s.Networks, savedNetwork{IfName: fmt.Sprintf("eth%d", i), Config: config})
	}
	return json.Marshal(s)
}

// Attach runs ADD of every network. If it fails, what was done is not undone:
// call Detach with the same Saved. The error names pod, network and plugin; one of a plugin
// that failed, took too long or answered nonsense is an errdefs.ErrUnavailable.
func (n *Network) Attach(ctx context.Context, a Attachment) (Result, error) {
	if a.Saved == nil {
		frozen, err := n.Prepare(ctx, a)
		if err != nil {
			return Result{}, err
		}
		a.Saved = frozen
	}
	s, err := decodeSaved(a)
	if err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, n.cfg.Timeout, timeoutError(n.cfg.Timeout))
	defer cancel()
	var results []netResult
	for _, w := range s.Networks {
		r, err := n.add(ctx, s, w)
		if err != nil {
			return Result{}, fmt.Errorf("attach %s: %w", a, err)
		}
		results = append(results, r)
	}
	return n.collect(a, results)
}

// add runs ADD of one network.
func (n *Network) add(ctx context.Context, s saved, w savedNetwork) (netResult, error) {
	list, err := thaw(w.Config)
	if err != nil {
		return netResult{}, err
	}
	// The last result counts. A chain whose last plugin drops the addresses has
	// them all the same, so remember the last result that had some.
	var withIPs []byte
	lib := n.lib(func(raw []byte) {
		if hasIPs(raw) {
			withIPs = raw
		}
	})
	res, err := lib.AddNetworkList(ctx, list, s.runtimeConf(w, s.NetNS))
	if err != nil {
		return netResult{}, fmt.Errorf("network %q: %w", list.Name, plain(err))
	}
	r, err := newNetResult(list, w.IfName, res, withIPs)
	if err != nil && !errors.Is(err, ErrNoAddress) {
		err = answerError{err}
	}
	if err != nil {
		return netResult{}, fmt.Errorf("network %q: %w", list.Name, err)
	}
	return r, nil
}

// Detach runs DEL of every network with the configuration that ADD used. It
// needs nothing but a.ID and a.Saved: neither the configuration directory nor
// the network namespace. Without Saved nothing was attached, and it does nothing.
// When some networks could not be detached, the error is a *DetachError.
func (n *Network) Detach(ctx context.Context, a Attachment) error {
	if a.Saved == nil {
		return nil
	}
	s, err := decodeSaved(a)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, n.cfg.Timeout, timeoutError(n.cfg.Timeout))
	defer cancel()
	netns := livingNetNS(s.NetNS)
	cut := n.begin(s.ID) || netns == "" && s.NetNS != ""
	var errs []error
	var left []savedNetwork
	for _, w := range slices.Backward(s.Networks) {
		if err := n.del(ctx, s, w, netns); err != nil {
			errs = append(errs, err)
			left = append([]savedNetwork{w}, left...)
		}
	}
	if len(errs) == 0 && cut {
		if err := n.unmasquerade(ctx, s.ID); err != nil {
			errs = append(errs, err)
			left = s.Networks
		}
	}
	if len(errs) == 0 {
		n.finish(s.ID)
		return nil
	}
	s.Networks = left
	remaining, err := json.Marshal(s)
	if err != nil {
		errs = append(errs, err)
	}
	return &DetachError{Remaining: remaining, Err: fmt.Errorf("detach pod %s (%s): %w", s.Pod, s.ID, errors.Join(errs...))}
}

// begin notes that a pod is being detached, and says whether an earlier try has not got through.
func (n *Network) begin(id string) (again bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	again = n.detaching[id]
	n.detaching[id] = true
	return again
}

func (n *Network) finish(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.detaching, id)
}

// del runs DEL of one network.
func (n *Network) del(ctx context.Context, s saved, w savedNetwork, netns string) error {
	list, err := thaw(w.Config)
	if err != nil {
		return err
	}
	if err := n.lib(nil).DelNetworkList(ctx, list, s.runtimeConf(w, netns)); err != nil {
		return fmt.Errorf("network %q: %w", list.Name, plain(err))
	}
	return nil
}

// DetachError is a Detach that did not get through.
type DetachError struct {
	// Remaining is the Saved of what is still attached.
	Remaining json.RawMessage
	Err       error
}

// Error says what failed.
func (e *DetachError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *DetachError) Unwrap() error { return e.Err }

// livingNetNS returns path if it is a network namespace, else "": after a
// reboot, or when the pin was removed by hand, the path may be gone or an empty
// file, and plugins must be told so.
func livingNetNS(path string) string {
	if path == "" || ns.IsNSorErr(path) != nil {
		return ""
	}
	return path
}

// plain drops libcni's wrapping around what a plugin said.
func plain(err error) error {
	if e, ok := errors.AsType[*PluginError](err); ok {
		return e
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return answerError{err}
}

// answerError is an error over what a plugin has answered: errdefs.ErrUnavailable.
type answerError struct{ error }

func (e answerError) Unwrap() []error { return []error{errdefs.ErrUnavailable, e.error} }

func timeoutError(d time.Duration) error { return &timeLimitError{d} }
