// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/cri"
	"github.com/sandflow-cri/sandflow/cri/streaming"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/snapshot/snapshottest"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/runtime"
)

// The subjects that requests find.
const (
	fuzzPod = "pod-0123"
	fuzzCtr = "ctr-0123"
)

// callTime bounds a call: there is nothing that it could wait for.
const callTime = 100 * time.Millisecond

// FuzzRequests sends requests of all kinds to the server's handlers: whatever is in them, the
// answer is a response or an error, and afterwards the server is as good as before.
func FuzzRequests(f *testing.F) {
	s := newFuzzServer(f)
	for i, m := range s.methods {
		f.Add(uint8(i), []byte{})
		for _, seed := range s.seeds(m.name) {
			raw, err := proto.Marshal(seed)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(uint8(i), raw)
		}
	}
	f.Fuzz(func(t *testing.T, method uint8, raw []byte) {
		if err := s.prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), callTime)
		defer cancel()
		_ = s.methods[int(method)%len(s.methods)].call(ctx, raw) // most requests are bad
	})
}

// fuzzServer is a real server over actions that do nothing, without any shim.
type fuzzServer struct {
	*cri.Server
	engine  *engine.Engine
	image   string
	scratch string
	methods []fuzzMethod
}

type fuzzMethod struct {
	name string
	call func(ctx context.Context, raw []byte) error
}

func newFuzzServer(f *testing.F) *fuzzServer {
	f.Helper()
	dir := snapshottest.Dir(f)
	s := &fuzzServer{scratch: filepath.Join(dir, "scratch")}
	registry := snapshottest.Serve(f, nil)
	s.image = registry.Push(f, "app:1", snapshottest.Image(f, v1.Config{Cmd: []string{"true"}}))
	c := snapshottest.Config(dir)
	c.RegistryConfigPath = filepath.Join(dir, "certs.d")
	hosts := filepath.Join(c.RegistryConfigPath, "_default", "hosts.toml")
	err := errors.Join(os.MkdirAll(filepath.Dir(hosts), 0o755), os.Mkdir(s.scratch, 0o755),
		os.WriteFile(hosts, []byte("server = \"http://"+registry.Host+"\"\n"), 0o600))
	if err != nil {
		f.Fatal(err)
	}
	network, err := cni.New(cni.Config{ConfDir: filepath.Join(dir, "net.d"), CacheDir: filepath.Join(dir, "cni"), BinDirs: []string{dir}})
	if err != nil {
		f.Fatal(err)
	}
	cfg := steps.Config{
		State: filepath.Join(dir, "run"), Root: filepath.Join(dir, "lib"), DefaultRuntime: "runc", MaxLogLine: 1 << 14,
		CgroupDriver: "cgroupfs", DefaultCgroupParent: "/sandflow-fuzz",
		Runtimes: map[string]steps.Runtime{"runc": {Type: runtime.OwnType, Binary: "runc", Sandbox: "shim"}},
	}
	services := &steps.Services{
		Config: cfg, Store: snapshottest.Open(f, c), CNI: network,
		Runtime: runtime.NewManager(runtime.Config{State: cfg.State, Handlers: map[string]runtime.Handler{"": {Type: runtime.OwnType}}}),
	}
	f.Cleanup(func() { _ = services.Runtime.Close() })
	s.engine = idleEngine(f)
	s.Server, err = cri.New(cri.Dependencies{Engine: s.engine, Services: services, Stream: streaming.Config{}, Version: "0"})
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.Context()))
	if err := s.Start(ctx); err != nil {
		f.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	f.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			f.Error(err)
		}
	})
	s.Register(s)
	return s
}

