// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/images"
	"github.com/sandflow-cri/sandflow/hack/kube/cluster"
)

// workload is what the nodes have to carry: pods spread over them, and a service.
const workload = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 2
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web}}}
      containers:
      - name: web
        image: ` + images.Agnhost + `
        args: [netexec, --http-port=8080]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
        volumeMounts: [{name: scratch, mountPath: /uploads}]
      volumes: [{name: scratch, emptyDir: {}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`

// tour shows what a cluster of two nodes goes through.
type tour struct {
	*cluster.Cluster
	want int        // how many pods the workload is to have
	pods []core.Pod // those that it had when last all were ready
}

// clusterShow starts a cluster, shows the tour, and closes the cluster.
func clusterShow(ctx context.Context, o cluster.Options) error {
	s := &show{out: o.Out}
	o.Out = nil
	t := &tour{want: 4}
	s.play(ctx, []step{{fmt.Sprintf("A cluster of %d nodes is ready", o.Nodes), func(ctx context.Context) (_ string, err error) {
		t.Cluster, err = cluster.Start(ctx, o)
		return "", err
	}}})
	if t.Cluster == nil {
		return s.end()
	}
	s.play(ctx, []step{
		{"The scheduler places pods on both nodes", t.spread},
		{"A service answers on every node, from every pod", t.service},
		{"A drained node empties", t.drain},
		{"Once kubelet has collected them, nothing is left of its pods", t.forgotten(t.Nodes[0])},
		{"The node takes pods again", t.uncordon},
		{"A node whose runtime is killed and started keeps its pods", t.kill},
		{"A node without runtime becomes not ready", t.without},
		{"It comes back with the same pods", t.back},
		{"A node that is rebooted comes back with its pods", t.reboot},
		{"A runtime that is killed while pods start brings them all up", t.killedMeanwhile},
		{"A node that loses power while pods start brings them all up", t.powerCutMeanwhile},
		{"Deleted pods end", t.delete},
		{"Once kubelet has collected them, nothing is left on any node", t.forgotten(t.Nodes...)},
	})
	s.one(ctx, step{"The cluster closes, and nothing is left", func(ctx context.Context) (string, error) { return "", t.Close(ctx) }})
	return s.end()
}

func (t *tour) spread(ctx context.Context) (string, error) {
	cmd := t.Kubectl(ctx, "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(workload)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	if err := t.settle(ctx); err != nil {
		return "", err
	}
	return t.placed(2, 2)
}

// placed checks how many pods of the workload are on each node.
func (t *tour) placed(want ...int) (string, error) {
	var text []string
	var got []int
	for _, n := range t.Nodes {
		count := len(t.on(n))
		got = append(got, count)
		text = append(text, fmt.Sprintf("%s has %d", n.Name, count))
	}
	if !slices.Equal(got, want) {
		return "", fmt.Errorf("%s; expected %v", strings.Join(text, ", "), want)
	}
	return strings.Join(text, ", "), nil
}

// on are the pods of the workload that are on a node.
func (t *tour) on(n *cluster.Node) []core.Pod {
	var out []core.Pod
	for _, p := range t.pods {
		if p.Spec.NodeName == n.Name {
			out = append(out, p)
		}
	}
	return out
}

// settle waits until all pods of the workload are ready, and remembers them.
func (t *tour) settle(ctx context.Context) error {
	return eventually(ctx, func() error {
		pods, err := t.list(ctx)
		if err != nil {
			return err
		}
		for _, p := range pods {
			if p.DeletionTimestamp != nil || !ready(p) {
				return fmt.Errorf("pod %s on %s is not ready: %s", p.Name, p.Spec.NodeName, p.Status.Phase)
			}
		}
		if len(pods) != t.want {
			return fmt.Errorf("there are %d pods, not %d", len(pods), t.want)
		}
		t.pods = pods
		return nil
	})
}

func ready(p core.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c core.PodCondition) bool {
		return c.Type == core.PodReady && c.Status == core.ConditionTrue
	})
}

func (t *tour) list(ctx context.Context) ([]core.Pod, error) {
	out, err := t.Kubectl(ctx, "get", "pods", "-l", "app=web", "-o", "json").Output()
	if err != nil {
		return nil, err
	}
	var pods core.PodList
	return pods.Items, json.Unmarshal(out, &pods)
}

// service asks from every node until every pod has answered, or a while has passed.
func (t *tour) service(ctx context.Context) (string, error) {
	out, err := t.Kubectl(ctx, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}").Output()
	if err != nil {
		return "", err
	}
	url := "http://" + string(out) + "/hostname"
	for _, n := range t.Nodes {
		seen := map[string]bool{}
		err := eventually(ctx, func() error {
			name, err := n.Command(ctx, t.Bin("kubelab"), "get", url).Output()
			if err != nil {
				return fmt.Errorf("the service does not answer on %s: %w", n.Name, err)
			}
			seen[string(name)] = true
			if len(seen) != len(t.pods) {
				return fmt.Errorf("on %s only %d pods answer", n.Name, len(seen))
			}
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	return url, nil
}

func (t *tour) drain(ctx context.Context) (string, error) {
	n := t.Nodes[0]
	out, err := t.Kubectl(ctx, "drain", n.Name, "--delete-emptydir-data", "--timeout=60s").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	if err := t.settle(ctx); err != nil {
		return "", err
	}
	if err := sandboxes(ctx, n, running); err != nil {
		return "", err
	}
	return t.placed(0, 4)
}

// forgotten waits until the runtimes of nodes know of no pod any more, which is when kubelet has
// collected them, once a minute; and checks that then nothing is left of those that were there.
func (t *tour) forgotten(nodes ...*cluster.Node) func(ctx context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		for _, n := range nodes {
			if err := sandboxes(ctx, n, nil); err != nil {
				return "", err
			}
			left, err := n.Left(ctx)
			if len(left) > 0 {
				err = errors.Join(err, fmt.Errorf("there is something left:\n%s", strings.Join(left, "\n")))
			}
			if err != nil {
				return "", err
			}
		}
		return "", nil
	}
}

// sandboxes waits until a node's runtime has no sandboxes that match a filter.
func sandboxes(ctx context.Context, n *cluster.Node, filter *cri.PodSandboxFilter) error {
	c, err := harness.Dial(n.Socket)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return eventually(ctx, func() error {
		r, err := c.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: filter})
		if err == nil && len(r.GetItems()) > 0 {
			err = fmt.Errorf("%s still has %d sandboxes", n.Name, len(r.GetItems()))
		}
		return err
	})
}

// running are sandboxes that are not merely remembered.
var running = &cri.PodSandboxFilter{State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY}}

// uncordon lets the node have pods again; new ones are needed for the scheduler to choose it.
func (t *tour) uncordon(ctx context.Context) (string, error) {
	for _, args := range [][]string{{"uncordon", t.Nodes[0].Name}, {"rollout", "restart", "deployment/web"}, {"rollout", "status", "deployment/web", "--timeout=60s"}} {
		if out, err := t.Kubectl(ctx, args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
	}
	if err := t.settle(ctx); err != nil {
		return "", err
	}
	for _, n := range t.Nodes {
		if len(t.on(n)) == 0 {
			return "", fmt.Errorf("%s has no pods", n.Name)
		}
	}
	return "", nil
}

// kept checks that all pods are the same as before, down to the containers.
func (t *tour) kept(ctx context.Context) error {
	before := t.pods
	if err := t.settle(ctx); err != nil {
		return err
	}
	if a, b := containers(before), containers(t.pods); !slices.Equal(a, b) {
		return fmt.Errorf("containers were %v, are %v", a, b)
	}
	return nil
}

// containers names every container of pods, with its restarts.
func containers(pods []core.Pod) []string {
	var out []string
	for _, p := range pods {
		for _, s := range p.Status.ContainerStatuses {
			out = append(out, fmt.Sprintf("%s %s restarted %d times", p.Name, s.ContainerID, s.RestartCount))
		}
	}
	slices.Sort(out)
	return out
}

func (t *tour) delete(ctx context.Context) (string, error) {
	out, err := t.Kubectl(ctx, "delete", "deployment/web", "service/web", "--cascade=foreground", "--timeout=60s").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	for _, n := range t.Nodes {
		if err := sandboxes(ctx, n, running); err != nil {
			return "", err
		}
	}
	return "", nil
}

// eventually tries until success, for a minute and a half at most.
func eventually(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}
