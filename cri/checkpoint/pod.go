// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

const (
	// podVersion is that of the format of pod.options.
	podVersion = 1
	// engineName is whose layout it is.
	engineName = "sandflow"
	// mostMetadata is the size in bytes above which a file of metadata is refused.
	mostMetadata = 16 << 20
)

// Made says where a checkpoint was made, and so where it may be restored.
type Made struct {
	// Runtime names the kind of runtime, Arch the node's architecture.
	Runtime, Arch string
}

// WritePod completes the checkpoint of a pod in dir, whose containers have their
// directories by name.
func WritePod(dir string, made Made, containers map[string]string) error {
	_, err := metadata.WriteJSONFile(metadata.CheckpointedPodOptions{
		Version: podVersion, Containers: containers,
		Annotations: map[string]string{
			metadata.CheckpointAnnotationEngine:      engineName,
			metadata.CheckpointAnnotationRuntimeName: made.Runtime,
			metadata.CheckpointAnnotationHostArch:    made.Arch,
		},
	}, dir, metadata.PodOptionsFile)
	return err
}

// Pod is the checkpoint of a pod, which somebody else wrote.
type Pod struct {
	dir     *os.File
	options metadata.CheckpointedPodOptions
}

// Open opens the checkpoint in a directory. The error is of class
// errdefs.ErrInvalidArgument if it is none, or one that cannot be restored as made says.
func Open(path string, made Made) (*Pod, error) {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open checkpoint: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	p := &Pod{dir: dir}
	if err := p.read(metadata.PodOptionsFile, &p.options); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if err := p.check(made); err != nil {
		return nil, errors.Join(fmt.Errorf("checkpoint %s: %w: %w", path, err, errdefs.ErrInvalidArgument), p.Close())
	}
	return p, nil
}

func (p *Pod) check(made Made) error {
	was := p.options.Annotations
	switch {
	case was[metadata.CheckpointAnnotationEngine] != engineName || p.options.Version != podVersion:
		return fmt.Errorf("it is of %q, version %d, not of %q, version %d",
			was[metadata.CheckpointAnnotationEngine], p.options.Version, engineName, podVersion)
	case was[metadata.CheckpointAnnotationHostArch] != made.Arch:
		return fmt.Errorf("it is of architecture %q, not %q", was[metadata.CheckpointAnnotationHostArch], made.Arch)
	case was[metadata.CheckpointAnnotationRuntimeName] != made.Runtime:
		return fmt.Errorf("it is of runtime %q, not %q", was[metadata.CheckpointAnnotationRuntimeName], made.Runtime)
	}
	for name, dir := range p.options.Containers {
		if name == "" || dir == "" || dir == "." || dir == ".." || strings.ContainsAny(dir, "/\x00") {
			return fmt.Errorf("container %q has directory %q", name, dir)
		}
	}
	return nil
}

// Close lets go of it.
func (p *Pod) Close() error { return p.dir.Close() }

// Names are the names of its containers.
func (p *Pod) Names() []string { return slices.Sorted(maps.Keys(p.options.Containers)) }

// Config says what a container was, Spec what its runtime was told.
func (p *Pod) Config(name string) (metadata.ContainerConfig, error) {
	var c metadata.ContainerConfig
	err := p.read(p.path(name, metadata.ConfigDumpFile), &c)
	return c, err
}

// Spec is the OCI spec that a container ran with.
func (p *Pod) Spec(name string) (*specs.Spec, error) {
	var s specs.Spec
	err := p.read(p.path(name, metadata.SpecDumpFile), &s)
	return &s, err
}

func (p *Pod) path(name, file string) string {
	return filepath.Join(p.options.Containers[name], file)
}

// Target is where a container's files go.
type Target struct {
	// Dump is a directory that does not exist yet.
	Dump   string
	Rootfs string
	// Volumes are the directories of the image's volumes.
	Volumes []string
}

// Fill gives a container that was made anew what it had: the dump to restore it from, the
// changes to its root file system, the contents of its volumes.
func (p *Pod) Fill(ctx context.Context, name string, t Target) error {
	if err := p.copyDump(ctx, name, t.Dump); err != nil {
		return fmt.Errorf("copy the dump: %w", err)
	}
	if err := p.unpack(ctx, p.path(name, metadata.RootFsDiffTar), t.Rootfs); err != nil {
		return fmt.Errorf("restore the root file system: %w", err)
	}
	var deleted []string
	if err := p.read(p.path(name, metadata.DeletedFilesFile), &deleted); err != nil {
		return err
	}
	for _, path := range deleted {
		if err := remove(t.Rootfs, path); err != nil {
			return fmt.Errorf("delete %s, as it was: %w", path, err)
		}
	}
	for _, v := range t.Volumes {
		file := filepath.Join(metadata.CheckpointVolumesDirectory, filepath.Base(v)+".tar")
		if err := p.replace(ctx, p.path(name, file), v); err != nil {
			return fmt.Errorf("restore the volumes: %w", err)
		}
	}
	return nil
}

// FillShm restores /dev/shm from the container that has it, if one does: it is the pod's.
func (p *Pod) FillShm(ctx context.Context, shm string) error {
	for _, name := range p.Names() {
		err := p.replace(ctx, p.path(name, metadata.DevShmCheckpointTar), shm)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("restore /dev/shm: %w", err)
		}
		return nil
	}
	return nil
}

// copyDump copies the files of the dump: they lie side by side, and are only files.
func (p *Pod) copyDump(ctx context.Context, name, dst string) error {
	if err := os.MkdirAll(dst, dirMode); err != nil {
		return err
	}
	from := p.path(name, metadata.CheckpointDirectory)
	dir, err := p.open(from, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // it was only read
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		f, err := p.file(filepath.Join(from, n))
		if err != nil {
			return err
		}
		err = write(filepath.Join(dst, n), func(w io.Writer) error {
			_, err := io.Copy(w, reader{ctx, f})
			return err
		})
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// replace gives a directory the contents of a tar file, and nothing else.
func (p *Pod) replace(ctx context.Context, file, dir string) error {
	f, err := p.file(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return apply(ctx, dir, reader{ctx, f})
}

func (p *Pod) unpack(ctx context.Context, file, dir string) error {
	f, err := p.file(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	return apply(ctx, dir, reader{ctx, f})
}

// read reads a file of metadata.
func (p *Pod) read(name string, v any) error {
	f, err := p.file(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	raw, err := io.ReadAll(io.LimitReader(f, mostMetadata+1))
	if err == nil && len(raw) > mostMetadata {
		err = fmt.Errorf("it is longer than %d bytes", mostMetadata)
	}
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil {
		return fmt.Errorf("read %s of the checkpoint: %w: %w", name, err, errdefs.ErrInvalidArgument)
	}
	return nil
}

// file opens a regular file of the checkpoint that has no other name.
func (p *Pod) file(name string) (*os.File, error) {
	f, err := p.open(name, unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1) {
		err = fmt.Errorf("it is not a regular file with one name: %w", errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s of the checkpoint: %w", name, err), f.Close())
	}
	return f, nil
}

// open opens what is in the checkpoint; a link on the way is refused.
func (p *Pod) open(name string, flags uint64) (*os.File, error) {
	fd, err := unix.Openat2(int(p.dir.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NOFOLLOW | flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, fmt.Errorf("open %s of the checkpoint: %w: %w", name, err, errdefs.ErrInvalidArgument)
	}
	return os.NewFile(uintptr(fd), name), nil
}
