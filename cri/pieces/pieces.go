// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pieces sends lists of any length in messages of bounded size, as the
// CRI's streaming list RPCs do (KEP-5825).
package pieces

import (
	"context"
	"iter"

	"google.golang.org/protobuf/proto"
)

const (
	// maxBytes bounds a message that has more than one item: a quarter of what a
	// gRPC client takes unless it is told otherwise.
	maxBytes = 1 << 20
	// maxItems bounds the items of a message, so that the first ones do not wait
	// until all are made.
	maxItems = 256
	// itemOverhead is what an item takes besides its own bytes: its tag and length.
	itemOverhead = 6
)

// Send hands the items on in pieces of at least one, each item once and in order. It
// ends with an error of send, or with that of ctx when its reader has gone.
func Send[T proto.Message](ctx context.Context, items iter.Seq[T], send func([]T) error) error {
	var piece []T
	size := 0
	for item := range items {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n := proto.Size(item) + itemOverhead
		if len(piece) > 0 && (size+n > maxBytes || len(piece) == maxItems) {
			if err := send(piece); err != nil {
				return err
			}
			piece, size = nil, 0
		}
		piece, size = append(piece, item), size+n
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(piece) == 0 {
		return nil
	}
	return send(piece)
}
