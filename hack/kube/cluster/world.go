// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/images"
	"github.com/sandflow-cri/sandflow/hack/world"
)

// warmUp runs one pod, so that what the first one makes for good is there: the bridge, the
// tables of the firewall.
func (n *Node) warmUp(ctx context.Context) (err error) {
	c, err := harness.Dial(n.Socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	image := &cri.ImageSpec{Image: images.Busybox}
	if _, err := c.PullImage(ctx, &cri.PullImageRequest{Image: image}); err != nil {
		return err
	}
	config := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: "first", Uid: "first", Namespace: "lab"},
		LogDirectory: "/var/log/pods/first", Linux: &cri.LinuxPodSandboxConfig{CgroupParent: n.CgroupRoot},
		PortMappings: []*cri.PortMapping{{ContainerPort: 80, HostPort: 8080}},
	}
	pod, err := c.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		return err
	}
	if _, err := c.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod.GetPodSandboxId()}); err != nil {
		return err
	}
	_, err = c.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod.GetPodSandboxId()})
	return errors.Join(err, os.RemoveAll(n.Root("/var/log/pods/first")))
}

// count lists everything on the node that pods can leave, in the node itself.
func (n *Node) count(ctx context.Context) (world.World, error) {
	file := filepath.Join(n.Dir, "world.json")
	args := []string{"count", file, "--cgroups", n.CgroupRoot, "--leases", "/var/lib/cni/networks"}
	if n.kind != Upstream {
		args = append(args, "--state", "/run/sandflow", "--root", "/var/lib/sandflow")
	}
	switch n.kind {
	case Embedded:
		args = append(args, "--containerd", "/run/sandflow/containerd.sock")
	case Attached:
		args = append(args, "--containerd", upstreamSocket)
	case Upstream: // has the same things for its own use
	}
	if out, err := n.Command(ctx, n.lab.Bin("lab"), args...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("could not count what is on %s: %w: %s", n.Name, err, out)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	w := world.World{}
	return w, json.Unmarshal(raw, &w)
}

// Left waits until nothing is on the node that was not there before its first pod, and returns
// what is still there after a while: nothing if all is well. What is gone is no matter.
func (n *Node) Left(ctx context.Context) ([]string, error) {
	deadline := time.Now().Add(leftPatience)
	for {
		now, err := n.count(ctx)
		if err != nil {
			return nil, err
		}
		var more []string
		for line := range strings.Lines(world.Diff(n.before, now)) {
			if strings.HasPrefix(line, "+") && !expected(line) {
				more = append(more, n.Name+": "+strings.TrimSpace(line))
			}
		}
		if len(more) == 0 || time.Now().After(deadline) {
			return more, nil
		}
		select {
		case <-ctx.Done():
			return more, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// leftPatience is more than kubelet takes to clean up after the last pod: it collects once a
// minute.
const leftPatience = 90 * time.Second

// expected says that a line is about what comes with the first pods and stays: kubelet's cgroups
// of the classes of service, the layers of images; and about kubelet's own sockets.
func expected(line string) bool {
	kind, name, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "+ ")), ": ")
	switch kind {
	case "cgroups":
		return slices.Contains([]string{"kubepods", "besteffort", "burstable"}, filepath.Base(name))
	case "snapshot directories": // of images
		return true
	case "unix sockets": // kubelet's, under a new name after each boot
		return strings.HasPrefix(name, "/var/lib/kubelet/")
	default:
		return false
	}
}
