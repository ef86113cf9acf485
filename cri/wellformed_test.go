// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cri/interceptors"
	"github.com/sandflow-cri/sandflow/steps"
)

// strict is a rig with a configuration that checks go by.
func strict(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.config = steps.Config{
		State: t.TempDir(), DefaultRuntime: "runc", DefaultCgroupParent: "/sandflow",
		Runtimes: map[string]steps.Runtime{"runc": {Binary: "runc"}},
	}
	return r
}

func goodResources() *criapi.LinuxContainerResources {
	return &criapi.LinuxContainerResources{
		CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 100, MemoryLimitInBytes: 1 << 26, OomScoreAdj: 500, CpusetCpus: "0", CpusetMems: "0",
		HugepageLimits: []*criapi.HugepageLimit{{PageSize: "2MB", Limit: 1 << 21}}, Unified: map[string]string{"memory.high": "max"},
		MemorySwapLimitInBytes: 1 << 27,
	}
}

func goodNamespaces() *criapi.NamespaceOption {
	ids := []*criapi.IDMapping{{HostId: 100000, Length: 65536}}
	return &criapi.NamespaceOption{
		Pid: criapi.NamespaceMode_CONTAINER, TargetId: "x", Network: criapi.NamespaceMode_NODE, Ipc: criapi.NamespaceMode_NODE,
		UsernsOptions: &criapi.UserNamespace{Mode: criapi.NamespaceMode_POD, Uids: ids, Gids: ids},
	}
}

func goodPod() *criapi.PodSandboxConfig {
	return &criapi.PodSandboxConfig{
		Metadata: &criapi.PodSandboxMetadata{Name: "n", Uid: "u", Namespace: "ns", Attempt: 1}, Hostname: "host", LogDirectory: "/none/such",
		DnsConfig:    &criapi.DNSConfig{Servers: []string{"10.0.0.1"}, Searches: []string{"a.b"}, Options: []string{"ndots:5"}},
		PortMappings: []*criapi.PortMapping{{Protocol: criapi.Protocol_UDP, ContainerPort: 80, HostPort: 8080, HostIp: "127.0.0.1"}},
		Labels:       map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"},
		Linux: &criapi.LinuxPodSandboxConfig{
			CgroupParent: "/parent", Sysctls: map[string]string{"kernel.shmmax": "1"}, Overhead: goodResources(), Resources: goodResources(),
			SecurityContext: &criapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &criapi.NamespaceOption{
					Pid: criapi.NamespaceMode_CONTAINER, TargetId: "x", Network: criapi.NamespaceMode_NODE, UsernsOptions: goodNamespaces().GetUsernsOptions(),
				},
				SelinuxOptions: &criapi.SELinuxOption{User: "u", Role: "r", Type: "t", Level: "s0"},
				RunAsUser:      &criapi.Int64Value{Value: 1}, RunAsGroup: &criapi.Int64Value{Value: 1}, ReadonlyRootfs: true, SupplementalGroups: []int64{5},
				Privileged: true, Seccomp: &criapi.SecurityProfile{ProfileType: criapi.SecurityProfile_Localhost, LocalhostRef: "/p"},
				Apparmor:           &criapi.SecurityProfile{ProfileType: criapi.SecurityProfile_Localhost, LocalhostRef: "p"},
				SeccompProfilePath: "runtime/default", SupplementalGroupsPolicy: criapi.SupplementalGroupsPolicy_Strict, //nolint:staticcheck // older clients send the deprecated field
			},
		},
	}
}

