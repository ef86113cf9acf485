// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package namespaces_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cni/cnitest"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/engine/enginetest"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/namespaces"
)

func TestMain(m *testing.M) { cnitest.Main(m) }

const node, own = runtime.NamespaceMode_NODE, runtime.NamespaceMode_POD

// request is a pod's request, with the modes of network and IPC, and the ids of a user namespace.
func request(network, ipc runtime.NamespaceMode, sysctls map[string]string, ids ...*runtime.IDMapping) *runtime.PodSandboxConfig {
	o := &runtime.NamespaceOption{Network: network, Ipc: ipc}
	if ids != nil {
		o.UsernsOptions = &runtime.UserNamespace{Mode: own, Uids: ids, Gids: ids}
	}
	return &runtime.PodSandboxConfig{
		Hostname: "web-0",
		Linux: &runtime.LinuxPodSandboxConfig{
			Sysctls:         sysctls,
			SecurityContext: &runtime.LinuxSandboxSecurityContext{NamespaceOptions: o},
		},
	}
}

var manyIDs = &runtime.IDMapping{HostId: 200000, Length: 65536}

func given(cfg *runtime.PodSandboxConfig) engine.Value {
	return steps.PodRequest.With(steps.Pod{Config: steps.Proto[*runtime.PodSandboxConfig]{M: cfg}})
}

func TestSuite(t *testing.T) {
	cnitest.NeedRoot(t)
	for name, cfg := range map[string]*runtime.PodSandboxConfig{
		"own":            request(own, own, map[string]string{"kernel.shm_rmid_forced": "1"}),
		"host network":   request(node, own, nil),
		"host IPC":       request(own, node, nil),
		"all the node's": request(node, node, nil),
		"user namespace": request(own, own, map[string]string{"kernel.shm_rmid_forced": "1"}, manyIDs),
	} {
		t.Run(name, func(t *testing.T) {
			c := steps.Config{State: t.TempDir(), EnableUnprivilegedPorts: true, EnableUnprivilegedICMP: true}
			makePods(t, c)
			enginetest.Suite(t, enginetest.Subject{
				New:      func(*testing.T) engine.Action { return namespaces.New(c) },
				Workflow: steps.Sandbox, Flow: steps.Create,
				Values: func(*testing.T, string) []engine.Value { return []engine.Value{given(cfg)} },
				World: func(t *testing.T, _ string) []string {
					t.Helper()
					return cnitest.Tree(t, c.State)
				},
				Check: func(t *testing.T, r *engine.Run) {
					t.Helper()
					checkPins(t, r, cfg)
				},
			})
		})
	}
}

// makePods makes the directory of all pods, which stays.
func makePods(t *testing.T, c steps.Config) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(c.PodDir("x")), 0o711); err != nil {
		t.Fatal(err)
	}
}

func checkPins(t *testing.T, r *engine.Run, cfg *runtime.PodSandboxConfig) {
	t.Helper()
	n, err := steps.PodNamespaces.Need(r)
	if err != nil {
		t.Fatal(err)
	}
	o := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	for kind, c := range map[string]struct {
		path string
		own  bool
	}{
		"net":  {n.Net, o.GetNetwork() == own},
		"uts":  {n.UTS, o.GetNetwork() == own},
		"ipc":  {n.IPC, o.GetIpc() == own},
		"user": {n.User, o.GetUsernsOptions() != nil},
	} {
		if (c.path != "") != c.own {
			t.Errorf("%s namespace at %q, own: %v", kind, c.path, c.own)
		}
		if c.path == "" {
			continue
		}
		var st unix.Statfs_t
		if err := unix.Statfs(c.path, &st); err != nil || st.Type != unix.NSFS_MAGIC {
			t.Errorf("%s is no namespace: %v", c.path, err)
		}
		if same(t, c.path, "/proc/self/ns/"+kind) {
			t.Errorf("%s is the test's own namespace", c.path)
		}
	}
	if o.GetNetwork() == own && n.HostName != "web-0" {
		t.Errorf("host name %q", n.HostName)
	}
}

func same(t *testing.T, a, b string) bool {
	t.Helper()
	fa, err := os.Stat(a)
	if err != nil {
		t.Fatal(err)
	}
	fb, err := os.Stat(b)
	if err != nil {
		t.Fatal(err)
	}
	return os.SameFile(fa, fb)
}

// do runs Do for a pod and undoes it when the test ends.
func do(t *testing.T, c steps.Config, cfg *runtime.PodSandboxConfig) (steps.Namespaces, error) {
	t.Helper()
	cnitest.NeedRoot(t)
	a := namespaces.New(c)
	r, err := engine.NewRun(a, steps.Sandbox, steps.Create, "p1", given(cfg))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		undo, err := engine.NewRun(nil, steps.Sandbox, "", "p1")
		if err == nil {
			err = a.Undo(t.Context(), undo)
		}
		if err != nil {
			t.Error(err)
		}
	})
	if err := a.Do(t.Context(), r); err != nil {
		return steps.Namespaces{}, err
	}
	n, err := steps.PodNamespaces.Need(r)
	if err != nil {
		t.Fatal(err)
	}
	return n, nil
}

