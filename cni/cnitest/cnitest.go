// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cnitest is for tests that make networks and mounts: it gives a test
// program a world of its own, plugins, and looks at what is left.
package cnitest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	insideEnv = "SANDFLOW_TEST_PRIVATE"
	// BinEnv overrides where the CNI plugin programs are.
	BinEnv = "SANDFLOW_CNI_BIN"
)

// Main runs the tests in a network and mount namespace of their own, with an
// empty /run and /var/lib/cni, if the user is root. Call it from TestMain.
func Main(m *testing.M) {
	if os.Geteuid() != 0 {
		os.Exit(m.Run()) // the tests that need root skip themselves
	}
	if os.Getenv(insideEnv) == "" {
		os.Exit(enter())
	}
	if err := furnish(); err != nil {
		fmt.Fprintln(os.Stderr, "make a private world for the tests:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// enter runs this program again in new namespaces.
func enter() int {
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: os.Args}
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "run the tests in new namespaces:", err)
	return 1
}

func furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	tmp := os.TempDir() // which may be below /run
	fd, err := unix.Open(tmp, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", tmp, err)
	}
	defer func() { _ = unix.Close(fd) }()
	for _, dir := range []string{"/run", "/var/lib/cni"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("test", dir, "tmpfs", 0, "mode=755"); err != nil {
			return err
		}
	}
	if _, err := os.Stat(tmp); err != nil {
		if err := os.MkdirAll(tmp, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), tmp, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("keep %s: %w", tmp, err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// NeedRoot skips the test for other users.
func NeedRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root: it makes namespaces, mounts and links")
	}
}

// Plugins returns the directory of the real plugins, or skips the test.
func Plugins(tb testing.TB, names ...string) string {
	tb.Helper()
	NeedRoot(tb)
	dir := os.Getenv(BinEnv)
	if dir == "" {
		dir = filepath.Join(root(tb), "build", "cni")
	}
	for _, n := range names {
		if _, err := os.Stat(filepath.Join(dir, n)); err != nil {
			tb.Skipf("needs the CNI plugin %s in %s; set %s: %v", n, dir, BinEnv, err)
		}
	}
	return dir
}

// root is the repository.
func root(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	tb.Fatal("not inside the repository")
	return ""
}

// NetNS makes a network namespace pinned at a path, until the test ends.
func NetNS(tb testing.TB) string {
	tb.Helper()
	NeedRoot(tb)
	path := filepath.Join(tb.TempDir(), "netns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		tb.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	}()
	if err := <-done; err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	return path
}

// World lists the links and firewall rules of this network namespace, and what
// is in the given directories. What plugins keep for all pods is left out: the
// bridge, and the rules that only lead into chains.
func World(tb testing.TB, dirs ...string) []string {
	tb.Helper()
	world := links(tb)
	for _, args := range [][]string{{"iptables-save"}, {"ip6tables-save"}} {
		world = append(world, output(tb, args)...)
	}
	for _, dir := range dirs {
		world = append(world, Tree(tb, dir)...)
	}
	return world
}

func links(tb testing.TB) []string {
	tb.Helper()
	list, err := netlink.LinkList()
	if err != nil {
		tb.Fatal(err)
	}
	var names []string
	for _, l := range list {
		if l.Type() == "bridge" {
			continue // the plugin keeps its bridge, as it should
		}
		names = append(names, "link "+l.Attrs().Name)
	}
	return names
}

// output is the rules that a program prints, without what plugins keep.
func output(tb testing.TB, args []string) []string {
	tb.Helper()
	out, err := exec.CommandContext(tb.Context(), args[0], args[1:]...).Output()
	if err != nil {
		return nil // not installed
	}
	var lines []string
	for _, l := range strings.Split(string(out), "\n") {
		if strings.HasPrefix(l, "-A ") && !keptRule(l) {
			lines = append(lines, l)
		}
	}
	return lines
}

// keptRule tells the rules that portmap and firewall set up once for all pods.
func keptRule(rule string) bool {
	for _, chain := range []string{"CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK", "CNI-FORWARD", "CNI-ADMIN"} {
		if strings.HasSuffix(rule, "-j "+chain) || strings.HasPrefix(rule, "-A "+chain+" -m mark") ||
			strings.HasPrefix(rule, "-A CNI-HOSTPORT-SETMARK") || strings.HasPrefix(rule, "-A CNI-HOSTPORT-MASQ") {
			return true
		}
	}
	return false
}

// Tree lists the files below dir, and the mounts.
func Tree(tb testing.TB, dir string) []string {
	tb.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil && path != dir {
			list = append(list, path)
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		tb.Fatal(err)
	}
	for _, l := range strings.Split(string(mounts), "\n") {
		if f := strings.Fields(l); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			list = append(list, "mount "+f[4])
		}
	}
	return list
}