func goodContainer() *criapi.ContainerConfig {
	image := &criapi.ImageSpec{Image: "i", Annotations: map[string]string{"a": "b"}, UserSpecifiedImage: "i", RuntimeHandler: "runc", ImageRef: "r"}
	ids := []*criapi.IDMapping{{HostId: 100000, Length: 65536}}
	profile := &criapi.SecurityProfile{ProfileType: criapi.SecurityProfile_Localhost, LocalhostRef: "/p"}
	return &criapi.ContainerConfig{
		Metadata: &criapi.ContainerMetadata{Name: "n", Attempt: 1}, Image: image, Command: []string{"c"}, Args: []string{"a"}, WorkingDir: "/w",
		Envs: []*criapi.KeyValue{{Key: "k", Value: []byte("v")}},
		Mounts: []*criapi.Mount{
			{ContainerPath: "/c", HostPath: "/h", SelinuxRelabel: true, Propagation: criapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, UidMappings: ids, GidMappings: ids, MountOptions: []string{"noexec"}},
			{ContainerPath: "/d", Image: image, ImageSubPath: "s", Readonly: true, RecursiveReadOnly: true},
		},
		Devices: []*criapi.Device{{ContainerPath: "/dev/x", HostPath: "/dev/null", Permissions: "r"}},
		Labels:  map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}, LogPath: "l", Stdin: true, StdinOnce: true, Tty: true,
		CDIDevices: []*criapi.CDIDevice{{Name: "vendor.com/class=name"}}, StopSignal: criapi.Signal_SIGNAL_SIGHUP,
		Linux: &criapi.LinuxContainerConfig{Resources: goodResources(), SecurityContext: &criapi.LinuxContainerSecurityContext{
			Capabilities: &criapi.Capability{AddCapabilities: []string{"KILL"}, DropCapabilities: []string{"CHOWN"}, AddAmbientCapabilities: []string{"KILL"}},
			Privileged:   true, NamespaceOptions: goodNamespaces(), SelinuxOptions: &criapi.SELinuxOption{User: "u", Role: "r", Type: "t", Level: "s0"},
			RunAsUser: &criapi.Int64Value{Value: 1}, RunAsGroup: &criapi.Int64Value{Value: 1}, RunAsUsername: "", ReadonlyRootfs: true, SupplementalGroups: []int64{5},
			NoNewPrivs: true, MaskedPaths: []string{"/m"}, ReadonlyPaths: []string{"/r"}, Seccomp: profile, Apparmor: profile,
			ApparmorProfile: "localhost/p", SeccompProfilePath: "localhost//p", SupplementalGroupsPolicy: criapi.SupplementalGroupsPolicy_Strict, //nolint:staticcheck // older clients send the deprecated fields
		}},
	}
}

// spoil gives a message with one value at a time made bad, and the name of its field.
func spoil(t *testing.T, good proto.Message, try func(field string, bad proto.Message)) {
	t.Helper()
	var walk func(m func(proto.Message) protoreflect.Message, d protoreflect.MessageDescriptor, name string)
	walk = func(at func(proto.Message) protoreflect.Message, d protoreflect.MessageDescriptor, name string) {
		for i := range d.Fields().Len() {
			f := d.Fields().Get(i)
			field := string(f.Name())
			if field == "windows" || field == "run_as_username" { // the latter excludes run_as_user
				continue
			}
			if !at(good).Has(f) && f.Kind() != protoreflect.BoolKind && f.Kind() != protoreflect.EnumKind && name != "mounts" && d.Name() != "NamespaceOption" && d.Name() != "IDMapping" {
				t.Errorf("the good request lacks %s.%s: is it a new field?", d.FullName(), field)
			}
			if d.Name() == "Int64Value" {
				field = name
			}
			with := func(set func(protoreflect.Message)) {
				bad := proto.Clone(good)
				set(at(bad))
				try(field, bad)
			}
			switch {
			case f.IsMap():
				with(func(m protoreflect.Message) {
					m.Mutable(f).Map().Set(protoreflect.ValueOfString("x\x00").MapKey(), protoreflect.ValueOfString("y"))
				})
				with(func(m protoreflect.Message) {
					m.Mutable(f).Map().Set(protoreflect.ValueOfString("x").MapKey(), protoreflect.ValueOfString("y\x00"))
				})
			case f.IsList() && f.Message() != nil:
				for j := range at(good).Get(f).List().Len() {
					walk(func(m proto.Message) protoreflect.Message { return at(m).Mutable(f).List().Get(j).Message() }, f.Message(), field)
				}
			case f.IsList():
				if v, ok := badValue(f); ok {
					with(func(m protoreflect.Message) { m.Mutable(f).List().Append(v) })
				}
			case f.Message() != nil:
				if at(good).Has(f) {
					walk(func(m proto.Message) protoreflect.Message { return at(m).Mutable(f).Message() }, f.Message(), field)
				}
			default:
				if v, ok := badValue(f); ok {
					with(func(m protoreflect.Message) { m.Set(f, v) })
				}
			}
		}
	}
	walk(func(m proto.Message) protoreflect.Message { return m.ProtoReflect() }, good.ProtoReflect().Descriptor(), "")
}

// badValue is what no field of that kind may have.
func badValue(f protoreflect.FieldDescriptor) (protoreflect.Value, bool) {
	switch f.Kind() {
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(77), true
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("a\x00b"), true
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(math.MinInt64), true
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(math.MinInt32), true
	default:
		return protoreflect.Value{}, false
	}
}

