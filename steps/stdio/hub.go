// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// stallTimeout is how long an attached client may read nothing while the
// container waits for it.
const stallTimeout = 2 * time.Second

// ErrSlowClient is given to an attached client that stopped reading.
var ErrSlowClient = errors.New("client does not read the container's output, detached")

// Options of a Hub.
type Options struct {
	LogPath string // empty: no log
	// LogDir is the directory above LogPath that the log stays in whatever links there
	// are; empty: that of LogPath.
	LogDir  string
	MaxLine int // 0: DefaultMaxLine
	// OnLogError is told when writing the log begins to fail.
	OnLogError func(error)
	// Stdin is the write end of the container's stdin, or nil. The hub closes it.
	Stdin *os.File
	// StdinOnce closes stdin when the first client with stdin has gone.
	StdinOnce bool
	// OnStdinClose is called after stdin was closed.
	OnStdinClose func()
}

// Hub takes the output of one container, writes its log, and copies it to the
// clients that are attached.
//
//	New → Start → (Attach, Reopen)* → Finish → Close
type Hub struct {
	opts    Options
	log     *Log
	stdin   *input
	drained chan struct{}

	mu      sync.Mutex
	clients map[*client]struct{}
	readers []io.ReadCloser
	ended   bool
}

// New opens the log. Nothing is read before Start.
func New(o Options) (*Hub, error) {
	l, err := OpenLog(o.LogDir, o.LogPath, o.OnLogError)
	if err != nil {
		return nil, err
	}
	h := &Hub{opts: o, log: l, drained: make(chan struct{}), clients: map[*client]struct{}{}}
	if o.Stdin != nil {
		h.stdin = newInput(o.Stdin, o.StdinOnce, o.OnStdinClose)
	}
	return h, nil
}

// Start begins to read the container's output; a reader may be nil. The hub closes them.
func (h *Hub) Start(stdout, stderr io.ReadCloser) {
	var wg sync.WaitGroup
	for stream, r := range map[Stream]io.ReadCloser{Stdout: stdout, Stderr: stderr} {
		if r == nil {
			continue
		}
		h.mu.Lock()
		h.readers = append(h.readers, r)
		h.mu.Unlock()
		wg.Go(func() { h.copy(stream, r) })
	}
	go func() {
		wg.Wait()
		h.end()
		close(h.drained)
	}()
}

// copy reads one stream to its end.
func (h *Hub) copy(stream Stream, r io.ReadCloser) {
	defer func() { _ = r.Close() }()
	split := NewSplitter(h.opts.MaxLine)
	err := readChunks(r, func(b []byte) {
		h.log.Append(stream, func(emit func([]byte, bool)) { split.Feed(b, emit) })
		h.broadcast(stream, b)
	})
	h.log.Append(stream, split.Flush)
	if err != nil && h.opts.OnLogError != nil {
		h.opts.OnLogError(fmt.Errorf("read %s of container: %w", stream, err))
	}
}

// Drained is closed when all output has been read and logged.
func (h *Hub) Drained() <-chan struct{} { return h.drained }

// Finish waits after the container's end for the rest of its output, which a
// surviving process that holds the streams could keep open; then clients are let go.
func (h *Hub) Finish(grace time.Duration) {
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-h.drained:
	case <-t.C:
		h.end()
	}
}

// end lets all clients go once they have got what they were sent.
func (h *Hub) end() {
	h.mu.Lock()
	h.ended = true
	for c := range h.clients {
		close(c.over)
		delete(h.clients, c)
	}
	h.mu.Unlock()
	if h.stdin != nil {
		h.stdin.close()
	}
}

// Close ends the log and the clients. Output that comes later is dropped.
func (h *Hub) Close() error {
	h.end()
	return h.log.Close()
}

// Abandon stops reading a container that runs on, for one who will take it up
// again by the same FIFOs. A line that has begun is logged as a partial one;
// the container's stdin stays open.
func (h *Hub) Abandon() error {
	if h.stdin != nil {
		h.stdin.abandon()
	}
	h.mu.Lock()
	readers := h.readers
	h.mu.Unlock()
	for _, r := range readers {
		if d, ok := r.(interface{ SetReadDeadline(time.Time) error }); ok {
			_ = d.SetReadDeadline(time.Unix(1, 0)) // closed: then it has been read to its end
		}
	}
	h.Finish(stallTimeout)
	return h.Close()
}