// idleEngine has both ladders, with actions that do nothing.
func idleEngine(f *testing.F) *engine.Engine {
	f.Helper()
	create := engine.FlowConfig{Failover: true, Steps: [][]string{{"idle"}}}
	start := engine.FlowConfig{Failover: true, Steps: [][]string{{"idle-too"}}}
	lookup := func(string) (engine.Action, bool) { return idleAction{}, true }
	e, err := engine.New(engine.Options{Journal: &forgetful{}, Lookup: lookup, Known: []string{"idle"}}, []engine.Definition{
		{
			Name: steps.Sandbox, Given: []engine.Key{steps.PodRequest.Key()},
			Up:   []engine.FlowDef{{Name: steps.Create, To: steps.Ready}},
			Down: []engine.FlowDef{{Name: steps.Destroy, To: steps.Reserved}, {Name: steps.Cleanup, To: steps.Ground}},
		}, {
			Name: steps.Container, Given: []engine.Key{steps.ContainerRequest.Key()},
			Up:   []engine.FlowDef{{Name: steps.Create, To: steps.Created}, {Name: steps.Start, To: steps.Running}},
			Down: []engine.FlowDef{{Name: steps.Stop, To: steps.Created}, {Name: steps.Remove, To: steps.Ground}},
		},
	}, map[string]map[string]engine.FlowConfig{
		steps.Sandbox: {steps.Create: create}, steps.Container: {steps.Create: create, steps.Start: start},
	})
	if err == nil {
		err = e.Boot(f.Context())
	}
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := e.Close(context.WithoutCancel(f.Context())); err != nil {
			f.Error(err)
		}
	})
	return e
}

type idleAction struct{}

func (idleAction) Do(context.Context, *engine.Run) error   { return nil }
func (idleAction) Undo(context.Context, *engine.Run) error { return nil }

// forgetful is a journal that keeps nothing.
type forgetful struct{}

func (*forgetful) Load(func(string, []byte) error) error { return nil }
func (*forgetful) Write([]engine.Change) error           { return nil }
func (*forgetful) Close() error                          { return nil }

// RegisterService implements grpc.ServiceRegistrar: it keeps the handlers, without the
// interceptors that would catch a panic.
func (s *fuzzServer) RegisterService(d *grpc.ServiceDesc, server any) {
	for _, m := range d.Methods {
		s.methods = append(s.methods, fuzzMethod{m.MethodName, func(ctx context.Context, raw []byte) error {
			_, err := m.Handler(server, ctx, func(into any) error { return s.decode(raw, into) }, nil)
			return err
		}})
	}
	for _, m := range d.Streams {
		s.methods = append(s.methods, fuzzMethod{m.StreamName, func(ctx context.Context, raw []byte) error {
			return m.Handler(server, &fuzzStream{ctx, s, raw})
		}})
	}
}

// decode reads a request; nothing is to be written outside of the scratch directory.
func (s *fuzzServer) decode(raw []byte, into any) error {
	m, ok := into.(proto.Message)
	if !ok {
		return errdefs.ErrInvalidArgument
	}
	if err := proto.Unmarshal(raw, m); err != nil {
		return err
	}
	inside := func(path string) string { return filepath.Join(s.scratch, filepath.Join("/", path)) }
	switch r := into.(type) {
	case *criapi.CheckpointContainerRequest:
		r.Location = inside(r.GetLocation())
	case *criapi.CheckpointPodRequest:
		r.OutputPath = inside(r.GetOutputPath())
	case *criapi.RestorePodRequest:
		r.CheckpointPath = inside(r.GetCheckpointPath())
	}
	return nil
}

// fuzzStream is a stream with one request, whose client takes all answers.
type fuzzStream struct {
	ctx    context.Context //nolint:containedctx // it is asked for it
	server *fuzzServer
	raw    []byte
}

func (s *fuzzStream) Context() context.Context     { return s.ctx }
func (s *fuzzStream) SetHeader(metadata.MD) error  { return nil }
func (s *fuzzStream) SendHeader(metadata.MD) error { return nil }
func (s *fuzzStream) SetTrailer(metadata.MD)       {}

func (s *fuzzStream) SendMsg(m any) error {
	_, err := proto.Marshal(m.(proto.Message))
	return err
}

func (s *fuzzStream) RecvMsg(into any) error {
	if s.raw == nil {
		return io.EOF
	}
	err := s.server.decode(s.raw, into)
	s.raw = nil
	return err
}

