// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/cmd/internal/config"
)

// pass lets users of other user namespaces go through a directory to what they
// were given below it, and look at nothing else.
const pass = 0o711

func makeDirectories(c *config.Config) error {
	for _, dir := range []string{
		c.Root, filepath.Join(c.Root, "volumes"),
		c.State, filepath.Join(c.State, "pods"), filepath.Join(c.State, "containers"),
	} {
		if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // parents are the node's, as usual there
			return fmt.Errorf("make the parents of %s: %w", dir, err)
		}
		if err := os.Mkdir(dir, pass); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make a directory: %w", err)
		}
		if err := os.Chmod(dir, pass); err != nil {
			return fmt.Errorf("set the mode of a directory: %w", err)
		}
	}
	return nil
}

// errLocked means that another daemon runs on the same directory.
var errLocked = errors.New("another sandflowd is running on it")

// lockWait is how long the lock may be held by what another daemon has left: a child
// that it had just forked when it was killed has the lock until it executes its program.
const lockWait = 2 * time.Second

// lock takes dir for this daemon until the file is closed, or the process gone.
func lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	for deadline := time.Now().Add(lockWait); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if errors.Is(err, unix.EWOULDBLOCK) {
			if time.Now().Before(deadline) {
				continue
			}
			err = errLocked
		}
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
}

// findShim finds the configured shim.
func findShim(c *config.Config) (string, error) {
	path, err := c.FindShim()
	if err != nil {
		return "", c.Fault("runtime.shim", err.Error())
	}
	return path, nil
}
