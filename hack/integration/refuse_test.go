// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
)

const unknown = "0000000000000000000000000000000000000000000000000000000000000abc"

// TestUnknownIDs checks that what must be idempotent is, and that the rest says what is not
// there (CASES 4).
func TestUnknownIDs(t *testing.T) {
	n := newNode(t, options{})
	c, ctx := n.client, t.Context()
	calls := map[string]struct {
		want codes.Code
		call func() error
	}{
		"StopPodSandbox": {codes.OK, func() error {
			_, err := c.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: unknown})
			return err
		}},
		"RemovePodSandbox": {codes.OK, func() error {
			_, err := c.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: unknown})
			return err
		}},
		"StopContainer": {codes.OK, func() error {
			_, err := c.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: unknown})
			return err
		}},
		"RemoveContainer": {codes.OK, func() error {
			_, err := c.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: unknown})
			return err
		}},
		"RemoveImage": {codes.OK, func() error {
			_, err := c.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: "none.example/x:1"}})
			return err
		}},
		"PodSandboxStatus": {codes.NotFound, func() error {
			_, err := c.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: unknown})
			return err
		}},
		"ContainerStatus": {codes.NotFound, func() error {
			_, err := c.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: unknown})
			return err
		}},
		"StartContainer":  {codes.NotFound, func() error { return n.tryStart(ctx, unknown) }},
		"CreateContainer": {codes.NotFound, func() error { _, err := n.tryCreate(ctx, unknown, n.pod("x"), n.ctr("c", "true")); return err }},
		"ExecSync": {codes.NotFound, func() error {
			_, err := c.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: unknown, Cmd: []string{"true"}})
			return err
		}},
		"Exec": {codes.NotFound, func() error {
			_, err := c.Exec(ctx, &cri.ExecRequest{ContainerId: unknown, Cmd: []string{"true"}, Stdout: true})
			return err
		}},
		"Attach": {codes.NotFound, func() error {
			_, err := c.Attach(ctx, &cri.AttachRequest{ContainerId: unknown, Stdout: true})
			return err
		}},
		"PortForward": {codes.NotFound, func() error { _, err := c.PortForward(ctx, &cri.PortForwardRequest{PodSandboxId: unknown}); return err }},
		"ReopenLog": {codes.NotFound, func() error {
			_, err := c.ReopenContainerLog(ctx, &cri.ReopenContainerLogRequest{ContainerId: unknown})
			return err
		}},
		"Update": {codes.NotFound, func() error {
			_, err := c.UpdateContainerResources(ctx, &cri.UpdateContainerResourcesRequest{ContainerId: unknown, Linux: &cri.LinuxContainerResources{CpuShares: 2}})
			return err
		}},
		"ContainerStats": {codes.NotFound, func() error {
			_, err := c.ContainerStats(ctx, &cri.ContainerStatsRequest{ContainerId: unknown})
			return err
		}},
		"PodSandboxStats": {codes.NotFound, func() error {
			_, err := c.PodSandboxStats(ctx, &cri.PodSandboxStatsRequest{PodSandboxId: unknown})
			return err
		}},
	}
	for name, k := range calls {
		if err := k.call(); status.Code(err) != k.want {
			t.Errorf("%s: want %v, got %v", name, k.want, err)
		}
	}
	n.same()
}

// TestBadPods are requests for pods and containers that must be refused, with a word of what is wrong.
func TestBadPods(t *testing.T) {
	n := newNode(t, options{})
	ctx := t.Context()
	_, err := n.tryRun(ctx, n.pod("a"), "no-such-handler")
	refused(t, err, "no-such-handler", codes.InvalidArgument, codes.NotFound)

	long := n.pod("b")
	long.Hostname = strings.Repeat("h", 65)
	_, err = n.tryRun(ctx, long, "")
	refused(t, err, "64", codes.InvalidArgument)

	cfg := n.pod("good")
	pod := n.run(cfg)
	relative := n.ctr("relative", "true")
	relative.Mounts = []*cri.Mount{{HostPath: "/tmp", ContainerPath: "../x"}}
	_, err = n.tryCreate(ctx, pod, cfg, relative)
	refused(t, err, "../x", codes.InvalidArgument)

	image := n.ctr("image", "true")
	image.Image.Image = "registry.example/absent:1"
	_, err = n.tryCreate(ctx, pod, cfg, image)
	refused(t, err, "absent", codes.NotFound)

	_, err = n.client.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: "registry.example/absent:1"}})
	refused(t, err, "absent", codes.NotFound)

	command := n.ctr("command", "/no/such/command")
	id, err := n.tryCreate(ctx, pod, cfg, command)
	if err == nil {
		err = n.tryStart(ctx, id)
		if s := n.status(id); s.GetState() != cri.ContainerState_CONTAINER_EXITED || s.GetExitCode() == 0 {
			t.Errorf("a command that is not there: %v, exit code %d", s.GetState(), s.GetExitCode())
		}
		n.removeContainer(id)
	}
	refused(t, err, "/no/such/command")

	same := n.pod("good")
	if again, err := n.tryRun(ctx, same, ""); err == nil {
		t.Errorf("two pods of the same name: %s and %s", pod, again)
	}
	n.remove(pod)
	n.same()
}

