// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	utilexec "k8s.io/utils/exec"
)

// speaksV5 says whether a WebSocket client wants version 5 of the remote
// command protocol. The streaming library's server stops at 4, in which a
// client cannot end its stdin; client-go and crictl speak only 5.
func speaksV5(r *http.Request) bool {
	if !wsstream.IsWebSocketRequest(r) {
		return false
	}
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for p := range strings.SplitSeq(line, ",") {
			if strings.TrimSpace(p) == remotecommand.StreamProtocolV5Name {
				return true
			}
		}
	}
	return false
}

// serveV5 serves an exec or attach session over WebSocket: one binary channel
// for each of stdin, stdout, stderr, status and terminal sizes, and a message
// by which the client ends a channel.
func (s *Server) serveV5(w http.ResponseWriter, r *http.Request, opts remotecommand.Options,
	run func(ctx context.Context, st streams) error,
) {
	channel := func(wanted bool, t wsstream.ChannelType) wsstream.ChannelType {
		if wanted {
			return t
		}
		return wsstream.IgnoreChannel
	}
	ws := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
		remotecommand.StreamProtocolV5Name: {Binary: true, Channels: []wsstream.ChannelType{
			remotecommand.StreamStdIn:  channel(opts.Stdin, wsstream.ReadChannel),
			remotecommand.StreamStdOut: channel(opts.Stdout, wsstream.WriteChannel),
			remotecommand.StreamStdErr: channel(opts.Stderr, wsstream.WriteChannel),
			remotecommand.StreamErr:    wsstream.WriteChannel,
			remotecommand.StreamResize: channel(opts.TTY, wsstream.ReadChannel),
		}},
	})
	ws.SetIdleTimeout(s.cfg.IdleTimeout)
	_, channels, err := ws.Open(w, r)
	ctx := r.Context()
	logger := klog.FromContext(ctx)
	if err != nil {
		logger.Info("Could not open a WebSocket session", "err", err)
		return
	}
	defer func() { _ = ws.Close() }() // the client may have gone first
	st := streams{
		stdin:  channels[remotecommand.StreamStdIn],
		stdout: channels[remotecommand.StreamStdOut],
		stderr: channels[remotecommand.StreamStdErr],
	}
	if opts.TTY {
		sizes := make(chan remotecommand.TerminalSize)
		s.sessions.Go(func() { decodeSizes(ctx, channels[remotecommand.StreamResize], sizes) })
		st.resize = sizes
	}
	err = session{opts, run}.start(ctx, st)
	status, err := json.Marshal(statusOf(err))
	if err == nil {
		_, err = channels[remotecommand.StreamErr].Write(status)
	}
	if err != nil {
		logger.V(2).Info("Could not send the status of a session", "err", err)
	}
}

// decodeSizes reads terminal sizes until the stream or ctx ends.
func decodeSizes(ctx context.Context, in io.Reader, out chan<- remotecommand.TerminalSize) {
	defer close(out)
	for d := json.NewDecoder(in); ; {
		var size remotecommand.TerminalSize
		if d.Decode(&size) != nil {
			return
		}
		select {
		case out <- size:
		case <-ctx.Done():
			return
		}
	}
}

// statusOf is what a client is told of how its session ended.
func statusOf(err error) metav1.Status {
	if err == nil {
		return metav1.Status{Status: metav1.StatusSuccess}
	}
	if exit, ok := errors.AsType[utilexec.CodeExitError](err); ok {
		return metav1.Status{
			Status:  metav1.StatusFailure,
			Reason:  remotecommand.NonZeroExitCodeReason,
			Message: fmt.Sprintf("command terminated with non-zero exit code: %v", exit),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{
				Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(exit.Code),
			}}},
		}
	}
	return metav1.Status{
		Status:  metav1.StatusFailure,
		Reason:  metav1.StatusReasonInternalError,
		Code:    http.StatusInternalServerError,
		Message: fmt.Sprintf("Internal error occurred: %v", err),
	}
}
