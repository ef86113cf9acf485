// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
	"github.com/sandflow-cri/sandflow/steps/runtime/shimapi"
)

// Names in a shim's directory.
const (
	apiSocket    = "s"
	streamSocket = "a"
	logFile      = "log"
	cgroupFile   = "cgroup" // path of the init's cgroup
)

// maxSocketPath is what sockaddr_un takes, without the final zero.
const maxSocketPath = 106

// pidNamespace is where the shared PID namespace of a pod is pinned.
func pidNamespace(shimDir string) string {
	return filepath.Join(filepath.Dir(shimDir), "ns", "pid")
}

// Launch starts the pod's shim and waits until it answers. What it leaves when
// it fails, Shutdown removes.
func (m *Manager) Launch(ctx context.Context, r LaunchRequest) (Shim, error) {
	s, err := m.launch(ctx, r)
	if err != nil {
		return Shim{}, fmt.Errorf("launch shim of pod %s: %w", r.PodID, err)
	}
	return s, nil
}

func (m *Manager) launch(ctx context.Context, r LaunchRequest) (Shim, error) {
	if err := ctx.Err(); err != nil {
		return Shim{}, err
	}
	s := Shim{Address: filepath.Join(r.Dir, apiSocket), Streams: filepath.Join(r.Dir, streamSocket)}
	if len(s.Address) > maxSocketPath {
		return Shim{}, fmt.Errorf("socket path %s has %d bytes, at most %d work: choose a shorter state directory: %w",
			s.Address, len(s.Address), maxSocketPath, errdefs.ErrInvalidArgument)
	}
	if err := os.MkdirAll(filepath.Dir(r.Dir), 0o700); err != nil {
		return Shim{}, err
	}
	if err := os.Mkdir(r.Dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return Shim{}, err
	}
	if r.CgroupPath != "" && r.SharedPID {
		if err := os.WriteFile(filepath.Join(r.Dir, cgroupFile), []byte(r.CgroupPath), 0o600); err != nil {
			return Shim{}, err
		}
	}
	var err error
	if s.PID, err = m.start(r, s); err != nil {
		return Shim{}, err
	}
	c, err := m.dial(ctx, s.Address)
	if err != nil {
		return Shim{}, err
	}
	info, err := c.pod.Info(ctx, &shimapi.InfoRequest{})
	if err != nil {
		return Shim{}, fmt.Errorf("%w (see %s)", native(err), filepath.Join(r.Dir, logFile))
	}
	s.Protocol = int(info.Protocol)
	if err := CheckProtocol(s.Protocol); err != nil {
		return Shim{}, fmt.Errorf("use %s: %w", m.cfg.Shim, err)
	}
	if info.InitPid > 0 {
		s.PIDNamespace = pidNamespace(r.Dir)
		err = pin(fmt.Sprintf("/proc/%d/ns/pid", info.InitPid), s.PIDNamespace)
	}
	return s, err
}

// CheckProtocol refuses a shim whose protocol this daemon does not speak, with
// errdefs.ErrFailedPrecondition. Shims older than such versions say 0.
func CheckProtocol(version int) error {
	if version == 0 {
		version = 1
	}
	switch {
	case version > shimapi.Protocol:
		return fmt.Errorf("the shim speaks version %d of its protocol, this sandflow knows %d to %d: it is of a newer sandflow: %w",
			version, shimapi.Oldest, shimapi.Protocol, errdefs.ErrFailedPrecondition)
	case version < shimapi.Oldest:
		return fmt.Errorf("the shim speaks version %d of its protocol, this sandflow knows %d to %d: it is too old: %w",
			version, shimapi.Oldest, shimapi.Protocol, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// start binds the shim's sockets and starts the process on them.
func (m *Manager) start(r LaunchRequest, s Shim) (int, error) {
	cmd := exec.Command(m.cfg.Shim, //nolint:gosec,noctx // configured by the operator; lives longer than any context
		"-namespace", m.cfg.Namespace, "-id", r.PodID, "-shared-pid="+fmt.Sprint(r.SharedPID),
		"-net", r.NetNS, "-ipc", r.IPC, "-uts", r.UTS, "-user", r.User, "-cgroup", r.CgroupPath)
	for _, path := range []string{s.Address, s.Streams} {
		f, err := listen(path)
		if err != nil {
			return 0, err
		}
		defer func() { _ = f.Close() }()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	out, err := os.OpenFile(filepath.Join(r.Dir, logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { _ = out.Close() }()
	tmp := m.tmp(r.PodID)
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return 0, err
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.Dir, out, out
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GOMAXPROCS=2", "XDG_RUNTIME_DIR=" + tmp}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start %s: %w", m.cfg.Shim, err)
	}
	err = bundle.WriteProcess(filepath.Join(r.Dir, bundle.ShimFile), cmd.Process.Pid)
	go func() { _ = cmd.Wait() }() // reaps it; it usually outlives its pod's creation by far
	return cmd.Process.Pid, err
}

// tmp is a private directory of a shim for what is passed to the OCI runtime and for
// the sockets over which it hands terminals, which need a path shorter than the pod's.
func (m *Manager) tmp(podID string) string {
	const enough = 16 // of a random ID
	return filepath.Join(m.cfg.State, "tmp", podID[:min(len(podID), enough)])
}

// listen binds a socket that only root can use and gives it as a file.
func listen(path string) (*os.File, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }()
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	return l.File()
}

// pin keeps a namespace by a bind mount.
func pin(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o711); err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	_ = f.Close()
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pin namespace at %s: %w", to, err)
	}
	return nil
}

// unpin is the opposite of pin; nothing there is success.
func unpin(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // no (more) mounts there
			break
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
