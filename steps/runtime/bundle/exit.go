// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bundle reads and writes what the shim leaves in a container's bundle
// so that it outlives the shim, and what the container leaves in cgroups.
package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

const (
	exitFile        = "sandflow-exit.json"
	runtimeExitFile = "exit.json" // containerd's own record: no OOM, but written a little earlier
)

// Exit is how a container ended.
type Exit struct {
	Code      uint32    `json:"code"`
	At        time.Time `json:"at"`
	OOMKilled bool      `json:"oomKilled,omitempty"`
	// Unknown says that nobody saw the end; At is then when it was found out.
	Unknown bool `json:"unknown,omitempty"`
}

// WriteExit records the exit in the bundle, in one piece or not at all.
func WriteExit(dir string, e Exit) error {
	return writeJSON(filepath.Join(dir, exitFile), e)
}

// ReadExit gives the recorded exit; ErrNotFound if there is none.
func ReadExit(dir string) (Exit, error) {
	var e Exit
	err := readJSON(filepath.Join(dir, exitFile), &e)
	if err == nil || !errors.Is(err, errdefs.ErrNotFound) {
		return e, err
	}
	var r struct {
		Timestamp time.Time
		Status    int
	}
	if err := readJSON(filepath.Join(dir, runtimeExitFile), &r); err != nil {
		return e, err
	}
	if r.Timestamp.IsZero() || r.Status < 0 {
		return e, fmt.Errorf("read exit status in %s: invalid: %w", dir, errdefs.ErrNotFound)
	}
	return Exit{Code: uint32(r.Status), At: r.Timestamp}, nil //nolint:gosec // checked above
}

// writeJSON writes path by way of a temporary file beside it.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// readJSON reads path; a missing file is ErrNotFound.
func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read %s: %w", path, errdefs.ErrNotFound)
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// podFile says where a container runs, so that it can be found with nothing but its ID.
const podFile = "pod"

// WritePod records in the bundle where the container runs.
func WritePod(dir string, pod any) error { return writeJSON(filepath.Join(dir, podFile), pod) }

// ReadPod gives what WritePod recorded; ErrNotFound if nothing was.
func ReadPod(dir string, pod any) error { return readJSON(filepath.Join(dir, podFile), pod) }

// Pods lists the bundles below dir of containers that are recorded to run.
func Pods(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*", podFile))
	for i := range files {
		files[i] = filepath.Dir(files[i])
	}
	return files, err
}

// dumpLog is CRIU's log of a dump that failed, as containerd's task service keeps it.
const dumpLog = "criu-dump.log"

// Clean removes all that running the container left in the bundle, the record
// of where it ran as the last. What others put there stays.
func Clean(dir string) error {
	var names []string
	for _, pattern := range []string{exitFile, exitFile + ".*", runtimeExitFile, podFile + ".*", foreignFile + "*", "*.pid", ".*.pid"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		names = append(names, found...)
	}
	for _, n := range []string{"log.json", "runtime", "options.json", "work", "io", dumpLog, podFile} {
		names = append(names, filepath.Join(dir, n))
	}
	for _, n := range names {
		if err := os.RemoveAll(n); err != nil {
			return fmt.Errorf("clean bundle: %w", err)
		}
	}
	return nil
}

// foreignFile keeps what the daemon must know of a container of a foreign runtime.
const foreignFile = "foreign.json"

// WriteForeign keeps v in the bundle.
func WriteForeign(dir string, v any) error { return writeJSON(filepath.Join(dir, foreignFile), v) }

// ReadForeign gives what WriteForeign kept; ErrNotFound if nothing was.
func ReadForeign(dir string, v any) error { return readJSON(filepath.Join(dir, foreignFile), v) }

// ReadSpec gives the bundle's OCI spec; ErrNotFound if there is none.
func ReadSpec(dir string) (*specs.Spec, error) {
	var s specs.Spec
	if err := readJSON(filepath.Join(dir, "config.json"), &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// RemoveExit forgets the exit of an earlier run in the same bundle.
func RemoveExit(dir string) error {
	var errs []error
	for _, f := range []string{exitFile, runtimeExitFile} {
		if err := os.Remove(filepath.Join(dir, f)); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// WriteSpec writes the bundle's OCI spec.
func WriteSpec(dir string, s *specs.Spec) error {
	return writeJSON(filepath.Join(dir, "config.json"), s)
}
