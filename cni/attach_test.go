// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/cni/cnitest"
)

func one(t *testing.T, change ...func(*cni.Config)) (*lab, *cnitest.Fake, *cni.Network) {
	t.Helper()
	l := newLab(t, change...)
	f := cnitest.NewFake(t, l.bin, "fake")
	l.write("10-a.conflist", list("a", "1.0.0", "fake"))
	return l, f, l.net()
}

// TestNothingConfigured is CASES 7: a failed attach left nothing, and detaching runs no plugin.
func TestNothingConfigured(t *testing.T) {
	l := newLab(t)
	n := l.net()
	a := cni.Attachment{ID: "p1", PodName: "web", PodNamespace: "default"}
	_, err := n.Attach(t.Context(), a)
	if !errors.Is(err, cni.ErrNoNetwork) || !errors.Is(err, errdefs.ErrUnavailable) {
		t.Fatalf("attach: %v", err)
	}
	wantIn(t, err.Error(), "default/web", l.conf)
	if err := n.Detach(t.Context(), a); err != nil {
		t.Fatal(err)
	}
}

// TestDetachWithWhatAddUsed is CASES 7 and 8: the directory is gone, and so is the netns.
func TestDetachWithWhatAddUsed(t *testing.T) {
	l, f, n := one(t)
	at := l.attach(n, "p1")
	l.write("10-a.conflist", list("other", "1.0.0", "nosuch"))
	fresh := l.net() // another start of the daemon
	for range 2 {    // CNI's DEL is idempotent, so must we be
		if err := fresh.Detach(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	var conf struct{ Name string }
	if err := json.Unmarshal([]byte(f.Stdin(t, "DEL")), &conf); err != nil || conf.Name != "a" {
		t.Fatalf("DEL got network %q: %v", conf.Name, err)
	}
	calls := f.Calls(t)
	wantIn(t, calls[0], "ADD p1 eth0", "IgnoreUnknown=1", "K8S_POD_NAMESPACE=default", "K8S_POD_NAME=web", "K8S_POD_INFRA_CONTAINER_ID=p1", "K8S_POD_UID=u1")
	wantIn(t, calls[1], "DEL p1 eth0", "netns= ")
}

// TestNetNSGone is CASES 8: the path is there, but no namespace is.
func TestNetNSGone(t *testing.T) {
	_, f, n := one(t)
	ns := cnitest.NetNS(t)
	dead := filepath.Join(t.TempDir(), "dead")
	if err := os.WriteFile(dead, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, want string }{{ns, "netns=" + ns + " "}, {dead, "netns= "}} {
		a := cni.Attachment{ID: "p1", PodName: "web", NetNS: c.path}
		res, err := n.Attach(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Detach(t.Context(), cni.Attachment{ID: "p1", Saved: res.Saved}); err != nil {
			t.Fatal(err)
		}
		calls := f.Calls(t)
		wantIn(t, calls[len(calls)-1], "DEL", c.want)
	}
}

func TestDetachRefusesAnothersSaved(t *testing.T) {
	l, f, n := one(t)
	at := l.attach(n, "p1")
	at.ID = "p2"
	if err := n.Detach(t.Context(), at); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Fatalf("detach: %v", err)
	}
	if err := n.Detach(t.Context(), cni.Attachment{ID: "p1", Saved: []byte("{")}); err == nil {
		t.Fatal("broken Saved was accepted")
	}
	if f.Verbs(t) != "ADD" {
		t.Fatalf("calls: %v", f.Verbs(t))
	}
}

// TestSeveralNetworks checks order, interface names, and that a partial detach remembers.
func TestSeveralNetworks(t *testing.T) {
	l := newLab(t, func(c *cni.Config) { c.MaxConf = 0 })
	f1, f2 := cnitest.NewFake(t, l.bin, "one"), cnitest.NewFake(t, l.bin, "two")
	f2.On(t, "ADD", `echo '{"ips":[{"version":"4","address":"10.9.0.2/24"},{"version":"6","address":"fd00::2/64"}]}'; exit 0`)
	f1.On(t, "ADD", `echo '{"cniVersion":"0.4.0","ips":[{"version":"6","address":"fd01::9/64"}]}'; exit 0`)
	l.write("10-a.conflist", list("a", "0.4.0", "one"))
	l.write("20-b.conflist", list("b", "0.4.0", "two"))
	n := l.net()
	res, err := n.Attach(t.Context(), cni.Attachment{ID: "p1", PodName: "web", PodNamespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"fd01::9", "10.9.0.2", "fd00::2"}; !slices.Equal(res.IPs, want) {
		t.Errorf("addresses %v, want %v", res.IPs, want)
	}
	wantIn(t, string(res.Raw), `"network":"a"`, `"network":"b"`, `"ifName":"eth1"`)
	wantIn(t, f2.Calls(t)[0], " eth1 ")

	at := cni.Attachment{ID: "p1", Saved: res.Saved}
	f1.On(t, "DEL", `echo '{"code":11,"msg":"not now","details":"wait a bit"}'; echo oops >&2; exit 1`)
	err = n.Detach(t.Context(), at)
	var partly *cni.DetachError
	var plugin *cni.PluginError
	if !errors.As(err, &partly) || !errors.As(err, &plugin) || plugin.Code != 11 {
		t.Fatalf("detach: %v", err)
	}
	wantIn(t, err.Error(), "default/web", "p1", `network "a"`, "plugin one", "not now", "wait a bit", "oops")
	f1.On(t, "DEL", "")
	if err := n.Detach(t.Context(), cni.Attachment{ID: "p1", Saved: partly.Remaining}); err != nil {
		t.Fatal(err)
	}
	if f1.Verbs(t) != "ADD DEL DEL" || f2.Verbs(t) != "ADD DEL" {
		t.Errorf("calls: %q and %q", f1.Verbs(t), f2.Verbs(t))
	}
}

// TestAddresses is CASES 80.
func TestAddresses(t *testing.T) {
	const (
		v4first = `{"ips":[{"address":"10.9.0.2/24"},{"address":"fd00::2/64"},{"address":"10.9.1.2/24"}]}`
		v6first = `{"ips":[{"address":"fd00::2/64"},{"address":"10.9.0.2/24"}]}`
		onNode  = `{"interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"/ns"}],"ips":[{"address":"10.1.0.1/24","interface":0},{"address":"10.1.0.2/24","interface":1}]}`
		vague   = `{"interfaces":[{"name":"eth0"}],"ips":[{"address":"10.1.0.2/24","interface":0}]}`
		old     = `{"cniVersion":"0.2.0","ip4":{"ip":"10.2.0.2/24"},"ip6":{"ip":"fd02::2/64"}}`
		wild    = `{"ips":[{"address":"10.1.0.2/24","interface":99},{"address":"10.1.0.2/24","interface":-1}]}`
	)
	for name, c := range map[string]struct{ result, prefer, want string }{
		"v4 first":                 {v4first, "", "10.9.0.2 fd00::2 10.9.1.2"},
		"v4 first, prefer v6":      {v4first, cni.PreferIPv6, "fd00::2 10.9.0.2 10.9.1.2"},
		"v6 first":                 {v6first, "", "fd00::2 10.9.0.2"},
		"v6 first, prefer v4":      {v6first, cni.PreferIPv4, "10.9.0.2 fd00::2"},
		"the node's are not ours":  {onNode, "", "10.1.0.2"},
		"no interface is the pods": {vague, "", "10.1.0.2"},
		"version 0.2.0":            {old, "", "10.2.0.2 fd02::2"},
		"interfaces out of range":  {wild, "", "10.1.0.2"},
		"the last gives none":      {"", "", "10.9.0.2"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, func(cfg *cni.Config) { cfg.IPPreference = c.prefer })
			f := cnitest.NewFake(t, l.bin, "fake")
			plugins := []string{"fake"}
			if c.result != "" {
				f.On(t, "ADD", "echo '"+c.result+"'; exit 0")
			} else {
				cnitest.NewFake(t, l.bin, "last").On(t, "ADD", "echo '{}'; exit 0")
				plugins = append(plugins, "last")
			}
			l.write("10-a.conflist", list("a", "1.0.0", plugins...))
			res, err := l.net().Attach(t.Context(), cni.Attachment{ID: "p1"})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(res.IPs, " "); got != c.want {
				t.Errorf("addresses %q, want %q", got, c.want)
			}
		})
	}
}

func TestBadPlugins(t *testing.T) {
	for name, c := range map[string]struct {
		shell string
		is    error
		says  []string
	}{
		"no address":  {`echo '{}'; exit 0`, cni.ErrNoAddress, nil},
		"no output":   {`exit 0`, errdefs.ErrUnavailable, []string{`network "a"`}},
		"null":        {`echo null; exit 0`, cni.ErrNoAddress, nil},
		"not JSON":    {`echo hello; exit 0`, errdefs.ErrUnavailable, []string{`network "a"`}},
		"an array":    {`echo '[]'; exit 0`, errdefs.ErrUnavailable, []string{`network "a"`}},
		"bad address": {`echo '{"ips":[{"address":"nonsense"}]}'; exit 0`, errdefs.ErrUnavailable, []string{"nonsense"}},
		"failure":     {`echo '{"code":100,"msg":"no more addresses","details":"of 10.9.0.0/24"}'; exit 1`, errdefs.ErrUnavailable, []string{"plugin fake: ADD", "no more addresses", "of 10.9.0.0/24"}},
		"mute":        {`exit 3`, errdefs.ErrUnavailable, []string{"plugin fake: ADD", "exit status 3"}},
		"stderr only": {`echo gone wrong >&2; exit 3`, errdefs.ErrUnavailable, []string{"exit status 3", "gone wrong"}},
		"babble":      {`echo plain text; exit 3`, errdefs.ErrUnavailable, []string{"plain text", "exit status 3"}},
		"a flood":     {`head -c 9000000 /dev/zero; exit 0`, errdefs.ErrUnavailable, []string{"more than"}},
		"killed":      {`kill -9 $$`, errdefs.ErrUnavailable, []string{"killed"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, f, n := one(t)
			f.On(t, "ADD", c.shell)
			_, err := n.Attach(t.Context(), cni.Attachment{ID: "p1", PodName: "web", PodNamespace: "default"})
			if !errors.Is(err, c.is) {
				t.Fatalf("attach: %v", err)
			}
			wantIn(t, err.Error(), append(c.says, "attach pod default/web (p1)")...)
		})
	}
}

// TestHangingPlugin must be killed with its children, at the caller's word or in time.
func TestHangingPlugin(t *testing.T) {
	for name, c := range map[string]struct {
		timeout time.Duration
		is      error
		class   error
	}{
		"cancelled": {time.Minute, context.Canceled, context.Canceled},
		"too slow":  {300 * time.Millisecond, context.DeadlineExceeded, errdefs.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			_, f, n := one(t, func(cfg *cni.Config) { cfg.Timeout = c.timeout })
			f.On(t, "ADD", `sleep 300 & echo $! > "$D/child.tmp"; mv "$D/child.tmp" "$D/child"; wait`)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			failed := make(chan error, 1)
			go func() {
				_, err := n.Attach(ctx, cni.Attachment{ID: "p1"})
				failed <- err
			}()
			child := readPID(t, filepath.Join(f.Dir(), "child"))
			if errors.Is(c.is, context.Canceled) {
				cancel()
			}
			if err := <-failed; !errors.Is(err, c.is) || !errors.Is(errdefs.Resolve(err), c.class) {
				t.Fatalf("attach: %v, of class %v", err, errdefs.Resolve(err))
			} else {
				wantIn(t, err.Error(), "plugin fake", "killed")
			}
			waitGone(t, child)
		})
	}
}

