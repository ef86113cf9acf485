// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

var workloads = []check{
	{name: "Deployment: three replicas become ready and are rolled over", run: deployment},
	{name: "StatefulSet: pods in order, with stable names", run: statefulSet},
	{name: "DaemonSet: a pod on every node", run: daemonSet},
	{name: "Job: three completions, two at a time", run: job},
	{name: "Job: a failing one tells exit code and termination message", run: failingJob},
}

// template is what a workload makes pods of.
func template(name, script string) core.PodTemplateSpec {
	p := shell(name, script)
	return core.PodTemplateSpec{ObjectMeta: meta.ObjectMeta{Labels: p.Labels}, Spec: p.Spec}
}

// serving is a template of pods that run for ever.
func serving(name, script string) core.PodTemplateSpec {
	t := template(name, script)
	t.Spec.RestartPolicy = core.RestartPolicyAlways
	return t
}

func selector(name string) *meta.LabelSelector {
	return &meta.LabelSelector{MatchLabels: map[string]string{"app": name}}
}

// pods lists the pods of a workload that are not being deleted.
func (e *env) pods(ctx context.Context, name string) ([]core.Pod, error) {
	list, err := e.client.CoreV1().Pods(e.ns).List(ctx, meta.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		return nil, err
	}
	var out []core.Pod
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp == nil {
			out = append(out, list.Items[i])
		}
	}
	return out, nil
}

// eachPrinted waits until each of a workload's pods has printed a text.
func (e *env) eachPrinted(ctx context.Context, name string, pods int, want string) error {
	list, err := e.pods(ctx, name)
	if err != nil {
		return err
	}
	errs := []error{equal("pods of "+name, len(list), pods)}
	for i := range list {
		errs = append(errs, e.said(ctx, list[i].Name, mainName, want))
	}
	return errors.Join(errs...)
}

func deployment(ctx context.Context, e *env) error {
	api := e.client.AppsV1().Deployments(e.ns)
	d := &apps.Deployment{
		ObjectMeta: meta.ObjectMeta{Name: "web"},
		Spec:       apps.DeploymentSpec{Replicas: ptr.To[int32](3), Selector: selector("web"), Template: serving("web", "echo one; "+forever)},
	}
	if _, err := api.Create(ctx, d, meta.CreateOptions{}); err != nil {
		return err
	}
	if err := e.rolledOut(ctx, "web", 3); err != nil {
		return err
	}
	if err := e.eachPrinted(ctx, "web", 3, "one"); err != nil {
		return err
	}
	patch := fmt.Sprintf(`[{"op": "replace", "path": "/spec/template/spec/containers/0/command/2", "value": %q}]`, "echo two; "+forever)
	if _, err := api.Patch(ctx, "web", types.JSONPatchType, []byte(patch), meta.PatchOptions{}); err != nil {
		return err
	}
	if err := e.rolledOut(ctx, "web", 3); err != nil {
		return err
	}
	return e.eachPrinted(ctx, "web", 3, "two")
}

// rolledOut waits until all replicas of a deployment are of its newest template, and ready.
func (e *env) rolledOut(ctx context.Context, name string, replicas int32) error {
	d, err := until(ctx, e.watchIn(e.client.AppsV1().RESTClient(), "deployments", name), &apps.Deployment{},
		func(d *apps.Deployment) (bool, error) {
			s := d.Status
			return s.ObservedGeneration >= d.Generation &&
				s.UpdatedReplicas == replicas && s.ReadyReplicas == replicas && s.Replicas == replicas, nil
		})
	if err != nil {
		return fmt.Errorf("deployment %s did not roll out: %w; status %+v", name, err, d.Status)
	}
	return nil
}

func statefulSet(ctx context.Context, e *env) error {
	service := &core.Service{
		ObjectMeta: meta.ObjectMeta{Name: "db"},
		Spec:       core.ServiceSpec{ClusterIP: core.ClusterIPNone, Selector: map[string]string{"app": "db"}},
	}
	if _, err := e.client.CoreV1().Services(e.ns).Create(ctx, service, meta.CreateOptions{}); err != nil {
		return err
	}
	set := &apps.StatefulSet{
		ObjectMeta: meta.ObjectMeta{Name: "db"},
		Spec: apps.StatefulSetSpec{
			Replicas: ptr.To[int32](2), ServiceName: "db", Selector: selector("db"), Template: serving("db", "hostname; "+forever),
		},
	}
	if _, err := e.client.AppsV1().StatefulSets(e.ns).Create(ctx, set, meta.CreateOptions{}); err != nil {
		return err
	}
	last, err := until(ctx, e.watchIn(e.client.AppsV1().RESTClient(), "statefulsets", "db"), &apps.StatefulSet{},
		func(s *apps.StatefulSet) (bool, error) { return s.Status.ReadyReplicas == 2, nil })
	if err != nil {
		return fmt.Errorf("it did not become ready: %w; status %+v", err, last.Status)
	}
	zero, err := e.ready(ctx, "db-0")
	if err != nil {
		return err
	}
	one, err := e.ready(ctx, "db-1")
	if err != nil {
		return err
	}
	if one.CreationTimestamp.Time.Before(readySince(zero).Time) {
		return fmt.Errorf("db-1 was made at %s, before db-0 was ready at %s", one.CreationTimestamp, readySince(zero))
	}
	if err := e.delete(ctx, "db-0"); err != nil {
		return err
	}
	again, err := e.podUntil(ctx, "db-0", "made anew", func(p *core.Pod) (bool, error) { return p.UID != zero.UID && isReady(p), nil })
	if errors.Is(err, errDeleted) {
		again, err = e.ready(ctx, "db-0")
	}
	if err != nil {
		return err
	}
	if again.UID == zero.UID {
		return errors.New("db-0 is still the old pod")
	}
	return errors.Join(e.said(ctx, "db-0", mainName, "db-0"), e.said(ctx, "db-1", mainName, "db-1"))
}

