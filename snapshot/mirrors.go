// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
)

// mirrors are the hosts that stand in for a registry in one pull. One that does not begin
// to answer in time is passed over, and not asked again.
type mirrors struct {
	timeout time.Duration // 0: they may take for ever

	mu   sync.Mutex
	mute map[string]bool // by host
}

func newMirrors(timeout time.Duration) *mirrors {
	return &mirrors{timeout: timeout, mute: map[string]bool{}}
}

// bound puts the limit on all hosts but the last, which nobody stands in for.
func (m *mirrors) bound(hosts []docker.RegistryHost) {
	if m.timeout <= 0 || len(hosts) == 0 {
		return
	}
	for i := range hosts[:len(hosts)-1] {
		client := *hosts[i].Client
		client.Transport = mirrorTransport{m, hosts[i].Host, client.Transport}
		hosts[i].Client = &client
	}
}

func (m *mirrors) isMute(host string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mute[host]
}

// pass notes that a host is passed over from now on.
func (m *mirrors) pass(host string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mute[host] = true
}

type mirrorTransport struct {
	*mirrors

	host string
	next http.RoundTripper
}

// RoundTrip ends when the answer has begun or the time is over. The body may take as long as
// it likes: that there is progress is watched for the whole pull.
func (t mirrorTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	silent := fmt.Errorf("mirror %s has not answered for %s", t.host, t.timeout)
	if t.isMute(t.host) {
		return nil, silent
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	limit := time.AfterFunc(t.timeout, func() { cancel(silent) })
	resp, err := t.next.RoundTrip(r.WithContext(ctx))
	if !limit.Stop() {
		t.pass(t.host)
		if err == nil {
			_ = resp.Body.Close() // it is of no use any more
		}
		return nil, silent
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	resp.Body = cancelBody{resp.Body, cancel}
	return resp, nil
}

// cancelBody gives up the context of its request when it is closed.
type cancelBody struct {
	io.ReadCloser

	cancel context.CancelCauseFunc
}

// Close implements io.Closer.
func (b cancelBody) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}