func readPID(t *testing.T, path string) int {
	t.Helper()
	for range 2000 {
		data, err := os.ReadFile(path)
		if err == nil {
			pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("the plugin did not start")
	return 0
}

// waitGone waits until a process runs no more; that nobody has reaped it is not our matter.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	for range 2000 {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	t.Fatal("the plugin's child lives on")
}

func TestCapabilities(t *testing.T) {
	_, f, n := one(t)
	a := cni.Attachment{
		ID: "p1",
		PortMappings: []cni.PortMapping{
			{HostPort: 80, ContainerPort: 8080, Protocol: "tcp"},
			{HostPort: 90, ContainerPort: 9090, Protocol: "sctp", HostIP: "127.0.0.1"},
		},
		Bandwidth:  &cni.Bandwidth{IngressRate: 1000, IngressBurst: 2000},
		DNS:        &cni.DNS{Servers: []string{"10.0.0.53"}, Searches: []string{"x.y"}},
		IPRanges:   [][]cni.IPRange{{{Subnet: "10.9.0.0/24"}}},
		Aliases:    []string{"web"},
		CgroupPath: "/pods/p1",
	}
	res, err := n.Attach(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Detach(t.Context(), cni.Attachment{ID: "p1", Saved: res.Saved}); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"ADD", "DEL"} {
		wantIn(t, f.Stdin(t, verb),
			`"containerPort":8080`, `"hostIP":"127.0.0.1"`, `"protocol":"sctp"`,
			`"ingressRate":1000`, `"servers":["10.0.0.53"]`, `"subnet":"10.9.0.0/24"`, `"aliases":["web"]`, `"cgroupPath":"/pods/p1"`)
	}
}

func TestArgsCannotBeInjected(t *testing.T) {
	_, f, n := one(t)
	for _, name := range []string{"a;IP=10.0.0.1", "a=b", "a\nb"} {
		_, err := n.Attach(t.Context(), cni.Attachment{ID: "p1", PodName: name})
		if !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if f.Verbs(t) != "" {
		t.Errorf("plugins ran: %v", f.Calls(t))
	}
}

// TestVerbsOfNewConfigurations checks STATUS and GC, which exist from 1.1.0 on.
func TestVerbsOfNewConfigurations(t *testing.T) {
	l := newLab(t)
	f := cnitest.NewFake(t, l.bin, "fake")
	n := l.net()
	l.write("10-a.conflist", list("a", "1.0.0", "fake"))
	if err := n.GC(t.Context(), nil); err != nil || !n.Status(t.Context()).Ready || f.Verbs(t) != "" {
		t.Fatalf("1.0.0: %v, calls %q", err, f.Verbs(t))
	}
	l.write("10-a.conflist", list("a", "1.1.0", "fake"))
	stale := l.attach(n, "stale")
	l.attach(n, "kept")
	if s := n.Status(t.Context()); !s.Ready {
		t.Fatal(s.Message)
	}
	if err := n.GC(t.Context(), []string{"kept"}); err != nil {
		t.Fatal(err)
	}
	if got := f.Verbs(t); got != "ADD ADD STATUS DEL GC" {
		t.Fatalf("calls %q", got)
	}
	wantIn(t, f.Calls(t)[3], "DEL stale")
	wantIn(t, f.Stdin(t, "GC"), `{"containerID":"kept","ifname":"eth0"}`)
	if err := n.Detach(t.Context(), stale); err != nil {
		t.Fatal(err)
	}
	f.On(t, "STATUS", `echo '{"code":50,"msg":"the uplink is down"}'; exit 1`)
	s := n.Status(t.Context())
	if s.Ready || s.Reason != cni.ReasonPluginState {
		t.Fatalf("%+v", s)
	}
	wantIn(t, s.Message, `network "a"`, "10-a.conflist", "plugin fake", "the uplink is down")
}

func TestNewRefuses(t *testing.T) {
	good := cni.Config{ConfDir: "/c", CacheDir: "/d", BinDirs: []string{"/b"}}
	for name, change := range map[string]func(*cni.Config){
		"relative dir": func(c *cni.Config) { c.ConfDir = "net.d" },
		"no plugins":   func(c *cni.Config) { c.BinDirs = nil },
		"preference":   func(c *cni.Config) { c.IPPreference = "ipv5" },
		"negative":     func(c *cni.Config) { c.MaxConf = -1 },
	} {
		c := good
		change(&c)
		if _, err := cni.New(c); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
