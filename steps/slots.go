// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"encoding/json"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
)

// Slots of the pod's ladder.
var (
	PodRequest    = engine.NewSlot[Pod]("sandbox.request")                                       // given
	PodFiles      = engine.NewSlot[Files]("sandbox.files")                                       // by action files
	PodNamespaces = engine.NewSlot[Namespaces]("sandbox.namespaces")                             // by action namespaces
	PodNetwork    = engine.NewSlot[Network]("sandbox.network")                                   // by action network
	PodShim       = engine.NewSlot[Shim]("sandbox.shim")                                         // by action shim
	PodLost       = engine.NewSlot[bool]("sandbox.lost")                                         // amended: its shim went away unasked
	PodCut        = engine.NewSlot[Cut]("sandbox.cut")                                           // amended
	PodRestore    = engine.NewSlot[Restore]("sandbox.restore")                                   // amended
	PodResources  = engine.NewSlot[Proto[*runtime.LinuxContainerResources]]("sandbox.resources") // amended
	PodOverhead   = engine.NewSlot[Proto[*runtime.LinuxContainerResources]]("sandbox.overhead")  // amended
)

// Slots of the container's ladder.
var (
	ContainerRequest   = engine.NewSlot[Ctr]("container.request")                                  // given
	ContainerPod       = engine.NewSlot[PodView]("container.pod")                                  // given
	ContainerRootfs    = engine.NewSlot[Rootfs]("container.rootfs")                                // by action rootfs
	ContainerVolumes   = engine.NewSlot[Volumes]("container.volumes")                              // by action volumes
	ContainerSpec      = engine.NewSlot[Spec]("container.spec")                                    // by action spec
	ContainerCgroup    = engine.NewSlot[string]("container.cgroup")                                // by action nri-container, if plugins want another
	ContainerTask      = engine.NewSlot[Task]("container.task")                                    // by action task
	ContainerExit      = engine.NewSlot[Exit]("container.exit")                                    // amended
	ContainerStop      = engine.NewSlot[Stopping]("container.stop")                                // amended
	ContainerResources = engine.NewSlot[Proto[*runtime.ContainerResources]]("container.resources") // amended
	ContainerBefore    = engine.NewSlot[Before]("container.before")                                // amended
)

// Pod is the request for a pod.
type Pod struct {
	Config  Proto[*runtime.PodSandboxConfig]
	Handler string // the runtime handler as asked for
	Created time.Time
}

// Files are the paths of a pod's files. A path is empty where the pod uses the node's.
type Files struct {
	Hosts, Hostname, ResolvConf, Shm string
}

// Namespaces are the paths of a pod's pinned namespaces. Empty: the node's, or
// for PID each container's own.
type Namespaces struct {
	Net, IPC, UTS, User string
	// HostName is the UTS host name of the pod.
	HostName string
}

// Network is what the CNI plugins gave; nothing for a pod on the node's network.
type Network struct {
	// IPs in the order the plugins gave them; the first is the primary.
	IPs []string
	// Results holds the CNI result of each network, as JSON.
	Results json.RawMessage
}

// Shim is where a pod's shim answers.
type Shim struct {
	Address string // unix socket of its ttrpc services
	Streams string // unix socket for attach; empty for foreign runtimes
	PID     int
	// PIDNamespace is the pinned path of the pod's shared PID namespace, or empty.
	PIDNamespace string
	// Protocol is the version of the protocol that the shim speaks; 0 if it is older than
	// such versions, or foreign.
	Protocol int `json:",omitempty"`
}

// PodView is what a container sees of its pod.
type PodView struct {
	ID         string
	Pod        Pod
	Files      Files
	Namespaces Namespaces
	Shim       Shim
}

// Ctr is the request for a container.
type Ctr struct {
	PodID   string
	Config  Proto[*runtime.ContainerConfig]
	Created time.Time
	Image   Image
	// LogPath is the absolute path of the log file; empty: no log.
	LogPath string
	// TargetPID is the init process of the container whose PID namespace is joined
	// (NamespaceMode TARGET); 0 for none.
	TargetPID  int
	StopSignal string
	// Restored is set for a container whose processes come from the dump in Config.DumpDir.
	Restored bool
}

// Cut is a checkpoint in the making: what must be put right if the daemon dies in it.
type Cut struct {
	// Containers may be frozen.
	Containers []string
	// Paths are the half-made files and directories.
	Paths []string
}

// Restore marks a pod that is being made from a checkpoint. A daemon that finds one
// pending at its start removes it: nobody was told of it.
type Restore struct{ Pending bool }

// Image is what a container needs to know of its image.
type Image struct {
	ID     string // digest of the image's configuration
	Ref    string // what ContainerStatus.image_ref reports
	Config ocispec.ImageConfig
	Arch   string
}

// Rootfs is a container's root file system, mounted at Path.
type Rootfs struct {
	Key         string
	Snapshotter string
	Path        string
}

// Volumes are the bind mounts made for the VOLUME entries of the image and for image mounts.
type Volumes struct {
	Mounts []Volume
}

// Volume is one of them.
type Volume struct {
	Source, Target string
	ReadOnly       bool
	// ImageRef is the image of an image mount.
	ImageRef string
}

// Spec is the bundle that was written.
type Spec struct {
	Bundle string
	// CgroupPath as written in the OCI spec.
	CgroupPath string
	// User as resolved in the image.
	UID, GID       int64
	AdditionalGIDs []int64
	StopSignal     string
}

// Task is a started process.
type Task struct {
	PID     int
	Started time.Time
}

// Exit is how a container ended.
type Exit struct {
	Code     int32
	Reason   string // Completed, Error, OOMKilled, StartError, …
	Message  string
	Started  time.Time // zero if it never ran
	Finished time.Time
}

// Before is what an update of limits has to be undone with while it is in the making.
type Before struct {
	// Bundle and OOMScoreAdj are those of a container that does not run.
	Bundle      *specs.LinuxResources `json:",omitempty"`
	OOMScoreAdj *int                  `json:",omitempty"`
	// Update takes the OCI runtime of one that runs back, Files its cgroup.
	Update *specs.LinuxResources `json:",omitempty"`
	Files  map[string]string     `json:",omitempty"`
}

// None tells that no update is in the making.
func (b Before) None() bool { return b.Bundle == nil && b.Update == nil }

// Stopping is a stop that has begun.
type Stopping struct {
	// By is when the container is killed, in nanoseconds since the node was booted.
	By time.Duration
}

// CgroupPath is the cgroup of a container as its OCI spec names it: where the
// action spec put it, or where NRI plugins want it.
func CgroupPath(r engine.Reader) (string, error) {
	if path, ok, err := ContainerCgroup.Get(r); ok || err != nil {
		return path, err
	}
	written, err := ContainerSpec.Need(r)
	return written.CgroupPath, err
}

// Proto carries a protobuf message through JSON.
type Proto[M proto.Message] struct{ M M }

// MarshalJSON writes the message in protobuf's JSON form.
func (p Proto[M]) MarshalJSON() ([]byte, error) { return protojson.Marshal(p.M) }

// UnmarshalJSON reads protobuf's JSON form; unknown fields of a newer version are dropped.
func (p *Proto[M]) UnmarshalJSON(b []byte) error {
	var zero M
	m, _ := zero.ProtoReflect().New().Interface().(M)
	p.M = m
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, p.M)
}
