// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/cni/cnitest"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/engine/enginetest"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/network"
)

func TestMain(m *testing.M) { cnitest.Main(m) }

// lab is a network of a fake plugin.
type lab struct {
	steps.Config
	cni  cni.Config
	fake *cnitest.Fake
}

func newLab(t *testing.T, version string) *lab {
	t.Helper()
	dir := t.TempDir()
	l := &lab{
		Config: steps.Config{State: filepath.Join(dir, "state"), Root: filepath.Join(dir, "root")},
		cni:    cni.Config{ConfDir: filepath.Join(dir, "net.d"), BinDirs: []string{filepath.Join(dir, "bin")}, CacheDir: filepath.Join(dir, "cache"), MaxConf: 1},
	}
	for _, d := range []string{l.cni.ConfDir, l.cni.BinDirs[0], network.Dir(l.Config)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l.fake = cnitest.NewFake(t, l.cni.BinDirs[0], "fake")
	l.configure(t, fmt.Sprintf(`{"name":"a","cniVersion":%q,"plugins":[{"type":"fake","capabilities":{"portMappings":true,"bandwidth":true,"dns":true}}]}`, version))
	return l
}

func (l *lab) configure(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(l.cni.ConfDir, "10-a.conflist"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// action is the action as a start of the daemon makes it.
func (l *lab) action(t *testing.T) *network.Action {
	t.Helper()
	n, err := cni.New(l.cni)
	if err != nil {
		t.Fatal(err)
	}
	return network.New(l.Config, n)
}

func (l *lab) files(t *testing.T) []string {
	t.Helper()
	return cnitest.Tree(t, network.Dir(l.Config))
}

func request(change func(*runtime.PodSandboxConfig)) engine.Value {
	c := &runtime.PodSandboxConfig{
		Metadata: &runtime.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u1"},
		Linux: &runtime.LinuxPodSandboxConfig{SecurityContext: &runtime.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtime.NamespaceOption{},
		}},
	}
	if change != nil {
		change(c)
	}
	return steps.PodRequest.With(steps.Pod{Config: steps.Proto[*runtime.PodSandboxConfig]{M: c}})
}

func run(t *testing.T, a engine.Action, id string, values ...engine.Value) *engine.Run {
	t.Helper()
	r, err := engine.NewRun(a, steps.Sandbox, steps.Create, id, values...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func noNS() engine.Value { return steps.PodNamespaces.With(steps.Namespaces{}) }

// TestSuiteWithRealPlugins attaches to a bridge, with leases and a host port.
func TestSuiteWithRealPlugins(t *testing.T) {
	bin := cnitest.Plugins(t, "bridge", "host-local", "portmap")
	l := newLab(t, "1.0.0")
	l.cni.BinDirs = []string{bin}
	leases := t.TempDir()
	l.configure(t, fmt.Sprintf(`{"cniVersion":"1.0.0","name":"real","plugins":[
		{"type":"bridge","bridge":"cnisuite0","isGateway":true,"ipMasq":true,
		 "ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.88.8.0/24"}],[{"subnet":"fd88:8::/64"}]]}},
		{"type":"portmap","capabilities":{"portMappings":true}}]}`, leases))
	enginetest.Suite(t, enginetest.Subject{
		New: func(t *testing.T) engine.Action {
			t.Helper()
			return l.action(t)
		},
		Workflow: steps.Sandbox, Flow: steps.Create,
		Values: func(t *testing.T, _ string) []engine.Value {
			t.Helper()
			ns := steps.PodNamespaces.With(steps.Namespaces{Net: cnitest.NetNS(t)})
			return []engine.Value{ns, request(func(c *runtime.PodSandboxConfig) {
				c.PortMappings = []*runtime.PortMapping{{HostPort: 18090, ContainerPort: 80}, {ContainerPort: 81}}
			})}
		},
		World: func(t *testing.T, _ string) []string {
			t.Helper()
			all := cnitest.World(t, network.Dir(l.Config), leases, l.cni.CacheDir)
			return slices.DeleteFunc(all, func(s string) bool { return kept(s, leases, l.cni.CacheDir) })
		},
		Check: func(t *testing.T, r *engine.Run) {
			t.Helper()
			n, err := steps.PodNetwork.Need(r)
			if err != nil || len(n.IPs) != 2 || net.ParseIP(n.IPs[0]).To4() == nil {
				t.Fatalf("network %+v, %v", n, err)
			}
			if !strings.Contains(string(n.Results), `"network":"real"`) {
				t.Errorf("results %s", n.Results)
			}
		},
	})
}

// kept tells what plugins and libcni keep for the network as a whole.
func kept(s, leases, cache string) bool {
	base := filepath.Base(s)
	return s == filepath.Join(leases, "real") || base == "lock" || strings.HasPrefix(base, "last_reserved_ip") || s == filepath.Join(cache, "results")
}

// TestSuiteWithFake runs the suite with a plugin whose only trace is our file.
func TestSuiteWithFake(t *testing.T) {
	l := newLab(t, "1.1.0")
	enginetest.Suite(t, enginetest.Subject{
		New: func(t *testing.T) engine.Action {
			t.Helper()
			return l.action(t)
		},
		Workflow: steps.Sandbox, Flow: steps.Create,
		Values: func(*testing.T, string) []engine.Value { return []engine.Value{noNS(), request(nil)} },
		World: func(t *testing.T, _ string) []string {
			t.Helper()
			return l.files(t)
		},
	})
}

// TestOneDelForEachAdd is CASES 5 and 7: DEL runs once after any ADD, failed or
// not, with what ADD used, and never without one.
func TestOneDelForEachAdd(t *testing.T) {
	for name, c := range map[string]struct {
		shell string
		conf  string // the configuration when it is undone
		want  string
	}{
		"success":               {"", `{}`, "ADD DEL"},
		"failed ADD":            {`echo '{"code":100,"msg":"leased, then failed"}'; exit 1`, `{}`, "ADD DEL"},
		"no network configured": {"", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, "1.0.0")
			l.fake.On(t, "ADD", c.shell)
			if c.conf == "" {
				l.configure(t, "")
			}
			a := l.action(t)
			err := a.Do(t.Context(), run(t, a, "p1", noNS(), request(nil)))
			if (err == nil) != (name == "success") {
				t.Fatalf("do: %v", err)
			}
			if name == "no network configured" && !errors.Is(err, errdefs.ErrUnavailable) {
				t.Fatalf("do: %v", err)
			}
			l.configure(t, c.conf)
			for range 3 {
				a = l.action(t)
				if err := a.Undo(t.Context(), run(t, nil, "p1")); err != nil {
					t.Fatal(err)
				}
			}
			if got := l.fake.Verbs(t); got != c.want {
				t.Errorf("calls %q, want %q", got, c.want)
			}
		})
	}
}

// TestFileComesFirst is CASES 6: what is needed for DEL is durable before ADD runs.
func TestFileComesFirst(t *testing.T) {
	l := newLab(t, "1.0.0")
	path := filepath.Join(network.Dir(l.Config), "p1.json")
	l.fake.On(t, "ADD", fmt.Sprintf("cp %q $D/seen", path))
	a := l.action(t)
	if err := a.Do(t.Context(), run(t, a, "p1", noNS(), request(nil))); err != nil {
		t.Fatal(err)
	}
	seen, err := os.ReadFile(filepath.Join(l.fake.Dir(), "seen"))
	if err != nil || !strings.Contains(string(seen), `"type":"fake"`) {
		t.Fatalf("ADD saw %q, %v", seen, err)
	}
}

// TestFailedDelIsKept: an error stays retryable, and says what it is about.
func TestFailedDelIsKept(t *testing.T) {
	l := newLab(t, "1.0.0")
	a := l.action(t)
	if err := a.Do(t.Context(), run(t, a, "p1", noNS(), request(nil))); err != nil {
		t.Fatal(err)
	}
	l.fake.On(t, "DEL", `echo '{"code":11,"msg":"not now"}'; exit 1`)
	err := a.Undo(t.Context(), run(t, nil, "p1"))
	if err == nil {
		t.Fatal("undo succeeded")
	}
	for _, part := range []string{"default/web", "p1", `network "a"`, "plugin fake", "not now"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	l.fake.On(t, "DEL", "")
	if err := a.Undo(t.Context(), run(t, nil, "p1")); err != nil {
		t.Fatal(err)
	}
	if got := l.fake.Verbs(t); got != "ADD DEL DEL" || len(l.files(t)) != 0 {
		t.Errorf("calls %q, files %v", got, l.files(t))
	}
}

func TestDamagedFile(t *testing.T) {
	l := newLab(t, "1.0.0")
	path := filepath.Join(network.Dir(l.Config), "p1.json")
	if err := os.WriteFile(path, []byte(`{"id":`), 0o600); err != nil {
		t.Fatal(err)
	}
	err := l.action(t).Undo(t.Context(), run(t, nil, "p1"))
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("undo: %v", err)
	}
}

func TestHostNetwork(t *testing.T) {
	l := newLab(t, "1.0.0")
	a := l.action(t)
	onNode := request(func(c *runtime.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Network = runtime.NamespaceMode_NODE
		c.PortMappings = []*runtime.PortMapping{{HostPort: 80, ContainerPort: 80}}
	})
	if a.Applies(run(t, a, "p1", onNode, noNS())) {
		t.Error("the action applies to a pod on the node's network")
	}
	if !a.Applies(run(t, a, "p1", request(nil), noNS())) {
		t.Error("the action does not apply to a pod with its own network")
	}
	if err := a.Do(t.Context(), run(t, a, "p1", onNode, noNS())); err != nil {
		t.Fatal(err)
	}
	if err := a.Undo(t.Context(), run(t, nil, "p1")); err != nil {
		t.Fatal(err)
	}
	if got := l.fake.Verbs(t); got != "" {
		t.Errorf("calls %q", got)
	}
}

// TestInit keeps our own attachments in GC, removes half-written files, and
// survives plugins that fail.
func TestInit(t *testing.T) {
	l := newLab(t, "1.1.0")
	a := l.action(t)
	if err := a.Do(t.Context(), run(t, a, "p1", noNS(), request(nil))); err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(network.Dir(l.Config), ".tmp-123")
	if err := os.WriteFile(half, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.fake.On(t, "GC", `echo '{"code":100,"msg":"cannot"}'; exit 1`)
	if err := l.action(t).Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := l.fake.Verbs(t); got != "ADD GC" {
		t.Errorf("calls %q", got)
	}
	if !strings.Contains(l.fake.Stdin(t, "GC"), `"containerID":"p1"`) {
		t.Errorf("GC was told %s", l.fake.Stdin(t, "GC"))
	}
	if files := l.files(t); len(files) != 1 {
		t.Errorf("files %v", files)
	}
}

// TestInitEndsStrays: what a plugin of a daemon that died has started takes no address any more.
func TestInitEndsStrays(t *testing.T) {
	l := newLab(t, "1.1.0")
	start := func(state string) *exec.Cmd {
		cmd := exec.Command("sleep", "300")
		cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_NETNS=" + filepath.Join(state, "pods/p1/ns/net")}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	ours, others := start(l.State), start("/elsewhere")
	defer func() { _, _ = others.Process.Kill(), others.Wait() }()
	ended := make(chan string, 1)
	go func() { ended <- fmt.Sprint(ours.Wait()) }()
	if err := l.action(t).Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-ended; got != "signal: killed" {
		t.Errorf("ours has ended with %s", got)
	}
	if err := others.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("another runtime's: %v", err)
	}
}

// TestCapabilities checks what the request becomes.
func TestCapabilities(t *testing.T) {
	l := newLab(t, "1.0.0")
	a := l.action(t)
	full := request(func(c *runtime.PodSandboxConfig) {
		c.PortMappings = []*runtime.PortMapping{
			{HostPort: 8080, ContainerPort: 80},
			{HostPort: 8081, ContainerPort: 81, Protocol: runtime.Protocol_SCTP, HostIp: "127.0.0.1"},
			{ContainerPort: 9999},
		}
		c.Annotations = map[string]string{"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "5Mi"}
		c.DnsConfig = &runtime.DNSConfig{Servers: []string{"10.0.0.53"}}
	})
	if err := a.Do(t.Context(), run(t, a, "p1", noNS(), full)); err != nil {
		t.Fatal(err)
	}
	got := l.fake.Stdin(t, "ADD")
	for _, want := range []string{`"hostPort":8080`, `"protocol":"tcp"`, `"protocol":"sctp"`, `"hostIP":"127.0.0.1"`, `"ingressRate":10000000`, `"egressRate":5242880`, `"servers":["10.0.0.53"]`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not in %s", want, got)
		}
	}
	if strings.Contains(got, "9999") {
		t.Error("a mapping without host port was passed on")
	}
}

// TestCancelledAdd: the plugin is killed, and DEL runs on Undo's own context.
func TestCancelledAdd(t *testing.T) {
	l := newLab(t, "1.0.0")
	started := filepath.Join(l.fake.Dir(), "started")
	if err := unix.Mkfifo(started, 0o600); err != nil {
		t.Fatal(err)
	}
	l.fake.On(t, "ADD", `echo > "$D/started"; sleep 300`)
	a := l.action(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	r := run(t, a, "p1", noNS(), request(nil))
	go func() { done <- a.Do(ctx, r) }()
	if _, err := os.ReadFile(started); err != nil { // waits for the plugin
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("do: %v", err)
	}
	if err := a.Undo(t.Context(), run(t, nil, "p1")); err != nil {
		t.Fatal(err)
	}
	if got := l.fake.Verbs(t); got != "ADD DEL" {
		t.Errorf("calls %q", got)
	}
}
