// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// apiServer is what everything in the cluster is told.
const apiServer = "https://" + labAddress + ":6443"

// control is the control plane, in the laboratory itself.
type control struct {
	c         *Cluster
	processes []*process // in the order of their starts
}

func (k *control) run(ctx context.Context, name string, args ...string) (*process, error) {
	p := &process{
		name: name, log: filepath.Join(k.c.Dir, name+".txt"),
		make: func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, k.c.lab.Bin(name), args...) },
	}
	if err := p.start(ctx); err != nil {
		return nil, err
	}
	k.processes = append(k.processes, p)
	return p, nil
}

// start starts the control plane and waits until the API answers.
func (k *control) start(ctx context.Context) error {
	p := k.c.pki
	server := holder{
		user: "kube-apiserver", ips: []string{labAddress, "127.0.0.1", apiService},
		names: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"},
	}
	if err := errors.Join(
		p.issue("apiserver", server),
		p.issue("apiserver-kubelet", holder{user: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}}),
	); err != nil {
		return err
	}
	_, err := k.run(ctx, "etcd", "--data-dir", filepath.Join(k.c.Dir, "etcd"), "--unsafe-no-fsync", "--log-level", "warn",
		"--listen-peer-urls", "http://127.0.0.1:2380", "--listen-client-urls", "http://127.0.0.1:2379",
		"--advertise-client-urls", "http://127.0.0.1:2379")
	if err != nil {
		return err
	}
	api, err := k.run(ctx, "kube-apiserver", k.apiFlags()...)
	if err != nil {
		return err
	}
	err = api.until(ctx, func(ctx context.Context) error {
		return k.c.run(ctx, "get", "--raw", "/readyz")
	})
	if err != nil {
		return err
	}
	return k.controllers(ctx)
}

func (k *control) apiFlags() []string {
	p := k.c.pki
	return slices.Concat(k.gates(), []string{
		"--etcd-servers=http://127.0.0.1:2379",
		"--advertise-address=" + labAddress, "--secure-port=6443", "--cert-dir=" + p.dir,
		"--service-cluster-ip-range=" + serviceNetwork,
		"--tls-cert-file=" + p.crt("apiserver"), "--tls-private-key-file=" + p.keyOf("apiserver"),
		"--client-ca-file=" + p.crt("ca"),
		"--kubelet-certificate-authority=" + p.crt("ca"),
		"--kubelet-client-certificate=" + p.crt("apiserver-kubelet"), "--kubelet-client-key=" + p.keyOf("apiserver-kubelet"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + p.pub("sa"), "--service-account-signing-key-file=" + p.keyOf("sa"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true", "--profiling=false",
	})
}

func (k *control) controllers(ctx context.Context) error {
	p := k.c.pki
	manager, err := p.kubeconfig("manager", holder{user: "system:kube-controller-manager"})
	if err != nil {
		return err
	}
	scheduler, err := p.kubeconfig("scheduler", holder{user: "system:kube-scheduler"})
	if err != nil {
		return err
	}
	_, err = k.run(ctx, "kube-controller-manager", append(k.gates(),
		"--kubeconfig="+manager, "--leader-elect=false", "--secure-port=0", "--use-service-account-credentials=true",
		"--service-account-private-key-file="+p.keyOf("sa"), "--root-ca-file="+p.crt("ca"),
		// A node that is gone is seen soon, but not while it is merely slow.
		"--node-monitor-period=1s", "--node-monitor-grace-period=20s")...)
	if err != nil {
		return err
	}
	_, err = k.run(ctx, "kube-scheduler", append(k.gates(), "--kubeconfig="+scheduler, "--leader-elect=false", "--secure-port=0")...)
	return err
}

func (k *control) gates() []string {
	var all []string
	for name, on := range k.c.options.FeatureGates {
		all = append(all, fmt.Sprintf("%s=%t", name, on))
	}
	if len(all) == 0 {
		return nil
	}
	slices.Sort(all)
	return []string{"--feature-gates=" + strings.Join(all, ",")}
}

// stop ends the control plane, last started first.
func (k *control) stop() error {
	var errs []error
	for _, p := range slices.Backward(k.processes) {
		// There is nothing to lose, and an orderly end of the API server takes many seconds.
		errs = append(errs, p.stop(syscall.SIGKILL))
	}
	k.processes = nil
	return errors.Join(errs...)
}
