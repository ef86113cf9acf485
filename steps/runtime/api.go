// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"io"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// OwnType is the Handler.Type of containers run by our own pod shim.
const OwnType = "sandflow"

// Config is what a Manager stands on.
type Config struct {
	// State is the daemon's state directory; runc's state goes to <State>/runc
	// unless a handler names another root.
	State string
	// Shim is the absolute path of containerd-shim-sandflow-v1.
	Shim string
	// Handlers by the name that Pod.Handler carries. The entry "" is the default.
	Handlers map[string]Handler
	// MaxLogLine is the length in bytes at which a log line is split; 0 means 16 KiB.
	MaxLogLine int
	// Client gives containerd's client; it is needed only for foreign runtimes.
	Client func() *containerd.Client
	// Namespace is containerd's namespace, default k8s.io.
	Namespace string
	// Bundle gives the bundle of a container from its ID, default <State>/containers/<id>.
	Bundle func(id string) string
	// SandboxBundle gives the bundle of a pod's sandbox container from the pod's ID, for
	// handlers that have one; default <State>/pods/<id>/sandbox. It is used where it exists.
	SandboxBundle func(podID string) string
}

// Handler is one way to run containers.
type Handler struct {
	// Type is "sandflow" (OwnType), or the name or absolute path of a foreign shim v2 runtime.
	Type string
	// Binary is the OCI runtime, default runc.
	Binary string
	// Root is the OCI runtime's state directory.
	Root string
	// SystemdCgroup tells the OCI runtime to use systemd.
	SystemdCgroup bool
	// Options are the runtime options of a foreign runtime.
	Options map[string]any
}

// Pod says where a pod's containers run. It survives a JSON round trip.
type Pod struct {
	ID      string `json:"id"`
	Handler string `json:"handler,omitempty"`
	// Address and Streams are the shim's sockets; empty for foreign runtimes.
	Address string `json:"address,omitempty"`
	Streams string `json:"streams,omitempty"`
}

// LaunchRequest asks for a pod's shim.
type LaunchRequest struct {
	PodID string
	// Dir is the private directory of the shim (<PodDir>/shim).
	Dir string
	// SharedPID asks for a PID namespace with a tiny init, pinned at <PodDir>/ns/pid.
	SharedPID bool
	// NetNS, IPC, UTS and User are the pod's pinned namespaces; the init joins User if set.
	NetNS, IPC, UTS, User string
	// CgroupPath is the cgroup (as in an OCI spec, in either driver's form) of the init; empty leaves it
	// in the shim's.
	CgroupPath string
}

// Shim is a launched shim.
type Shim struct {
	Address, Streams string
	PID              int
	// PIDNamespace is the pinned path of the shared PID namespace, or empty.
	PIDNamespace string
	// Protocol is the version of the protocol that it speaks.
	Protocol int
}

// CreateRequest asks for a container from a bundle that holds config.json and rootfs.
type CreateRequest struct {
	ID, Bundle string
	// Terminal gives the container a pseudo terminal; only stdout exists then.
	Terminal bool
	// Stdin keeps the container's stdin open; StdinOnce closes it after the first attach with stdin.
	Stdin, StdinOnce bool
	// LogPath is the absolute path of the CRI log; empty: output is drained. LogDir is the
	// directory above it that it stays in whatever links there are; empty: that of LogPath.
	LogPath, LogDir string
	// Checkpoint is the directory of the dump that the container's processes are restored
	// from when it is started; empty: they are made anew. Its parent takes CRIU's log.
	Checkpoint string
}

// CheckpointRequest asks for a dump of all processes of a container.
type CheckpointRequest struct {
	ID string
	// Images is an existing directory that takes the dump, Work one that takes CRIU's log
	// and statistics.
	Images, Work string
	// Terminal is set for a container that has one.
	Terminal bool
}

// Size is the size of a terminal in characters.
type Size struct{ Width, Height uint16 }

// ExecRequest asks for one more process in a running container.
type ExecRequest struct {
	ID, ExecID string
	// Process as in an OCI spec; Process.Terminal asks for a terminal.
	Process *specs.Process
	// Stdin may be nil. Stdout and Stderr may be nil: drained.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Resize gives terminal sizes; the first one that is ready is set before the process starts to read.
	Resize <-chan Size
	// Started, if set, is called once when the process runs.
	Started func()
}

// AttachRequest joins the streams of a container.
type AttachRequest struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resize         <-chan Size
}

// Exit is how a process ended.
type Exit struct {
	Code      uint32    `json:"code"`
	At        time.Time `json:"at"`
	OOMKilled bool      `json:"oomKilled,omitempty"`
	// Unknown says that nobody saw the end; At is then when it was found out.
	Unknown bool `json:"unknown,omitempty"`
}

// Status of a task.
type Status string

// The statuses of a task.
const (
	StatusCreated Status = "created"
	StatusRunning Status = "running"
	StatusStopped Status = "stopped"
	StatusPaused  Status = "paused"
	StatusUnknown Status = "unknown"
)

// State is what a task is doing. Exit is set when Status is StatusStopped.
type State struct {
	Status Status
	PID    int
	Exit   Exit
}

// Tasks runs the containers of one pod. All errors are of an errdefs class where one
// fits: ErrNotFound for an unknown container, ErrUnavailable for a shim that is gone.
type Tasks interface {
	// Create makes the container, not yet running its process, and gives its init's PID;
	// 0 if it is to be restored, since there is no process before Start then.
	Create(ctx context.Context, r CreateRequest) (pid int, err error)
	// Start runs the created container's process.
	Start(ctx context.Context, id string) error
	// Exec runs a process to completion. All its output is delivered before Exec returns its
	// exit code. If ctx ends, the process and everything it started are killed and ctx's
	// error is returned; the container runs on.
	Exec(ctx context.Context, r ExecRequest) (code int, err error)
	// Kill signals the init, or all processes. ErrNotFound if the container is unknown or over.
	Kill(ctx context.Context, id string, signal uint32, all bool) error
	// Delete removes the container, killing it if it runs. It is idempotent and works when the
	// shim is dead; the exit is then the one kept in the bundle.
	Delete(ctx context.Context, id, bundle string) (Exit, error)
	// Wait waits for the container's end, and (bounded) for its last output to be logged.
	Wait(ctx context.Context, id string) (Exit, error)
	State(ctx context.Context, id string) (State, error)
	// Pids are the host PIDs of all processes of the container.
	Pids(ctx context.Context, id string) ([]int, error)
	Update(ctx context.Context, id string, r *specs.LinuxResources, annotations map[string]string) error
	// ReopenLog opens the log file anew after a rotation. ErrFailedPrecondition if the container is over.
	ReopenLog(ctx context.Context, id string) error
	// Pause freezes all processes of a running container. Frozen already: success.
	Pause(ctx context.Context, id string) error
	// Resume thaws them, giving up a dump in flight. Not frozen: success.
	Resume(ctx context.Context, id string) error
	// Checkpoint dumps the processes of a running or a paused container, which stays as it
	// is. It is given up when ctx ends, and when the container is resumed, killed or deleted.
	Checkpoint(ctx context.Context, r CheckpointRequest) error
	// Attach joins the container's streams until the container ends (nil) or the client leaves.
	Attach(ctx context.Context, id string, r AttachRequest) error
}
