// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
)

// maxWaiting is how many changes of records may wait for one reader of events. A
// life of a container is about a dozen. They are pictures that exist anyhow; the
// messages are made one by one as the reader takes them.
const maxWaiting = 1 << 14

// GetContainerEvents tells every state change of containers and sandboxes from now on,
// exactly once and in order. A reader that falls too far behind is told so with
// ResourceExhausted; it must ask again and list what there is, as kubelet does.
// A daemon that stops ends the stream with Unavailable.
func (s *Server) GetContainerEvents(_ *runtime.GetEventsRequest, out runtime.RuntimeService_GetContainerEventsServer) error {
	changes, views := s.engine.Subscribe(maxWaiting)
	defer changes.Close()
	// Whoever has the header misses nothing that happens after it.
	if err := out.SendHeader(nil); err != nil {
		return err
	}
	ctx, end := s.drain.until(out.Context())
	defer end()
	known := newLives(views)
	for {
		change, err := changes.Next(ctx)
		if err != nil {
			return endOfEvents(err)
		}
		for _, event := range known.follow(change) {
			if err := out.Send(event); err != nil {
				return err
			}
		}
	}
}

func endOfEvents(err error) error {
	if errors.Is(err, engine.ErrOverflow) {
		return fmt.Errorf("events: %w; ask again and list what there is: %w", err, errdefs.ErrResourceExhausted)
	}
	return fmt.Errorf("events: %w", err)
}
