// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package interceptors

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/engine"
)

func TestCode(t *testing.T) {
	action := func(err error) error {
		return fmt.Errorf("run sandbox: %w", &engine.ActionError{Workflow: "sandbox", ID: "1", Action: "network", Err: err})
	}
	for _, c := range []struct {
		err  error
		want codes.Code
	}{
		{nil, codes.OK},
		{errors.New("x"), codes.Unknown},
		{os.ErrNotExist, codes.Unknown},
		{action(errors.New("x")), codes.Unknown},
		{fmt.Errorf("x: %w", context.Canceled), codes.Canceled},
		{action(context.DeadlineExceeded), codes.DeadlineExceeded},
		{fmt.Errorf("x: %w", errdefs.ErrInvalidArgument), codes.InvalidArgument},
		{fmt.Errorf("x: %w", errdefs.ErrNotFound), codes.NotFound},
		{fmt.Errorf("x: %w", errdefs.ErrAlreadyExists), codes.AlreadyExists},
		{fmt.Errorf("x: %w", errdefs.ErrPermissionDenied), codes.PermissionDenied},
		{fmt.Errorf("x: %w", errdefs.ErrResourceExhausted), codes.ResourceExhausted},
		{fmt.Errorf("x: %w", errdefs.ErrFailedPrecondition), codes.FailedPrecondition},
		{fmt.Errorf("x: %w", errdefs.ErrConflict), codes.FailedPrecondition},
		{fmt.Errorf("x: %w", errdefs.ErrAborted), codes.Aborted},
		{fmt.Errorf("x: %w", errdefs.ErrOutOfRange), codes.OutOfRange},
		{fmt.Errorf("x: %w", errdefs.ErrNotImplemented), codes.Unimplemented},
		{fmt.Errorf("x: %w", errdefs.ErrInternal), codes.Internal},
		{fmt.Errorf("x: %w", errdefs.ErrUnavailable), codes.Unavailable},
		{fmt.Errorf("x: %w", errdefs.ErrDataLoss), codes.DataLoss},
		{fmt.Errorf("x: %w", errdefs.ErrUnauthenticated), codes.Unauthenticated},
		{fmt.Errorf("the outermost decides: %w: %w", errdefs.ErrInvalidArgument, errdefs.ErrNotFound), codes.InvalidArgument},
		{errors.Join(errors.New("x"), errdefs.ErrNotFound), codes.NotFound},
		{fmt.Errorf("x: %w", engine.ErrConcurrentFailed), codes.ResourceExhausted},
		{fmt.Errorf("x: %w", engine.ErrExists), codes.AlreadyExists},
		{fmt.Errorf("x: %w", &engine.NameTakenError{Workflow: "sandbox", Name: "a", ID: "1"}), codes.AlreadyExists},
		{fmt.Errorf("x: %w", engine.ErrNotFound), codes.NotFound},
		{fmt.Errorf("x: %w", engine.ErrBusy), codes.FailedPrecondition},
		{fmt.Errorf("x: %w", engine.ErrClosed), codes.Unavailable},
		{fmt.Errorf("x: %w", engine.ErrUnknownFlow), codes.Internal},
		{fmt.Errorf("x: %w", engine.ErrUnset), codes.Internal},
		{fmt.Errorf("x: %w", &engine.StuckError{Workflow: "sandbox", ID: "1", Err: context.DeadlineExceeded}), codes.Unavailable},
		{action(&fs.PathError{Op: "write", Path: "/x", Err: unix.ENOSPC}), codes.ResourceExhausted},
		{fmt.Errorf("x: %w: %w", unix.EDQUOT, errdefs.ErrInvalidArgument), codes.ResourceExhausted},
		{fmt.Errorf("x: %w", unix.EMFILE), codes.ResourceExhausted},
		{fmt.Errorf("x: %w", unix.ENFILE), codes.ResourceExhausted},
		{fmt.Errorf("x: %w", unix.ENOMEM), codes.ResourceExhausted},
		{fmt.Errorf("x: %w", unix.EIO), codes.Unknown},
		{action(cni.ErrNoNetwork), codes.Unavailable},
		{action(cni.ErrNoAddress), codes.FailedPrecondition},
		{action(&cni.PluginError{Plugin: "bridge", Verb: "ADD", Err: errors.New("exit status 1")}), codes.Unavailable},
		{action(&cni.PluginError{Plugin: "bridge", Verb: "ADD", Err: context.Canceled}), codes.Canceled},
		{fmt.Errorf("%w: x", crierrors.ErrRegistryUnavailable), codes.Unknown},
		{fmt.Errorf("%w: x", crierrors.ErrSignatureValidationFailed), codes.Unknown},
		{action(&engine.PanicError{Value: errdefs.ErrNotFound}), codes.Internal},
		{fmt.Errorf("x: %w", status.Error(codes.PermissionDenied, "y")), codes.PermissionDenied},
		{fmt.Errorf("x: %w: %w", errdefs.ErrFailedPrecondition, status.Error(codes.Unknown, "y")), codes.FailedPrecondition},
	} {
		if got := Code(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
		s, ok := status.FromError(Status(c.err))
		if !ok || s.Code() != c.want {
			t.Errorf("%v: as a status %v, want %v", c.err, s.Code(), c.want)
		}
		if c.err != nil && !strings.Contains(s.Message(), c.err.Error()) && !strings.Contains(c.err.Error(), s.Message()) {
			t.Errorf("%v: the status says %q", c.err, s.Message())
		}
	}
}

// Every code that a call can fail with is explained.
func TestCodesAreDocumented(t *testing.T) {
	raw, err := os.ReadFile("../../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[codes.Code]bool{}
	for _, e := range byError {
		all[e.code] = true
	}
	for _, code := range byClass {
		all[code] = true
	}
	for code := range all {
		if !regexp.MustCompile(`(?m)^\|[^|]*\b` + code.String() + `\b[^|]*\|`).Match(raw) {
			t.Errorf("docs/errors.md has no row for %s", code)
		}
	}
}

func TestUnimplementedNamesTheRPC(t *testing.T) {
	err := Status(Unimplemented("StreamImages"))
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "StreamImages") {
		t.Error(err)
	}
}

// service answers by function.
type service struct {
	runtime.UnimplementedRuntimeServiceServer
	runtime.UnimplementedImageServiceServer
	answer func(ctx context.Context) error
	size   int
}

func (s *service) StopPodSandbox(ctx context.Context, _ *runtime.StopPodSandboxRequest) (*runtime.StopPodSandboxResponse, error) {
	return &runtime.StopPodSandboxResponse{}, s.answer(ctx)
}

func (s *service) ContainerStatus(ctx context.Context, _ *runtime.ContainerStatusRequest) (*runtime.ContainerStatusResponse, error) {
	return &runtime.ContainerStatusResponse{Info: map[string]string{"x": strings.Repeat("x", s.size)}}, s.answer(ctx)
}

func (s *service) PullImage(ctx context.Context, _ *runtime.PullImageRequest) (*runtime.PullImageResponse, error) {
	return &runtime.PullImageResponse{ImageRef: "sha256:1"}, s.answer(ctx)
}

func (s *service) GetContainerEvents(_ *runtime.GetEventsRequest, ss grpc.ServerStreamingServer[runtime.ContainerEventResponse]) error {
	return s.answer(ss.Context())
}

// log collects what is logged.
type log struct {
	mu    sync.Mutex
	lines []string
}

func (l *log) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// serve runs a server with the interceptors; it returns a client of it.
func serve(t *testing.T, s *service, verbosity int) (*grpc.ClientConn, *log, *prometheus.Registry) {
	t.Helper()
	l, reg := &log{}, prometheus.NewRegistry()
	logger := funcr.New(func(prefix, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, prefix+args)
	}, funcr.Options{Verbosity: verbosity})
	opts, err := ServerOptions(Options{Logger: logger, Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(opts...)
	runtime.RegisterRuntimeServiceServer(g, s)
	runtime.RegisterImageServiceServer(g, s)
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Serve(socket) })
	t.Cleanup(func() { g.Stop(); wg.Wait() })
	conn, err := grpc.NewClient(socket.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn, l, reg
}

// A request that panics gets an error; the daemon goes on.
func TestPanicIsTheRequestsOnly(t *testing.T) {
	s := &service{answer: func(context.Context) error { panic("a bug") }}
	conn, l, _ := serve(t, s, 0)
	client := runtime.NewRuntimeServiceClient(conn)
	if _, err := client.StopPodSandbox(t.Context(), &runtime.StopPodSandboxRequest{}); status.Code(err) != codes.Internal {
		t.Errorf("a panic gives %v", err)
	}
	if !strings.Contains(l.text(), "interceptors_test.go") {
		t.Errorf("no stack in the log: %s", l.text())
	}
	events, err := client.GetContainerEvents(t.Context(), &runtime.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := events.Recv(); status.Code(err) != codes.Internal {
		t.Errorf("a panic in a stream gives %v", err)
	}
	s.answer = func(context.Context) error { return nil }
	if _, err := client.StopPodSandbox(t.Context(), &runtime.StopPodSandboxRequest{}); err != nil {
		t.Error(err)
	}
}

func TestMetricsCountByMethodAndCode(t *testing.T) {
	s := &service{answer: func(context.Context) error { return nil }}
	conn, _, reg := serve(t, s, 0)
	client := runtime.NewRuntimeServiceClient(conn)
	for _, err := range []error{nil, nil, errdefs.ErrNotFound} {
		s.answer = func(context.Context) error { return err }
		_, _ = client.ContainerStatus(t.Context(), &runtime.ContainerStatusRequest{})
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			counts[key] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount()) + m.GetGauge().GetValue()
		}
	}
	want := map[string]float64{
		"sandflow_cri_requests_total OK ContainerStatus":        2,
		"sandflow_cri_requests_total NotFound ContainerStatus":  1,
		"sandflow_cri_request_duration_seconds ContainerStatus": 3,
		"sandflow_cri_requests_in_flight ContainerStatus":       0,
	}
	if !maps.Equal(counts, want) {
		t.Errorf("counted %v, want %v", counts, want)
	}
}