// names tells whether an error names a field, also in the words of Go.
func names(err error, field string) bool {
	text := strings.ReplaceAll(strings.ToLower(err.Error()), " ", "_")
	return strings.Contains(text, strings.ToLower(field))
}

// Each field of a pod's configuration, with a value that no field may have, is refused by name,
// and nothing has been made.
func TestPodWithABadValue(t *testing.T) {
	r := strict(t)
	if err := r.checkPod(&criapi.RunPodSandboxRequest{Config: goodPod()}); err != nil {
		t.Fatalf("the good one is refused: %v", err)
	}
	tried := 0
	spoil(t, goodPod(), func(field string, bad proto.Message) {
		tried++
		config, _ := bad.(*criapi.PodSandboxConfig)
		_, err := r.client.RunPodSandbox(t.Context(), &criapi.RunPodSandboxRequest{Config: config})
		if interceptors.Code(err) != codes.InvalidArgument || !names(err, field) {
			t.Errorf("%s: %v", field, err)
		}
	})
	if left := r.engine.List(steps.Sandbox); len(left) > 0 || tried < 50 {
		t.Errorf("%d of %d bad requests have made a pod", len(left), tried)
	}
}

func TestContainerWithABadValue(t *testing.T) {
	r := strict(t)
	config := goodPod()
	config.Linux.SecurityContext.NamespaceOptions.Ipc = criapi.NamespaceMode_NODE
	r.must(r.pod("pod1", config))
	p, err := r.findPod("pod1")
	r.must(err)
	r.must(r.checkContainer(p, goodContainer()))
	tried := 0
	spoil(t, goodContainer(), func(field string, bad proto.Message) {
		tried++
		config, _ := bad.(*criapi.ContainerConfig)
		_, err := r.client.CreateContainer(t.Context(), &criapi.CreateContainerRequest{PodSandboxId: "pod1", Config: config})
		if interceptors.Code(err) != codes.InvalidArgument || !names(err, field) {
			t.Errorf("%s: %v", field, err)
		}
	})
	if left := r.engine.List(steps.Container); len(left) > 0 || tried < 50 {
		t.Errorf("%d of %d bad requests have made a container", len(left), tried)
	}
}

func TestUpdateWithABadValue(t *testing.T) {
	r := newRig(t)
	bundle := r.createdWithBundle("ctr")
	before, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	r.must(err)
	spoil(t, goodResources(), func(field string, bad proto.Message) {
		limits, _ := bad.(*criapi.LinuxContainerResources)
		_, perr := r.client.UpdatePodSandboxResources(t.Context(), &criapi.UpdatePodSandboxResourcesRequest{PodSandboxId: "pod", Overhead: limits})
		for _, err := range []error{r.update("ctr", limits), perr} {
			if interceptors.Code(err) != codes.InvalidArgument || !names(err, field) {
				t.Errorf("%s: %v", field, err)
			}
		}
	})
	after, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	r.must(err)
	p, err := r.findPod("pod")
	r.must(err)
	if string(after) != string(before) || r.told("ctr") != nil || p.overhead() != nil {
		t.Errorf("something has changed: %s, %v, %v", after, r.told("ctr"), p.overhead())
	}
}