// refused checks an error's code (any of those given) and its words.
func refused(t *testing.T, err error, words string, want ...codes.Code) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("want an error with %q, got %v", words, err)
		return
	}
	for _, code := range want {
		if status.Code(err) == code {
			return
		}
	}
	if len(want) > 0 {
		t.Errorf("want code %v, got %v", want, err)
	}
}

// TestBadConfigurations must not start, and must say where the fault is.
func TestBadConfigurations(t *testing.T) {
	l := lab(t)
	long := "/run/" + strings.Repeat("long/", 25) + "s.sock"
	cases := map[string]struct{ text, want string }{
		"unknown key":     {"rooot = \"/x\"\n", "rooot"},
		"unknown action":  {"[workflows.sandbox.create]\nsteps = [[\"files\", \"namespaces\"], [\"netz\"], [\"shim\"]]\n", "netz"},
		"action twice":    {"[workflows.sandbox.create]\nsteps = [[\"files\", \"namespaces\"], [\"network\"], [\"shim\"], [\"files\"]]\n", "files"},
		"empty step":      {"[workflows.sandbox.create]\nsteps = [[\"files\", \"namespaces\"], [], [\"network\"], [\"shim\"]]\n", "empty"},
		"needs not met":   {"[workflows.sandbox.create]\nsteps = [[\"network\"], [\"files\", \"namespaces\"], [\"shim\"]]\n", "network"},
		"left out":        {"[workflows.sandbox.destroy]\nsteps = [[\"shim\"], [\"namespaces\", \"files\"]]\n", "network"},
		"long socket":     {"[cri]\nsocket = \"" + long + "\"\n", "106"},
		"not TOML":        {"root = [\n", ""},
		"negative limit":  {"[workflows.sandbox.create]\nconcurrent = -1\n", "concurrent"},
		"no such runtime": {"[runtime]\ndefault = \"nothing\"\n", "nothing"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "config.toml")
			text := "root = \"" + dir + "/root\"\nstate = \"/run/bad\"\n"
			if strings.HasPrefix(c.text, "root") {
				text = ""
			}
			must(t, os.WriteFile(path, []byte(text+c.text), 0o644))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			out, err := exec.CommandContext(ctx, l.Bin("sandflowd"), "--config", path).CombinedOutput()
			if err == nil || ctx.Err() != nil {
				t.Fatalf("the daemon started, or did not end: %v", err)
			}
			if !strings.Contains(string(out), c.want) || !strings.Contains(string(out), "config.toml:") {
				t.Errorf("want %q and the place in the file, got:\n%s", c.want, out)
			}
		})
	}
}

// TestNoNetwork has no CNI configuration at first: pods are refused with the reason, nothing
// is left, and a configuration that appears later is taken up. Then it goes again: pods that
// have a network can be removed all the same (CASES 7).
func TestNoNetwork(t *testing.T) {
	l := lab(t)
	dir := filepath.Join(l.Dir, "appears-later")
	n := newNode(t, options{Options: harness.Options{ConfDir: dir}, bare: true})
	r, err := n.client.Status(t.Context(), &cri.StatusRequest{})
	must(t, err)
	for _, c := range r.GetStatus().GetConditions() {
		if c.GetType() == cri.NetworkReady && (c.GetStatus() || c.GetReason() == "" || !strings.Contains(c.GetMessage(), dir)) {
			t.Errorf("without a configuration the condition is %v", c)
		}
	}
	_, err = n.tryRun(t.Context(), n.pod("early"), "")
	refused(t, err, "network")
	if got := n.pods(); len(got) != 0 {
		t.Errorf("the refused pod is listed: %v", got)
	}
	must(t, l.WriteNetwork(dir))
	n.warmUpNetwork()
	n.before = n.count()
	pod := n.run(n.pod("late"))
	must(t, os.RemoveAll(dir))
	n.remove(pod)
	n.same()
}

func (n *node) warmUpNetwork() {
	n.t.Helper()
	cfg := n.pod("warm-up")
	waitFor(n.t, "the configuration to be taken up", func() bool {
		id, err := n.tryRun(n.t.Context(), cfg, "")
		if err == nil {
			n.remove(id)
		}
		return err == nil
	})
}

// TestNoRuntime has an OCI runtime that is not there.
func TestNoRuntime(t *testing.T) {
	n := newNode(t, options{Options: harness.Options{Extra: "[runtime.handlers.gone]\nbinary = \"/no/such/runc\"\n"}})
	cfg := n.pod("gone")
	id, err := n.tryRun(t.Context(), cfg, "gone")
	if err == nil {
		var ctr string
		if ctr, err = n.tryCreate(t.Context(), id, cfg, n.ctr("c", "true")); err == nil {
			err = n.tryStart(t.Context(), ctr)
		}
		n.remove(id)
	}
	refused(t, err, "/no/such/runc")
	n.same()
	n.remove(n.run(n.pod("unharmed")))
}
