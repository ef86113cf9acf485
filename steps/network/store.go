// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandflow-cri/sandflow/steps"
)

const (
	suffix  = ".json"
	tmpMark = ".tmp-"
)

// Dir is where the attachments of all pods are kept.
func Dir(c steps.Config) string { return filepath.Join(c.Root, "networks") }

// store keeps one file per attached pod. What it has written survives a power cut.
type store struct{ dir string }

func (s store) path(id string) (string, error) {
	if id == "" || strings.HasPrefix(id, ".") || strings.ContainsAny(id, "/\x00") {
		return "", fmt.Errorf("pod id %q is not a file name", id)
	}
	return filepath.Join(s.dir, id+suffix), nil
}

// get returns os.ErrNotExist for a pod that is not attached.
func (s store) get(id string) (json.RawMessage, error) {
	path, err := s.path(id)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if !json.Valid(data) {
		return nil, fmt.Errorf("%s is damaged; removing it gives up what network plugins hold for the pod", path)
	}
	return data, nil
}

// put replaces the file as a whole, durably.
func (s store) put(id string, data json.RawMessage) (err error) {
	path, err := s.path(id)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, tmpMark)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return s.sync()
}

// remove is not durable by itself: should a power cut bring the file back, DEL
// runs once more, which plugins must take.
func (s store) remove(id string) error {
	path, err := s.path(id)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// sync makes a rename durable.
func (s store) sync() error {
	d, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// list returns the ids of all attached pods.
func (s store) list() ([]string, error) {
	entries, err := s.entries()
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, name := range entries {
		if id, ok := strings.CutSuffix(name, suffix); ok && !strings.HasPrefix(id, ".") {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// clean removes what a crash in put has left. It must not run beside put.
func (s store) clean() error {
	entries, err := s.entries()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range entries {
		if strings.HasPrefix(name, tmpMark) {
			errs = append(errs, os.Remove(filepath.Join(s.dir, name)))
		}
	}
	return errors.Join(errs...)
}

func (s store) entries() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list the attached pods: %w", err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}
