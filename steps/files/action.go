// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package files is the action that writes the files which the runtime, not the
// image, gives to a pod's containers: hosts, hostname, resolv.conf and the
// shared memory in /dev/shm.
package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/pod"
)

const (
	shmSize  = 64 << 20 // bytes, as in Docker and containerd
	fileMode = 0o644
	dirMode  = 0o755
)

// Where the node's own files are; what they say is copied.
const (
	nodeHosts      = "/etc/hosts"
	nodeResolvConf = "/etc/resolv.conf"
)

// plainHosts is used where the node has no /etc/hosts.
const plainHosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"

func init() {
	steps.Register("files", func(s *steps.Services) engine.Action { return New(s.Config) })
}

// Action is the action "files". Its resources are <PodDir>/files and the
// tmpfs at <PodDir>/shm.
type Action struct{ cfg steps.Config }

var (
	_ engine.Action  = (*Action)(nil)
	_ engine.Needer  = (*Action)(nil)
	_ engine.Filler  = (*Action)(nil)
	_ engine.Sweeper = (*Action)(nil)
)

// New returns the action.
func New(c steps.Config) *Action { return &Action{cfg: c} }

// Needs is part of engine.Needer.
func (a *Action) Needs() []engine.Key { return []engine.Key{steps.PodRequest.Key()} }

// Fills is part of engine.Filler.
func (a *Action) Fills() engine.Key { return steps.PodFiles.Key() }

// Do writes the files and mounts the shared memory.
func (a *Action) Do(ctx context.Context, r *engine.Run) error {
	req, err := steps.PodRequest.Need(r)
	if err != nil {
		return err
	}
	cfg := req.Config.M
	if err := pod.Validate(cfg); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	podDir, err := pod.Ensure(a.cfg, r.ID(), cfg)
	if err != nil {
		return fmt.Errorf("make the pod's directory: %w", err)
	}
	f, err := writeAll(filesDir(podDir), cfg)
	if err != nil {
		return fmt.Errorf("write the pod's files: %w", err)
	}
	if !pod.HostIPC(cfg) {
		f.Shm = shmDir(podDir)
		if err := mountShm(f.Shm, cfg); err != nil {
			return fmt.Errorf("mount the pod's shared memory: %w", err)
		}
	}
	return steps.PodFiles.Set(r, f)
}

// Undo unmounts and removes them.
func (a *Action) Undo(_ context.Context, r *engine.Run) error {
	podDir, err := pod.Dir(a.cfg, r.ID())
	if err != nil {
		return err
	}
	shm := shmDir(podDir)
	if err := pod.Unmount(shm); err != nil {
		return err
	}
	if err := unix.Rmdir(shm); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", shm, err)
	}
	if err := os.RemoveAll(filesDir(podDir)); err != nil {
		return fmt.Errorf("remove the pod's files: %w", err)
	}
	return pod.Release(a.cfg, r.ID())
}

func filesDir(podDir string) string { return filepath.Join(podDir, "files") }

func shmDir(podDir string) string { return filepath.Join(podDir, "shm") }

func writeAll(dir string, cfg *runtime.PodSandboxConfig) (steps.Files, error) {
	f := steps.Files{
		Hosts:      filepath.Join(dir, "hosts"),
		Hostname:   filepath.Join(dir, "hostname"),
		ResolvConf: filepath.Join(dir, "resolv.conf"),
	}
	hostname, err := pod.Hostname(cfg)
	if err != nil {
		return f, err
	}
	hosts, err := readNode(nodeHosts, plainHosts)
	if err != nil {
		return f, err
	}
	resolv, ok := pod.ResolvConf(cfg)
	if !ok {
		if resolv, err = readNode(nodeResolvConf, ""); err != nil {
			return f, err
		}
	}
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return f, err
	}
	if err := os.Chmod(dir, dirMode); err != nil {
		return f, err
	}
	for path, text := range map[string]string{f.Hosts: hosts, f.Hostname: hostname + "\n", f.ResolvConf: resolv} {
		if err := write(path, text); err != nil {
			return f, err
		}
	}
	return f, nil
}

// readNode reads a file of the node; without it the pod gets text.
func readNode(path, text string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return text, nil
	}
	return string(data), err
}

// write writes a file of mode 0644, whatever the umask.
func write(path, text string) error {
	if err := os.WriteFile(path, []byte(text), fileMode); err != nil {
		return err
	}
	return os.Chmod(path, fileMode)
}

// mountShm mounts a tmpfs that belongs to the pod's root.
func mountShm(dir string, cfg *runtime.PodSandboxConfig) error {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return err
	}
	data := fmt.Sprintf("mode=1777,size=%d", shmSize)
	if u, ok := pod.UserNamespace(cfg); ok {
		uid, gid := u.Root()
		data += fmt.Sprintf(",uid=%d,gid=%d", uid, gid)
	}
	if err := unix.Mount("shm", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, data); err != nil {
		return fmt.Errorf("mount tmpfs (%s) at %s: %w", data, dir, err)
	}
	return nil
}
