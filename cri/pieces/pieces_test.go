// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pieces

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func containers(n, size int) []*runtime.Container {
	all := make([]*runtime.Container, n)
	for i := range all {
		all[i] = &runtime.Container{Id: fmt.Sprint(i), Annotations: map[string]string{"a": strings.Repeat("x", size)}}
	}
	return all
}

// Case 82: what does not fit one message comes in several.
func TestCase82Pieces(t *testing.T) {
	for _, tt := range []struct{ n, size, messages int }{
		{0, 0, 0},
		{1, 0, 1},
		{maxItems, 0, 1},
		{maxItems + 1, 0, 2},
		{5000, 4096, 20},       // 256 of 4 KiB just do not fill it
		{30, maxBytes / 10, 4}, // nine of a tenth and their overhead
		{3, 2 * maxBytes, 3},   // each alone
	} {
		all := containers(tt.n, tt.size)
		var got []*runtime.Container
		messages := 0
		err := Send(t.Context(), slices.Values(all), func(piece []*runtime.Container) error {
			if n := proto.Size(&runtime.StreamContainersResponse{Containers: piece}); len(piece) == 0 || (n > maxBytes && len(piece) > 1) {
				t.Errorf("%d of %d bytes: a message of %d items and %d bytes", tt.n, tt.size, len(piece), n)
			}
			got = append(got, piece...)
			messages++
			return nil
		})
		if err != nil || !slices.Equal(got, all) {
			t.Errorf("%d of %d bytes: %d arrived, %v", tt.n, tt.size, len(got), err)
		}
		if messages != tt.messages {
			t.Errorf("%d of %d bytes: %d messages, want %d", tt.n, tt.size, messages, tt.messages)
		}
	}
}

func TestReaderGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	made := 0
	items := func(yield func(*runtime.Container) bool) {
		for _, c := range containers(5000, 0) {
			made++
			if !yield(c) {
				return
			}
		}
	}
	err := Send(ctx, items, func([]*runtime.Container) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) || made > 2*maxItems {
		t.Errorf("%v after %d items", err, made)
	}
	broken := errors.New("broken pipe")
	if err := Send(t.Context(), items, func([]*runtime.Container) error { return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
}