// prepare makes the pod, its running container and the image, where a request has taken them
// away, and takes away what requests have made.
func (s *fuzzServer) prepare(ctx context.Context) error {
	for workflow, keep := range map[string]string{steps.Container: fuzzCtr, steps.Sandbox: fuzzPod} {
		down := map[string]string{steps.Container: steps.Remove, steps.Sandbox: steps.Cleanup}[workflow]
		for _, v := range s.engine.List(workflow) {
			good := v.ID == keep && (v.Station == steps.Ready || v.Station == steps.Running)
			if good {
				continue
			}
			if err := s.engine.Descend(ctx, workflow, down, v.ID, engine.DescendOptions{Interrupt: true}); err != nil {
				return err
			}
		}
	}
	if _, ok := s.engine.Get(steps.Sandbox, fuzzPod); !ok {
		request := steps.Pod{Config: steps.Proto[*criapi.PodSandboxConfig]{M: podConfig("held")}, Created: time.Now()}
		err := s.engine.Climb(ctx, steps.Sandbox, steps.Create, fuzzPod, engine.ClimbOptions{Values: []engine.Value{
			steps.PodRequest.With(request), steps.PodShim.With(steps.Shim{Address: filepath.Join(s.scratch, "none")}),
		}})
		if err != nil {
			return err
		}
	}
	if _, ok := s.engine.Get(steps.Container, fuzzCtr); ok {
		return nil
	}
	request := steps.Ctr{PodID: fuzzPod, Config: steps.Proto[*criapi.ContainerConfig]{M: s.ctrConfig()}, Created: time.Now(), LogPath: filepath.Join(s.scratch, "log")}
	err := s.engine.Climb(ctx, steps.Container, steps.Create, fuzzCtr, engine.ClimbOptions{Values: []engine.Value{
		steps.ContainerRequest.With(request), steps.ContainerSpec.With(steps.Spec{Bundle: s.scratch, CgroupPath: "/sandflow-fuzz/" + fuzzCtr}),
	}})
	if err != nil {
		return err
	}
	return s.engine.Climb(ctx, steps.Container, steps.Start, fuzzCtr, engine.ClimbOptions{Values: []engine.Value{
		steps.ContainerTask.With(steps.Task{Started: time.Now()}),
	}})
}

func podConfig(name string) *criapi.PodSandboxConfig {
	return &criapi.PodSandboxConfig{
		Metadata: &criapi.PodSandboxMetadata{Name: name, Uid: "uid", Namespace: "ns"}, Hostname: "host", LogDirectory: "/var/log/pods/x",
		DnsConfig:    &criapi.DNSConfig{Servers: []string{"10.0.0.1"}, Searches: []string{"a.b"}, Options: []string{"ndots:5"}},
		PortMappings: []*criapi.PortMapping{{ContainerPort: 80, HostPort: 8080, HostIp: "127.0.0.1"}},
		Annotations:  map[string]string{"kubernetes.io/ingress-bandwidth": "1M"},
		Linux: &criapi.LinuxPodSandboxConfig{
			CgroupParent: "/pods", Sysctls: map[string]string{"net.ipv4.ip_forward": "1"}, Overhead: &criapi.LinuxContainerResources{CpuShares: 2},
			SecurityContext: &criapi.LinuxSandboxSecurityContext{NamespaceOptions: &criapi.NamespaceOption{UsernsOptions: &criapi.UserNamespace{
				Uids: []*criapi.IDMapping{{HostId: 65536, Length: 65536}}, Gids: []*criapi.IDMapping{{HostId: 65536, Length: 65536}},
			}}},
		},
	}
}

func (s *fuzzServer) ctrConfig() *criapi.ContainerConfig {
	return &criapi.ContainerConfig{
		Metadata: &criapi.ContainerMetadata{Name: "c"}, Image: &criapi.ImageSpec{Image: s.image}, LogPath: "c/0.log", WorkingDir: "/w",
		Command: []string{"a"}, Args: []string{"b"}, Envs: []*criapi.KeyValue{{Key: "K", Value: []byte("v")}},
		Mounts:     []*criapi.Mount{{ContainerPath: "/m", HostPath: "/h", Readonly: true, RecursiveReadOnly: true}, {ContainerPath: "/i", Image: &criapi.ImageSpec{Image: s.image}, ImageSubPath: "x"}},
		Devices:    []*criapi.Device{{ContainerPath: "/dev/x", HostPath: "/dev/null", Permissions: "rwm"}},
		CDIDevices: []*criapi.CDIDevice{{Name: "vendor.com/class=name"}},
		Linux: &criapi.LinuxContainerConfig{
			Resources: resources(),
			SecurityContext: &criapi.LinuxContainerSecurityContext{
				Capabilities: &criapi.Capability{AddCapabilities: []string{"ALL"}}, RunAsUsername: "root", MaskedPaths: []string{"/proc/x"},
				Seccomp: &criapi.SecurityProfile{ProfileType: criapi.SecurityProfile_RuntimeDefault}, SupplementalGroups: []int64{1},
			},
		},
	}
}

