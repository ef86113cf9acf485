// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"
)

// errNotRunning is what plugins are told after Stop.
var errNotRunning = errors.New("the runtime has stopped NRI")

// apply does what plugins want for containers. It gives those that failed,
// except where failing is fine.
func (s *session) apply(ctx context.Context, updates []*api.ContainerUpdate) (failed []*api.ContainerUpdate, err error) {
	var errs []error
	for _, u := range updates {
		if u == nil || u.GetLinux().GetResources() == nil {
			continue
		}
		if err := s.runtime.Update(ctx, u); err != nil && !u.GetIgnoreFailure() {
			failed = append(failed, u)
			errs = append(errs, fmt.Errorf("update container %s as an NRI plugin wants: %w", u.GetContainerId(), err))
		}
	}
	return failed, errors.Join(errs...)
}

// applyAll is apply for updates that a move depends on. A container that has
// ended meanwhile needs no update.
func (m *Manager) applyAll(ctx context.Context, updates []*api.ContainerUpdate) error {
	if len(updates) == 0 {
		return nil
	}
	s := m.started.Load()
	if s == nil {
		return nil
	}
	var errs []error
	for _, u := range updates {
		_, err := s.apply(ctx, []*api.ContainerUpdate{u})
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (m *Manager) applyBestEffort(ctx context.Context, event string, updates []*api.ContainerUpdate) {
	if err := m.applyAll(ctx, updates); err != nil {
		klog.FromContext(ctx).Error(err, "Could not do all that NRI plugins wanted", "event", event)
	}
}

// update does what a plugin wants out of turn and gives what failed.
func (m *Manager) update(ctx context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	s := m.started.Load()
	if s == nil {
		return updates, errNotRunning
	}
	failed, err := s.apply(klog.NewContext(ctx, s.log), updates)
	if err != nil {
		s.log.Error(err, "Could not do all that an NRI plugin wanted out of turn")
	}
	return failed, nil // which they were is the answer
}

// evictions collects what plugins want evicted in their answers to one hook.
// The adaptation drops it, so it is taken from the messages themselves.
type evictions struct {
	mu     sync.Mutex
	wanted []*api.ContainerEviction
}

type evictionsKey struct{}

func (e *evictions) add(more []*api.ContainerEviction) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wanted = append(e.wanted, more...)
}

func (e *evictions) take() []*api.ContainerEviction {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wanted
}

// evictTimeout bounds an eviction beyond what the container itself may take.
const evictTimeout = 2 * time.Minute

// evict stops containers behind the caller, who may hold what that needs.
func (m *Manager) evict(ctx context.Context, s *session, wanted []*api.ContainerEviction) {
	for _, e := range wanted {
		m.evicts.Go(func() {
			l := s.log.WithValues("container", e.GetContainerId(), "reason", e.GetReason())
			ctx, cancel := context.WithTimeout(klog.NewContext(context.WithoutCancel(ctx), l), evictTimeout)
			defer cancel()
			if err := s.runtime.Evict(ctx, e.GetContainerId(), e.GetReason()); err != nil && !errdefs.IsNotFound(err) {
				l.Error(err, "Could not evict a container as an NRI plugin wants")
				return
			}
			l.Info("Evicted a container as an NRI plugin wants")
		})
	}
}

// syncUntilKey marks the context of a synchronization with its end.
type syncUntilKey struct{}

// toPlugin is around every request to a plugin.
func (m *Manager) toPlugin(ctx context.Context, q *ttrpc.Request, a *ttrpc.Response, i *ttrpc.UnaryClientInfo, call ttrpc.Invoker) error {
	switch method(i.FullMethod) {
	case "Synchronize": // takes in thousands of containers at once: it has a bound of its own
		until, ok := ctx.Value(syncUntilKey{}).(time.Time)
		if !ok {
			return call(ctx, q, a)
		}
		own, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
		defer cancel()
		q.TimeoutNano = time.Until(until).Nanoseconds()
		return call(own, q, a)
	case "CreateContainer":
		return collect(ctx, q, a, call, &api.CreateContainerResponse{})
	case "UpdateContainer":
		return collect(ctx, q, a, call, &api.UpdateContainerResponse{})
	default:
		return call(ctx, q, a)
	}
}

// evicting is an answer, or a request of its own, that may ask for evictions.
type evicting interface {
	proto.Message
	GetEvict() []*api.ContainerEviction
}

func collect(ctx context.Context, q *ttrpc.Request, a *ttrpc.Response, call ttrpc.Invoker, answer evicting) error {
	if err := call(ctx, q, a); err != nil {
		return err
	}
	into, ok := ctx.Value(evictionsKey{}).(*evictions)
	if ok && proto.Unmarshal(a.Payload, answer) == nil { // if not, the caller says so
		into.add(answer.GetEvict())
	}
	return nil
}

// fromPlugin is around every request of a plugin.
func (m *Manager) fromPlugin(ctx context.Context, unmarshal ttrpc.Unmarshaler, i *ttrpc.UnaryServerInfo, serve ttrpc.Method) (any, error) {
	if method(i.FullMethod) != "UpdateContainers" {
		return serve(ctx, unmarshal)
	}
	var wanted []*api.ContainerEviction
	answer, err := serve(ctx, func(v any) error {
		if err := unmarshal(v); err != nil {
			return err
		}
		if request, ok := v.(evicting); ok {
			wanted = request.GetEvict()
		}
		return nil
	})
	if s := m.started.Load(); s != nil {
		m.evict(ctx, s, wanted)
	}
	return answer, err
}

// method is the last part of a full method name.
func method(full string) string { return full[strings.LastIndexByte(full, '/')+1:] }