// Reopen opens the log file anew, after a rotation. ErrFailedPrecondition if the container is over.
func (h *Hub) Reopen() error {
	h.mu.Lock()
	ended := h.ended
	h.mu.Unlock()
	if ended {
		return fmt.Errorf("reopen container log: container has ended: %w", errdefs.ErrFailedPrecondition)
	}
	return h.log.Reopen()
}

// CloseStdin closes the container's stdin.
func (h *Hub) CloseStdin() {
	if h.stdin != nil {
		h.stdin.close()
	}
}

// Attachment is a client of a hub. Any of the three may be nil.
type Attachment struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// client is an attached client: what the container wrote waits in chunks.
type client struct {
	chunks chan chunk
	over   chan struct{} // closed by the hub when the container ends
	gone   chan struct{} // closed when the client leaves
	slow   chan struct{} // closed when the hub gives the client up
}

type chunk struct {
	stream Stream
	data   []byte
}

// Attach joins the container's streams. It returns nil when the container has
// ended and all was delivered, ErrSlowClient, ctx's error, or that of a write.
// After it returned, the caller must close a.Stdin's source and the writers, so that
// calls that still hang in them end.
func (h *Hub) Attach(ctx context.Context, a Attachment) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &client{chunks: make(chan chunk, 64), over: make(chan struct{}), gone: make(chan struct{}), slow: make(chan struct{})}
	h.mu.Lock()
	if h.ended {
		h.mu.Unlock()
		return fmt.Errorf("attach: container has ended: %w", errdefs.ErrFailedPrecondition)
	}
	h.clients[c] = struct{}{}
	h.mu.Unlock()
	defer h.leave(c)

	if a.Stdin != nil && h.stdin != nil {
		go h.stdin.feed(ctx, a.Stdin)
	}
	done := make(chan error, 1)
	go func() { done <- c.deliver(a) }()
	select {
	case err := <-done:
		return err
	case <-c.slow:
		return ErrSlowClient
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *Hub) leave(c *client) {
	close(c.gone)
	h.mu.Lock()
	delete(h.clients, c)
	h.mu.Unlock()
}

// deliver writes to the client what the container wrote.
func (c *client) deliver(a Attachment) error {
	for {
		select {
		case <-c.gone:
			return nil
		case ch := <-c.chunks:
			if err := a.write(ch); err != nil {
				return err
			}
		case <-c.over:
			return c.deliverRest(a)
		}
	}
}

// deliverRest writes what waits when nothing more will come.
func (c *client) deliverRest(a Attachment) error {
	for {
		select {
		case ch := <-c.chunks:
			if err := a.write(ch); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

func (a Attachment) write(ch chunk) error {
	w := a.Stdout
	if ch.stream == Stderr {
		w = a.Stderr
	}
	if w == nil {
		return nil
	}
	if _, err := w.Write(ch.data); err != nil {
		return fmt.Errorf("write to attached client: %w", err)
	}
	return nil
}

// broadcast hands b to every client. A client that reads slowly slows the
// container down; one that does not read for stallTimeout is given up.
func (h *Hub) broadcast(stream Stream, b []byte) {
	h.mu.Lock()
	clients := make([]*client, 0, len(h.clients))
	for c := range h.clients {
		clients = append(clients, c)
	}
	h.mu.Unlock()
	if len(clients) == 0 {
		return
	}
	ch := chunk{stream, append([]byte(nil), b...)}
	for _, c := range clients {
		h.send(c, ch)
	}
}

func (h *Hub) send(c *client, ch chunk) {
	select {
	case c.chunks <- ch:
		return
	default:
	}
	t := time.NewTimer(stallTimeout)
	defer t.Stop()
	select {
	case c.chunks <- ch:
	case <-c.gone:
	case <-c.over:
	case <-t.C:
		h.mu.Lock()
		if _, ok := h.clients[c]; ok {
			delete(h.clients, c)
			close(c.slow)
		}
		h.mu.Unlock()
	}
}
