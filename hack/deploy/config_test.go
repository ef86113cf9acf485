// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/images"
)

// TestConfigurations has sandflow check every configuration of deploy/.
func TestConfigurations(t *testing.T) {
	l, ok := harness.Here()
	if !ok {
		t.Skip("not in a laboratory: run \"make package-check\"")
	}
	files, err := filepath.Glob("../../deploy/*/*.toml")
	must(t, err)
	if len(files) < 8 {
		t.Errorf("only %d configurations: %s", len(files), files)
	}
	for _, file := range files {
		if out, err := exec.CommandContext(t.Context(), l.Bin("sandflow"), "config", "check", file).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// TestRuntimeClasses runs the daemon with the handlers of deploy/runtimeclass: pods of one
// whose runtime is not on this machine must fail with its name, and leave nothing.
func TestRuntimeClasses(t *testing.T) {
	l, ok := harness.Here()
	if !ok {
		t.Skip("not in a laboratory: run \"make package-check\"")
	}
	var handlers strings.Builder
	for _, name := range []string{"crun", "gvisor", "kata"} {
		text, err := os.ReadFile("../../deploy/runtimeclass/" + name + ".toml")
		must(t, err)
		handlers.Write(text)
	}
	conf := filepath.Join(l.Dir, "classes.net.d")
	must(t, l.WriteNetwork(conf))
	registry, err := images.Serve(t.Context(), l.Images()) // of the sandbox image
	must(t, err)
	t.Cleanup(func() { _ = registry.Close() })
	must(t, registry.WriteHosts(l.CertsDir()))
	d, err := l.Sandflow(harness.Options{Name: "classes", ConfDir: conf, Extra: handlers.String()})
	must(t, err)
	must(t, d.Start(t.Context()))
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	})
	c, err := harness.Dial(d.Socket)
	must(t, err)
	defer func() { _ = c.Close() }()

	for handler, want := range map[string]string{
		"gvisor": "containerd-shim-runsc-v1", "kata": "containerd-shim-kata-v2", "unheard-of": "crun, gvisor, kata, runc",
	} {
		_, err := c.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{RuntimeHandler: handler, Config: &cri.PodSandboxConfig{
			Metadata: &cri.PodSandboxMetadata{Name: handler, Namespace: "default", Uid: handler},
		}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a pod of %s gives %v, want %q in it", handler, err, want)
		}
	}
	pods, err := c.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
	must(t, err)
	if len(pods.GetItems()) > 0 {
		t.Errorf("there are pods: %v", pods.GetItems())
	}
	if out, err := admin(t.Context(), l, d, "sweep", "--dry-run"); err != nil {
		t.Errorf("the failed pods left %s (%v)", out, err)
	}
}

// admin runs the operator's command against a daemon.
func admin(ctx context.Context, l *harness.Lab, d *harness.Daemon, args ...string) (string, error) {
	socket := filepath.Join(filepath.Dir(d.Socket), "admin.sock")
	out, err := exec.CommandContext(ctx, l.Bin("sandflow"), append([]string{"--admin-socket", socket}, args...)...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("sandflow %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}