// What is in range and yet cannot be for a pod.
func TestPodThatCannotBe(t *testing.T) {
	r := strict(t)
	file := filepath.Join(t.TempDir(), "file")
	r.must(os.WriteFile(file, nil, 0o600))
	for field, spoil := range map[string]func(*criapi.PodSandboxConfig){
		"log_directory":             func(c *criapi.PodSandboxConfig) { c.LogDirectory = file },
		"Log_directory":             func(c *criapi.PodSandboxConfig) { c.LogDirectory = filepath.Join(file, "below") },
		"LOG_directory":             func(c *criapi.PodSandboxConfig) { c.LogDirectory = "relative" },
		"network":                   func(c *criapi.PodSandboxConfig) { mode(c).Network = criapi.NamespaceMode_CONTAINER },
		"Network":                   func(c *criapi.PodSandboxConfig) { mode(c).Network = criapi.NamespaceMode_TARGET },
		"ipc":                       func(c *criapi.PodSandboxConfig) { mode(c).Ipc = criapi.NamespaceMode_CONTAINER },
		"pid":                       func(c *criapi.PodSandboxConfig) { mode(c).Pid = criapi.NamespaceMode_TARGET },
		"run_as_user":               func(c *criapi.PodSandboxConfig) { c.Linux.SecurityContext.RunAsUser.Value = -1 },
		"run_as_group":              func(c *criapi.PodSandboxConfig) { c.Linux.SecurityContext.RunAsGroup.Value = -1 },
		"supplemental_groups":       func(c *criapi.PodSandboxConfig) { c.Linux.SecurityContext.SupplementalGroups = []int64{-1} },
		"seccomp.localhost_ref":     func(c *criapi.PodSandboxConfig) { c.Linux.SecurityContext.Seccomp.LocalhostRef = "relative" },
		"resources.cpu_shares":      func(c *criapi.PodSandboxConfig) { c.Linux.Resources.CpuShares = -1 },
		"overhead.memory_limit":     func(c *criapi.PodSandboxConfig) { c.Linux.Overhead.MemoryLimitInBytes = -2 },
		"metadata.name":             func(c *criapi.PodSandboxConfig) { c.Metadata.Name = "a;b" },
		"metadata.namespace":        func(c *criapi.PodSandboxConfig) { c.Metadata.Namespace = "a=b" },
		"metadata.uid":              func(c *criapi.PodSandboxConfig) { c.Metadata.Uid = "a\nb" },
		"port_mappings[0].host_ip":  func(c *criapi.PodSandboxConfig) { c.PortMappings[0].HostIp = "localhost" },
		"port_mappings[0].contain":  func(c *criapi.PodSandboxConfig) { c.PortMappings[0].ContainerPort = 0 },
		"port_mappings[0]:_host":    func(c *criapi.PodSandboxConfig) { c.PortMappings[0].HostPort = 1 << 17 },
		"port_mappings[0]:_contain": func(c *criapi.PodSandboxConfig) { c.PortMappings[0].ContainerPort = -1 },
	} {
		c := goodPod()
		spoil(c)
		_, err := r.client.RunPodSandbox(t.Context(), &criapi.RunPodSandboxRequest{Config: c})
		if interceptors.Code(err) != codes.InvalidArgument || !names(err, field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if left := r.engine.List(steps.Sandbox); len(left) > 0 {
		t.Errorf("%d bad requests have made a pod", len(left))
	}
	c := goodPod()
	c.LogDirectory, c.Linux.SecurityContext.RunAsUser = filepath.Dir(file), nil // as kubelet sends a pod's group alone
	if err := r.checkPod(&criapi.RunPodSandboxRequest{Config: c}); err != nil {
		t.Error(err)
	}
}

func mode(c *criapi.PodSandboxConfig) *criapi.NamespaceOption {
	return c.Linux.SecurityContext.NamespaceOptions
}

// A container cannot have another network or IPC namespace than its pod.
func TestContainerOutsideOfItsPod(t *testing.T) {
	r := strict(t)
	r.must(r.pod("pod1", nil))
	p, err := r.findPod("pod1")
	r.must(err)
	for field, o := range map[string]*criapi.NamespaceOption{
		"network": {Network: criapi.NamespaceMode_NODE}, "ipc": {Ipc: criapi.NamespaceMode_NODE}, "Network": {Network: criapi.NamespaceMode_TARGET},
		"pid": {Pid: criapi.NamespaceMode_NODE},
	} {
		c := &criapi.ContainerConfig{
			Metadata: &criapi.ContainerMetadata{Name: "n"}, Image: &criapi.ImageSpec{Image: "i"},
			Linux: &criapi.LinuxContainerConfig{SecurityContext: &criapi.LinuxContainerSecurityContext{NamespaceOptions: o}},
		}
		if err := r.checkContainer(p, c); !errors.Is(err, errdefs.ErrInvalidArgument) || !names(err, field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// Checkpoints are asked for by paths.
func TestCheckpointWithABadPath(t *testing.T) {
	r := strict(t)
	r.must(r.pod("pod1", nil), r.container("pod1", "ctr", nil), r.run("ctr"))
	const path = "/tmp/a\x00b"
	_, container := r.client.CheckpointContainer(t.Context(), &criapi.CheckpointContainerRequest{ContainerId: "ctr", Location: path})
	_, pod := r.client.CheckpointPod(t.Context(), &criapi.CheckpointPodRequest{PodSandboxId: "pod1", OutputPath: path})
	_, restored := r.client.RestorePod(t.Context(), &criapi.RestorePodRequest{CheckpointPath: path, Config: goodPod()})
	for field, err := range map[string]error{"location": container, "output_path": pod, "checkpoint_path": restored} {
		if interceptors.Code(err) != codes.InvalidArgument || !names(err, field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