// readySince is when a pod became ready.
func readySince(p *core.Pod) meta.Time {
	for _, c := range p.Status.Conditions {
		if c.Type == core.PodReady {
			return c.LastTransitionTime
		}
	}
	return meta.Time{}
}

func daemonSet(ctx context.Context, e *env) error {
	nodes := len(e.cluster.Nodes)
	set := &apps.DaemonSet{
		ObjectMeta: meta.ObjectMeta{Name: "agent"},
		Spec:       apps.DaemonSetSpec{Selector: selector("agent"), Template: serving("agent", "echo here; "+forever)},
	}
	if _, err := e.client.AppsV1().DaemonSets(e.ns).Create(ctx, set, meta.CreateOptions{}); err != nil {
		return err
	}
	last, err := until(ctx, e.watchIn(e.client.AppsV1().RESTClient(), "daemonsets", "agent"), &apps.DaemonSet{},
		func(s *apps.DaemonSet) (bool, error) { return int(s.Status.NumberReady) == nodes, nil })
	if err != nil {
		return fmt.Errorf("it did not become ready: %w; status %+v", err, last.Status)
	}
	list, err := e.pods(ctx, "agent")
	if err != nil {
		return err
	}
	on := map[string]bool{}
	for i := range list {
		on[list[i].Spec.NodeName] = true
	}
	return errors.Join(equal("nodes with a pod", len(on), nodes), e.eachPrinted(ctx, "agent", nodes, "here"))
}

// jobEnds waits until a job is complete or has failed.
func (e *env) jobEnds(ctx context.Context, j *batch.Job) (*batch.Job, error) {
	if _, err := e.client.BatchV1().Jobs(e.ns).Create(ctx, j, meta.CreateOptions{}); err != nil {
		return nil, err
	}
	last, err := until(ctx, e.watchIn(e.client.BatchV1().RESTClient(), "jobs", j.Name), &batch.Job{}, func(j *batch.Job) (bool, error) {
		for _, c := range j.Status.Conditions {
			if (c.Type == batch.JobComplete || c.Type == batch.JobFailed) && c.Status == core.ConditionTrue {
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return last, fmt.Errorf("job %s did not end: %w; status %+v", j.Name, err, last.Status)
	}
	return last, nil
}

func job(ctx context.Context, e *env) error {
	j, err := e.jobEnds(ctx, &batch.Job{
		ObjectMeta: meta.ObjectMeta{Name: "sum"},
		Spec: batch.JobSpec{
			Completions: ptr.To[int32](3), Parallelism: ptr.To[int32](2), BackoffLimit: ptr.To[int32](0),
			Template: template("sum", "echo $((20 + 22))"),
		},
	})
	if err != nil {
		return err
	}
	return errors.Join(equal("pods that succeeded", j.Status.Succeeded, 3), e.eachPrinted(ctx, "sum", 3, "42"))
}

func failingJob(ctx context.Context, e *env) error {
	t := template("bad", "echo not this; echo the reason > /dev/termination-log; exit 42")
	second := container("second", "echo from the log; exit 7")
	second.TerminationMessagePolicy = core.TerminationMessageFallbackToLogsOnError
	t.Spec.Containers = append(t.Spec.Containers, second)
	j, err := e.jobEnds(ctx, &batch.Job{
		ObjectMeta: meta.ObjectMeta{Name: "bad"},
		Spec:       batch.JobSpec{BackoffLimit: ptr.To[int32](0), Template: t},
	})
	if err != nil {
		return err
	}
	list, err := e.pods(ctx, "bad")
	if err != nil {
		return err
	}
	if err := errors.Join(equal("pods that failed", j.Status.Failed, 1), equal("pods", len(list), 1)); err != nil {
		return err
	}
	one, two := terminated(&list[0], mainName), terminated(&list[0], "second")
	return errors.Join(
		equal("exit code", one.ExitCode, 42), equal("reason", one.Reason, "Error"),
		equal("message", strings.TrimSpace(one.Message), "the reason"),
		equal("exit code of the second", two.ExitCode, 7),
		equal("message of the second", strings.TrimSpace(two.Message), "from the log"))
}
