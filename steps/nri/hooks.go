// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"k8s.io/klog/v2"
)

// tell runs f under a plugin-sync block, unless NRI is not running. What
// plugins want evicted meanwhile is evicted behind.
//
// Nothing is told for a caller who has gone. Once begun f runs to its end whether the
// caller stays or not: a plugin goes on with what it was asked, and must not see
// the end of a pod while it does. The request timeout bounds it.
func (m *Manager) tell(ctx context.Context, f func(context.Context, *session) error) error {
	if m == nil {
		return nil
	}
	s := m.started.Load()
	if s == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	wanted := &evictions{}
	block := s.adaptation.BlockPluginSync()
	defer block.Unblock()
	err := f(context.WithValue(context.WithoutCancel(ctx), evictionsKey{}, wanted), s)
	m.evict(ctx, s, wanted.take())
	return err
}

// nobody says that there is no plugin to be told. Only under a plugin-sync block.
func (m *Manager) nobody() bool { return m.plugins.Load() == 0 }

// RunPod tells RunPodSandbox. An error is a plugin's refusal; StopPod and
// RemovePod must follow it as they do a success.
func (m *Manager) RunPod(ctx context.Context, id string) error {
	return m.tell(ctx, func(ctx context.Context, s *session) error {
		p := briefPod(s.runtime.Pod(id), id)
		m.mu.Lock()
		m.pods[id] = &pod{brief: p}
		m.mu.Unlock()
		if m.nobody() {
			return nil
		}
		if err := s.adaptation.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: p}); err != nil {
			return fmt.Errorf("an NRI plugin refused sandbox %s: %w: %w", id, err, errdefs.ErrFailedPrecondition)
		}
		return nil
	})
}

// StopPod tells StopPodSandbox once, after StopContainer of all containers that
// have been started. Plugins cannot refuse it.
func (m *Manager) StopPod(ctx context.Context, id string) {
	if m == nil {
		return
	}
	p := m.podEntry(id)
	if p == nil {
		return
	}
	for _, c := range m.containersOf(id) {
		m.StopContainer(ctx, c)
	}
	p.stopped.Do(func() {
		m.inform(ctx, "StopPodSandbox", id, func(ctx context.Context, s *session) error {
			return s.adaptation.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: s.podOf(id, p)})
		}, func() { p.stopped.done.Store(true) })
	})
}

// RemovePod tells RemovePodSandbox once, after all that must come before it.
func (m *Manager) RemovePod(ctx context.Context, id string) {
	if m == nil {
		return
	}
	p := m.podEntry(id)
	if p == nil {
		return
	}
	m.StopPod(ctx, id)
	for _, c := range m.containersOf(id) {
		m.RemoveContainer(ctx, c)
	}
	p.removed.Do(func() {
		m.inform(ctx, "RemovePodSandbox", id, func(ctx context.Context, s *session) error {
			return s.adaptation.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: s.podOf(id, p)})
		}, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.pods, id)
		})
	})
}

// UpdatePod tells UpdatePodSandbox. An error is a plugin's refusal.
func (m *Manager) UpdatePod(ctx context.Context, id string, overhead, resources *api.LinuxResources) error {
	return m.tell(ctx, func(ctx context.Context, s *session) error {
		p := m.podEntry(id)
		if p == nil || m.nobody() {
			return nil
		}
		_, err := s.adaptation.UpdatePodSandbox(ctx, &api.UpdatePodSandboxRequest{
			Pod: s.podOf(id, p), OverheadLinuxResources: overhead, LinuxResources: resources,
		})
		if err != nil {
			return fmt.Errorf("an NRI plugin refused the update of sandbox %s: %w: %w", id, err, errdefs.ErrFailedPrecondition)
		}
		return nil
	})
}

// UpdatedPod tells PostUpdatePodSandbox.
func (m *Manager) UpdatedPod(ctx context.Context, id string) {
	if m == nil {
		return
	}
	if p := m.podEntry(id); p != nil {
		m.inform(ctx, "PostUpdatePodSandbox", id, func(ctx context.Context, s *session) error {
			return s.adaptation.PostUpdatePodSandbox(ctx, &api.PostUpdatePodSandboxRequest{Pod: s.podOf(id, p)})
		}, nothing)
	}
}

func nothing() {}

// inform tells what cannot be refused: a failure is logged. note notes that it
// was told, under the same plugin-sync block.
func (m *Manager) inform(ctx context.Context, event, id string, f func(context.Context, *session) error, note func()) {
	noted := false
	// Also for a caller who has gone: what has happened has to be told.
	err := m.tell(context.WithoutCancel(ctx), func(ctx context.Context, s *session) error {
		noted = true
		defer note()
		if m.nobody() {
			return nil
		}
		return f(ctx, s)
	})
	if !noted { // NRI has been stopped
		note()
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "An NRI plugin failed; going on without its consent", "event", event, "id", id)
	}
}

// synchronize gives a plugin that joins all that plugins have been told of. The
// adaptation holds the plugin-sync lock until the plugin is one of those told.
func (m *Manager) synchronize(ctx context.Context, plugin adaptation.SyncCB) error {
	s := m.started.Load()
	if s == nil {
		return errNotRunning
	}
	ids, entries := m.living()
	pods := make([]*api.PodSandbox, 0, len(ids))
	for _, id := range ids {
		pods = append(pods, s.podOf(id, m.podEntry(id)))
	}
	containers := make([]*api.Container, 0, len(entries))
	for id, c := range entries {
		containers = append(containers, s.containerOf(id, c))
	}
	until := time.Now().Add(m.cfg.SyncTimeout) // of all messages, if it takes several
	updates, err := plugin(context.WithValue(ctx, syncUntilKey{}, until), pods, containers)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(klog.NewContext(ctx, s.log), m.cfg.SyncTimeout)
	defer cancel()
	_, err = s.apply(bounded, updates)
	if err != nil {
		s.log.Error(err, "Could not do all that an NRI plugin wanted when it joined")
	}
	return nil
}