func resources() *criapi.LinuxContainerResources {
	return &criapi.LinuxContainerResources{
		CpuShares: 1024, CpuQuota: 1000, CpuPeriod: 1000, MemoryLimitInBytes: 1 << 20, OomScoreAdj: 1, CpusetCpus: "0",
		HugepageLimits: []*criapi.HugepageLimit{{PageSize: "2MB", Limit: 1}}, Unified: map[string]string{"memory.max": "1"},
	}
}

// seeds are requests that find something, by the method's name.
func (s *fuzzServer) seeds(method string) []proto.Message {
	image := &criapi.ImageSpec{Image: s.image}
	byID := []proto.Message{
		&criapi.StopContainerRequest{ContainerId: fuzzCtr, Timeout: 1}, // the same on the wire for all that name one
		&criapi.StopPodSandboxRequest{PodSandboxId: fuzzPod},
	}
	switch method {
	case "RunPodSandbox":
		return []proto.Message{&criapi.RunPodSandboxRequest{Config: podConfig("new"), RuntimeHandler: "runc"}}
	case "CreateContainer":
		return []proto.Message{&criapi.CreateContainerRequest{PodSandboxId: fuzzPod, Config: s.ctrConfig(), SandboxConfig: podConfig("held")}}
	case "UpdateContainerResources":
		return []proto.Message{&criapi.UpdateContainerResourcesRequest{ContainerId: fuzzCtr, Linux: resources(), Annotations: map[string]string{"a": "b"}}}
	case "UpdatePodSandboxResources":
		return []proto.Message{&criapi.UpdatePodSandboxResourcesRequest{PodSandboxId: fuzzPod, Resources: resources(), Overhead: resources()}}
	case "Exec", "ExecSync", "Attach":
		return append(byID, &criapi.ExecRequest{ContainerId: fuzzCtr, Cmd: []string{"a"}, Stdin: true, Stdout: true},
			&criapi.ExecSyncRequest{ContainerId: fuzzCtr, Cmd: []string{"a"}, Timeout: 1},
			&criapi.AttachRequest{ContainerId: fuzzCtr, Stdin: true, Stdout: true})
	case "PortForward":
		return []proto.Message{&criapi.PortForwardRequest{PodSandboxId: fuzzPod, Port: []int32{80, -1}}}
	case "PullImage", "ImageStatus", "RemoveImage":
		return []proto.Message{
			&criapi.ImageStatusRequest{Image: image, Verbose: true},
			&criapi.PullImageRequest{Image: image, Auth: &criapi.AuthConfig{Auth: "dXNlcjpwYXNz", ServerAddress: "http://h"}, SandboxConfig: podConfig("x")},
		}
	case "CheckpointContainer", "CheckpointPod", "RestorePod":
		return append(byID, &criapi.CheckpointContainerRequest{ContainerId: fuzzCtr, Location: "x", Timeout: 1},
			&criapi.CheckpointPodRequest{PodSandboxId: fuzzPod, OutputPath: "x", ContainerIds: []string{fuzzCtr}},
			&criapi.RestorePodRequest{CheckpointPath: "x", Config: podConfig("back")})
	case "UpdateRuntimeConfig":
		return []proto.Message{&criapi.UpdateRuntimeConfigRequest{RuntimeConfig: &criapi.RuntimeConfig{NetworkConfig: &criapi.NetworkConfig{PodCidr: "10.0.0.0/24"}}}}
	}
	if slices.ContainsFunc([]string{"List", "Stream"}, func(p string) bool { return strings.HasPrefix(method, p) }) {
		return []proto.Message{
			&criapi.ListContainersRequest{Filter: &criapi.ContainerFilter{Id: fuzzCtr[:5], PodSandboxId: fuzzPod, LabelSelector: map[string]string{"a": "b"}, State: &criapi.ContainerStateValue{State: 1}}},
		}
	}
	return byID
}
