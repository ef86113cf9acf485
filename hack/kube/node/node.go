// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package node shows a kubelet without control plane run static pods on sandflow: the shortest
// way to see that a whole node works.
package node

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	core "k8s.io/api/core/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/images"
	"github.com/sandflow-cri/sandflow/hack/kube/cluster"
)

// The pod, and the ports of the node that lead into it.
const (
	podName  = "pair"
	hostPort = 18080
	mirrored = podName + "-node1" // as kubelet calls a static pod
)

// manifest is a pod of two containers that share a directory, which an init container has put a
// file into: one writes a page into it, the other serves it on a port of the node. The writer is
// alive while the page is there.
const manifest = `
apiVersion: v1
kind: Pod
metadata: {name: ` + podName + `, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - name: maker
    image: ` + images.Busybox + `
    command: [sh, -c, "echo made > /page/first"]
    volumeMounts: [{name: page, mountPath: /page}]
  containers:
  - name: writer
    image: ` + images.Busybox + `
    command: [sh, -c, "echo written > /page/index.html; echo wrote it; while sleep 1; do :; done"]
    volumeMounts: [{name: page, mountPath: /page}]
    readinessProbe: {exec: {command: [cat, /page/index.html]}, periodSeconds: 1}
    livenessProbe: {exec: {command: [cat, /page/index.html]}, periodSeconds: 1, failureThreshold: 2}
  - name: server
    image: ` + images.Busybox + `
    command: [httpd, -f, -p, "80", -h, /page]
    ports: [{containerPort: 80, hostPort: 18080}]
    volumeMounts: [{name: page, mountPath: /page, readOnly: true}]
  volumes: [{name: page, emptyDir: {}}]
`

// Show is a node with the pod on it.
type Show struct {
	c     *cluster.Cluster
	node  *cluster.Node
	http  *http.Client
	last  core.Pod // as of the last time that all of it was ready
	boots int32    // of the node, after the first
}

// Check is one thing that must be so. They build on each other, in their order.
type Check struct {
	Name string
	Run  func(ctx context.Context) error
}

// New is a show on a standalone node.
func New(c *cluster.Cluster) *Show {
	// Kubelet's certificate is its own.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the laboratory's own network
	return &Show{c: c, node: c.Nodes[0], http: &http.Client{Transport: transport, Timeout: 30 * time.Second}}
}

// Checks are all of the show.
func (s *Show) Checks() []Check {
	return []Check{
		{"A static pod of two containers runs, by its exec probe", s.runs},
		{"A host port leads to it, at the node's address and at localhost", s.answers},
		{"Its log is there, from kubelet", s.logs},
		{"A command runs in it, from kubelet", s.exec},
		{"Kubelet has its statistics, and cAdvisor's metrics", s.stats},
		{"A killed container is restarted, the other one is not", s.killed},
		{"A container whose liveness probe fails is restarted", s.unwell},
		{"A killed runtime comes back and the containers are the same", s.runtimeKilled},
		{"A restarted kubelet takes the containers over", s.kubeletRestarted},
		{"A rebooted node has the pod again", s.rebooted},
		{"The pod goes with its manifest", s.goes},
	}
}

func (s *Show) manifest() string {
	return s.node.Root(filepath.Join("/etc/kubernetes/manifests", podName+".yaml"))
}

// get asks kubelet.
func (s *Show) get(ctx context.Context, method, path string, query url.Values) (string, error) {
	at := url.URL{Scheme: "https", Host: s.node.IP + ":10250", Path: path, RawQuery: query.Encode()}
	r, err := http.NewRequestWithContext(ctx, method, at.String(), http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := s.http.Do(r)
	if err != nil {
		return "", err
	}
	raw, err := io.ReadAll(response.Body)
	err = errors.Join(err, response.Body.Close())
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, response.Status, raw)
	}
	return string(raw), err
}

// pod is the pod as kubelet sees it.
func (s *Show) pod(ctx context.Context) (core.Pod, error) {
	text, err := s.get(ctx, http.MethodGet, "/pods", nil)
	if err != nil {
		return core.Pod{}, err
	}
	var list core.PodList
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return core.Pod{}, err
	}
	for _, p := range list.Items {
		if p.Name == mirrored {
			return p, nil
		}
	}
	return core.Pod{}, errors.New("kubelet has no such pod")
}

// ready waits until both containers are ready and ok says so too, and remembers the pod.
func (s *Show) ready(ctx context.Context, ok func(p core.Pod) error) error {
	return eventually(ctx, func() error {
		p, err := s.pod(ctx)
		if err != nil {
			return err
		}
		for _, c := range p.Status.InitContainerStatuses {
			// A new boot runs it again.
			if c.RestartCount > s.boots {
				return fmt.Errorf("the init container has run %d times", c.RestartCount+1)
			}
		}
		if p.Status.Phase != core.PodRunning || len(p.Status.ContainerStatuses) != 2 {
			return fmt.Errorf("the pod is %s with %d containers", p.Status.Phase, len(p.Status.ContainerStatuses))
		}
		for _, c := range p.Status.ContainerStatuses {
			if !c.Ready {
				return fmt.Errorf("%s is not ready: %+v", c.Name, c.State)
			}
		}
		if err := ok(p); err != nil {
			return err
		}
		s.last = p
		return nil
	})
}

func (s *Show) runs(ctx context.Context) error {
	if err := os.WriteFile(s.manifest(), []byte(manifest), 0o644); err != nil {
		return err
	}
	return s.ready(ctx, func(core.Pod) error { return nil })
}

func (s *Show) answers(ctx context.Context) error {
	for _, host := range []string{s.node.IP, "127.0.0.1"} {
		at := fmt.Sprintf("http://%s:%d/", host, hostPort)
		// From the node: from elsewhere localhost is another.
		err := eventually(ctx, func() error {
			out, err := s.node.Command(ctx, s.c.Bin("kubelab"), "get", at).CombinedOutput()
			if err != nil || string(out) != "written\n" {
				return fmt.Errorf("%s: %w: %s", at, err, out)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	// And from beside the node.
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s:%d/", s.node.IP, hostPort), http.NoBody)
	if err != nil {
		return err
	}
	response, err := s.http.Do(r)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// eventually tries until success, for a minute at most.
func eventually(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// dial speaks CRI to the node's runtime.
func (s *Show) dial() (*harness.Client, error) { return harness.Dial(s.node.Socket) }