// inside runs f on a thread in the pod's namespaces.
func inside(t *testing.T, n steps.Namespaces, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		goruntime.LockOSThread() // never unlocked
		for _, path := range []string{n.Net, n.IPC, n.UTS} {
			if path == "" {
				continue
			}
			file, err := os.Open(path)
			if err == nil {
				err = errors.Join(unix.Setns(int(file.Fd()), 0), file.Close())
			}
			if err != nil {
				done <- err
				return
			}
		}
		done <- f()
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func expect(path, want string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if got := strings.Join(strings.Fields(string(data)), " "); got != want {
		return fmt.Errorf("%s is %q, want %q", path, got, want)
	}
	return nil
}

const (
	portsFile  = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
	pingFile   = "/proc/sys/net/ipv4/ping_group_range"
	rmidFile   = "/proc/sys/kernel/shm_rmid_forced"
	queuesFile = "/proc/sys/fs/mqueue/queues_max"
	nameFile   = "/proc/sys/kernel/hostname"
)

// TestInside is CASES 58 and 68: lo, host name and sysctls in the pod, and the node unchanged.
func TestInside(t *testing.T) {
	all := steps.Config{EnableUnprivilegedPorts: true, EnableUnprivilegedICMP: true}
	set := map[string]string{"net.ipv4.ip_unprivileged_port_start": "77", "kernel.shm_rmid_forced": "1", "fs.mqueue.queues_max": "17", "net.ipv4.ping_group_range": "7 9"}
	for name, c := range map[string]struct {
		cfg               *runtime.PodSandboxConfig
		ports, ping, rmid string
		queues            string
	}{
		"defaults":                  {request(own, own, nil), "0", "0 2147483647", "0", "256"},
		"the pod's own":             {request(own, own, set), "77", "7 9", "1", "17"},
		"user namespace":            {request(own, own, nil, manyIDs), "0", "0 2147483647", "0", "256"},
		"user namespace, pod's own": {request(own, own, set, manyIDs), "77", "200007 200009", "1", "17"},
	} {
		t.Run(name, func(t *testing.T) {
			node := nodeSettings(t)
			cfg := all
			cfg.State = t.TempDir()
			n, err := do(t, cfg, c.cfg)
			if err != nil {
				t.Fatal(err)
			}
			inside(t, n, func() error {
				lo, err := net.InterfaceByName("lo")
				if err == nil && lo.Flags&net.FlagUp == 0 {
					err = errors.New("lo is down")
				}
				return errors.Join(err, expect(nameFile, "web-0"), expect(portsFile, c.ports),
					expect(pingFile, c.ping), expect(rmidFile, c.rmid), expect(queuesFile, c.queues))
			})
			if now := nodeSettings(t); now != node {
				t.Errorf("the node has changed:\n%s\n%s", node, now)
			}
		})
	}
}

func nodeSettings(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, path := range []string{portsFile, pingFile, rmidFile, queuesFile, nameFile, "/proc/sys/kernel/domainname"} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "%s=%s", path, data)
	}
	return all.String()
}

// TestRefusals is CASES 68 and 90: a clear error, and nothing done to the node.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		cfg   *runtime.PodSandboxConfig
		early bool // before anything is made
	}{
		"another setting in the value": {request(own, own, map[string]string{"kernel.shm_rmid_forced": "1+kernel.domainname=x"}), false},
		"line break in the value":      {request(own, own, map[string]string{"kernel.shm_rmid_forced": "1\nkernel.domainname=x"}), true},
		"no such setting":              {request(own, own, map[string]string{"net.ipv4.nonsense": "1"}), false},
		"out of the tree":              {request(own, own, map[string]string{"net.../kernel.domainname": "x"}), true},
		"net with host network":        {request(node, own, map[string]string{"net.ipv4.ip_forward": "1"}), true},
		"shm with host IPC":            {request(own, node, map[string]string{"kernel.shm_rmid_forced": "1"}), true},
		"host name too long": {func() *runtime.PodSandboxConfig {
			r := request(own, own, nil)
			r.Hostname = strings.Repeat("h", 65)
			return r
		}(), true},
	} {
		t.Run(name, func(t *testing.T) {
			before := nodeSettings(t)
			cfg := steps.Config{State: t.TempDir()}
			_, err := do(t, cfg, c.cfg)
			if !errors.Is(err, errdefs.ErrInvalidArgument) {
				t.Fatalf("got %v, want an invalid argument", err)
			}
			if left := cnitest.Tree(t, cfg.State); c.early && len(left) > 0 {
				t.Errorf("made before the refusal: %v", left)
			}
			if now := nodeSettings(t); now != before {
				t.Errorf("the node has changed:\n%s\n%s", before, now)
			}
		})
	}
}

// TestNoThreadKeepsThem: no thread of ours may stay in a pod's namespaces, not
// even the main one, which the scheduler may well choose.
func TestNoThreadKeepsThem(t *testing.T) {
	cnitest.NeedRoot(t)
	for i := range 30 {
		n, err := do(t, steps.Config{State: t.TempDir()}, request(own, own, nil))
		if err != nil {
			t.Fatal(err)
		}
		for try := 0; ; try++ { // a thread takes a moment to end
			in := threadsIn(t, n.Net)
			if len(in) == 0 {
				break
			}
			if try == 1000 {
				t.Fatalf("pod %d: threads %v are in its network", i, in)
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func threadsIn(t *testing.T, netns string) []string {
	t.Helper()
	pod, err := os.Stat(netns)
	if err != nil {
		t.Fatal(err)
	}
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var in []string
	for _, path := range threads {
		if fi, err := os.Stat(path); err == nil && os.SameFile(fi, pod) {
			in = append(in, path)
		}
	}
	return in
}
