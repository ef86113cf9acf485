// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
)

// plan says which programs the node runs.
func (n *Node) plan() error {
	n.upstream = n.program("containerd", "--config", "/etc/containerd/config.toml")
	n.runtime = n.program("sandflowd", "--config", "/etc/sandflow/config.toml")
	if n.kind == Upstream {
		n.runtime = n.upstream
	}
	args := []string{
		"--config", "/etc/kubernetes/kubelet.json", "--hostname-override", n.Name, "--node-ip", n.IP,
		"--root-dir", "/var/lib/kubelet", "--cert-dir", "/var/lib/kubelet/pki",
	}
	if n.pki != nil {
		file, err := n.pki.kubeconfig(n.Name, holder{
			user: "system:node:" + n.Name, groups: []string{"system:nodes"}, names: []string{n.Name}, ips: []string{n.IP},
		})
		if err != nil {
			return err
		}
		args = append(args, "--kubeconfig", file)
		file, err = n.pki.kubeconfig(n.Name+"-proxy", holder{user: "system:kube-proxy"})
		if err != nil {
			return err
		}
		if err := writeObject(n.Root("/etc/kubernetes/proxy.json"), n.proxyConfig(file)); err != nil {
			return err
		}
		n.proxy = n.program("kube-proxy", "--config", "/etc/kubernetes/proxy.json")
	}
	n.kubelet = n.program("kubelet", args...)
	return nil
}

// startRuntime starts what serves CRI and waits until it answers.
func (n *Node) startRuntime(ctx context.Context) error {
	if n.kind == Attached {
		if err := n.serve(ctx, n.upstream, upstreamSocket); err != nil {
			return err
		}
	}
	return n.serve(ctx, n.runtime, n.endpoint())
}

// serve starts a program and waits until it answers on a socket in the node: to CRI, or, since
// an ordinary containerd does that too, to that.
func (n *Node) serve(ctx context.Context, p *process, socket string) error {
	if err := p.start(ctx); err != nil {
		return err
	}
	c, err := harness.Dial(n.Root(socket))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return p.until(ctx, func(ctx context.Context) error {
		r, err := c.Status(ctx, &cri.StatusRequest{})
		if err != nil {
			return err
		}
		for _, condition := range r.GetStatus().GetConditions() {
			if condition.GetType() == cri.RuntimeReady && !condition.GetStatus() {
				return errors.New(condition.GetMessage())
			}
		}
		return nil
	})
}

// startKubelet starts kubelet, and kube-proxy if there is a cluster, and waits until kubelet
// says that it is well.
func (n *Node) startKubelet(ctx context.Context) error {
	if n.proxy != nil {
		if err := n.proxy.start(ctx); err != nil {
			return err
		}
	}
	return n.serveKubelet(ctx)
}

func (n *Node) serveKubelet(ctx context.Context) error {
	if err := n.kubelet.start(ctx); err != nil {
		return err
	}
	return n.kubelet.until(ctx, func(ctx context.Context) error { return n.healthy(ctx) })
}

// healthy asks kubelet, from within the node since it listens on the node's loopback.
func (n *Node) healthy(ctx context.Context) error {
	out, err := n.Command(ctx, n.lab.Bin("kubelab"), "get", "http://127.0.0.1:10248/healthz").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// Get prints what a URL answers, which must be with 200.
func Get(ctx context.Context, url string, out io.Writer) (err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 10 * time.Second}
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	_, err = io.Copy(out, response.Body)
	return err
}

// start boots the node with everything on it.
func (n *Node) start(ctx context.Context) error {
	if err := n.switchOn(ctx); err != nil {
		return err
	}
	if err := n.startRuntime(ctx); err != nil {
		return err
	}
	return n.startKubelet(ctx)
}

// RestartKubelet ends kubelet in order, starts it again and waits until it is well.
func (n *Node) RestartKubelet(ctx context.Context) error {
	if err := n.kubelet.stop(syscall.SIGTERM); err != nil {
		return err
	}
	return n.serveKubelet(ctx)
}

// StopRuntime ends what serves CRI with a signal.
func (n *Node) StopRuntime(sig syscall.Signal) error { return n.runtime.stop(sig) }

// StartRuntime starts it again and waits until it answers.
func (n *Node) StartRuntime(ctx context.Context) error { return n.serve(ctx, n.runtime, n.endpoint()) }

// KillRuntime kills what serves CRI, starts it again and waits until it answers.
func (n *Node) KillRuntime(ctx context.Context) error {
	if err := n.StopRuntime(syscall.SIGKILL); err != nil {
		return err
	}
	return n.StartRuntime(ctx)
}

// Reboot cuts the node's power and boots it again.
func (n *Node) Reboot(ctx context.Context) error {
	if err := n.switchOff(); err != nil {
		return fmt.Errorf("could not switch %s off: %w", n.Name, err)
	}
	return n.start(ctx)
}