func TestLogHasIDsAndNoSecrets(t *testing.T) {
	s := &service{answer: func(ctx context.Context) error { klog.FromContext(ctx).Info("inside"); return nil }}
	conn, l, _ := serve(t, s, levelBody)
	_, err := runtime.NewImageServiceClient(conn).PullImage(t.Context(), &runtime.PullImageRequest{
		Image: &runtime.ImageSpec{Image: "registry.example/app:1"},
		Auth: &runtime.AuthConfig{
			Username: "secret-user", Password: "secret-password", Auth: "secret-auth",
			IdentityToken: "secret-identity", RegistryToken: "secret-registry", ServerAddress: "registry.example",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(l.text(), "secret") {
		t.Errorf("a secret is in the log: %s", l.text())
	}
	for _, want := range []string{`"rpc"="PullImage"`, `"image"="registry.example/app:1"`, mark, "inside", `"code"="OK"`, "sha256:1"} {
		if !strings.Contains(l.text(), want) {
			t.Errorf("%q is not in the log: %s", want, l.text())
		}
	}
	text := body(&runtime.CreateContainerRequest{Config: &runtime.ContainerConfig{
		Envs: []*runtime.KeyValue{{Key: "TOKEN", Value: []byte("secret")}}, Labels: map[string]string{"a": "b"},
	}})
	if strings.Contains(text, "secret") || !strings.Contains(text, "TOKEN") {
		t.Errorf("the body is %s", text)
	}
}

// Kubelet asks for what has gone all the time; failures to act are always logged.
func TestLogLevels(t *testing.T) {
	s := &service{answer: func(context.Context) error { return fmt.Errorf("container x: %w", errdefs.ErrNotFound) }}
	conn, l, _ := serve(t, s, 0)
	client := runtime.NewRuntimeServiceClient(conn)
	_, _ = client.ContainerStatus(t.Context(), &runtime.ContainerStatusRequest{ContainerId: "x"})
	if l.text() != "" {
		t.Errorf("logged: %s", l.text())
	}
	_, _ = client.StopPodSandbox(t.Context(), &runtime.StopPodSandboxRequest{PodSandboxId: "y"})
	if !strings.Contains(l.text(), `"sandbox"="y"`) || !strings.Contains(l.text(), "RPC failed") {
		t.Errorf("logged: %s", l.text())
	}
}

// Case 82: replies above gRPC's own limit of 4 MiB arrive.
func TestLargeMessages(t *testing.T) {
	s := &service{size: 17 << 20, answer: func(context.Context) error { return nil }}
	conn, _, _ := serve(t, s, 0)
	client := runtime.NewRuntimeServiceClient(conn)
	reply, err := client.ContainerStatus(t.Context(), &runtime.ContainerStatusRequest{ContainerId: strings.Repeat("x", 17<<20)})
	if err != nil || len(reply.GetInfo()["x"]) != s.size {
		t.Errorf("%d bytes, %v", len(reply.GetInfo()["x"]), err)
	}
}

// An error without a class gets that of the request's context, once that has ended.
func TestErrorOfAnEndedRequest(t *testing.T) {
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	if got := Code(inContext(ctx, errors.New("signal: killed"))); got != codes.DeadlineExceeded {
		t.Errorf("code %v", got)
	}
	if got := Code(inContext(ctx, errdefs.ErrNotFound)); got != codes.NotFound {
		t.Errorf("code %v", got)
	}
}
