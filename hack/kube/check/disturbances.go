// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/utils/ptr"
)

var disturbances = []check{
	{name: "Static pod: mirrored, kept when its mirror is deleted, gone with its file", run: staticPod, alone: true},
	{name: "kubelet restart: pods are kept, none changes", run: kubeletRestart, alone: true},
	{name: "Runtime killed and restarted: pods are kept, none changes", run: runtimeRestart, alone: true},
}

func staticPod(ctx context.Context, e *env) error {
	p := shell("fixed", "echo here; "+forever)
	p.TypeMeta = meta.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	p.Namespace, p.Spec.RestartPolicy = e.ns, core.RestartPolicyAlways
	raw, err := json.Marshal(p)
	if err != nil {
		return err
	}
	file := "/etc/kubernetes/manifests/" + e.ns + ".json"
	e.later(func(ctx context.Context) error {
		_, err := e.onNode(ctx, e.node(), "rm -f "+file)
		return err
	})
	if _, err := output(e.node().Command(ctx, "sh", "-c", "cat > "+file), string(raw)); err != nil {
		return err
	}
	mirror := "fixed-" + e.node().Name
	before, err := e.ready(ctx, mirror)
	if err != nil {
		return err
	}
	if _, ok := before.Annotations[core.MirrorPodAnnotationKey]; !ok {
		return errors.New("the pod is not marked as a mirror")
	}
	if err := e.client.CoreV1().Pods(e.ns).Delete(ctx, mirror, now); err != nil {
		return err
	}
	var after *core.Pod
	if err := eventually(ctx, 200*time.Millisecond, func(ctx context.Context) error {
		after, err = e.client.CoreV1().Pods(e.ns).Get(ctx, mirror, getOptions)
		if err == nil && (after.UID == before.UID || !isReady(after)) {
			return errors.New("the mirror is not back:\n" + state(after))
		}
		return err
	}); err != nil {
		return err
	}
	if err := equal("container", status(after, mainName).ContainerID, status(before, mainName).ContainerID); err != nil {
		return err
	}
	if _, err := e.onNode(ctx, e.node(), "rm "+file); err != nil {
		return err
	}
	return eventually(ctx, 200*time.Millisecond, func(ctx context.Context) error {
		_, err := e.client.CoreV1().Pods(e.ns).Get(ctx, mirror, getOptions)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("the mirror is still there"))
	})
}

// residents starts pods of several kinds on the node.
func (e *env) residents(ctx context.Context) error {
	counter := counting("counter", "i=0; while :; do echo $i; i=$((i + 1)); sleep 0.05; done")
	probed := server("probed")
	probed.Spec.RestartPolicy = core.RestartPolicyAlways
	first(probed).LivenessProbe = httpProbe("/hostname")
	first(probed).LivenessProbe.FailureThreshold = 60
	side := container("side", forever)
	side.RestartPolicy = ptr.To(core.ContainerRestartPolicyAlways)
	staged := shell("staged", forever)
	staged.Spec.InitContainers = []core.Container{container("init", "true"), side}
	staged.Spec.ShareProcessNamespace = ptr.To(true)
	mapped := shell("mapped", forever)
	mapped.Spec.HostUsers = ptr.To(false)
	networked := shell("networked", forever)
	networked.Spec.HostNetwork = true
	over := shell("over", "echo over; exit 3")
	for _, p := range []*core.Pod{counter, probed, staged, mapped, networked, over} {
		p.Spec.NodeName = e.node().Name
		if err := e.create(ctx, p); err != nil {
			return err
		}
	}
	for _, name := range []string{"counter", "probed", "staged", "mapped", "networked"} {
		if _, err := e.ready(ctx, name); err != nil {
			return err
		}
	}
	_, err := e.podUntil(ctx, "over", "ended and put away", func(p *core.Pod) (bool, error) {
		for _, c := range p.Status.Conditions {
			if c.Type == core.PodReadyToStartContainers && c.Status == core.ConditionFalse {
				return p.Status.Phase == core.PodFailed, nil
			}
		}
		return false, nil
	})
	return err
}

// census is the status of each pod of the check.
func (e *env) census(ctx context.Context) (map[string]core.Pod, error) {
	list, err := e.client.CoreV1().Pods(e.ns).List(ctx, meta.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := map[string]core.Pod{}
	for i := range list.Items {
		out[list.Items[i].Name] = list.Items[i]
	}
	return out, nil
}

// survive disturbs the node while pods of several kinds run there, and compares what they
// were and are.
func (e *env) survive(ctx context.Context, disturb func(ctx context.Context) error) error {
	if err := e.residents(ctx); err != nil {
		return err
	}
	before, err := e.census(ctx)
	if err != nil {
		return err
	}
	if err := disturb(ctx); err != nil {
		return err
	}
	// When a new pod has run through its whole life, the kubelet has looked at the old ones too.
	fresh := shell("fresh", "echo fresh")
	fresh.Spec.NodeName = e.node().Name
	if err := e.prints(ctx, fresh, "fresh"); err != nil {
		return err
	}
	if err := e.settled(ctx); err != nil {
		return err
	}
	after, err := e.census(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for name := range before {
		a, b := before[name], after[name]
		was, is := lasting(&a), lasting(&b)
		if a.UID != b.UID || !equality.Semantic.DeepEqual(was, is) {
			errs = append(errs, fmt.Errorf("pod %s changed: %s", name, diff.Diff(was, is)))
		}
	}
	if _, err := e.exec(ctx, "staged", "true"); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, e.counted(ctx))...)
}

// lasting is what a restart must not change in a pod's status. The rest is the kubelet's own:
// a restarted one asks the probes anew, forgets the addresses of pods that have ended, and
// reads its pods' cgroups at other times; it does so with every runtime.
func lasting(p *core.Pod) *core.PodStatus {
	s := p.Status.DeepCopy()
	s.Resources = nil
	if s.Phase == core.PodSucceeded || s.Phase == core.PodFailed {
		s.PodIP, s.PodIPs = "", nil
	}
	for i := range s.Conditions {
		s.Conditions[i].LastTransitionTime = meta.Time{}
	}
	return s
}

// settled waits until the kubelet has reported on its node since now.
func (e *env) settled(ctx context.Context) error {
	begin := time.Now().Add(time.Second) // the API keeps whole seconds
	return eventually(ctx, 300*time.Millisecond, func(ctx context.Context) error {
		node, err := e.client.CoreV1().Nodes().Get(ctx, e.node().Name, getOptions)
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == core.NodeReady && c.Status == core.ConditionTrue && c.LastHeartbeatTime.After(begin) {
				return nil
			}
		}
		return errors.New("no news from the kubelet")
	})
}

// counted looks for gaps in the log of the pod that counts.
func (e *env) counted(ctx context.Context) error {
	out, err := e.logs(ctx, "counter", core.PodLogOptions{})
	if err != nil {
		return err
	}
	for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if line != strconv.Itoa(i) {
			return fmt.Errorf("line %d of the log is %q", i, line)
		}
	}
	// It still grows.
	stream, err := e.following(ctx, "counter")
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	buf := make([]byte, len(out)+8)
	_, err = io.ReadFull(stream, buf)
	return err
}

func kubeletRestart(ctx context.Context, e *env) error {
	return e.survive(ctx, e.node().RestartKubelet)
}

func runtimeRestart(ctx context.Context, e *env) error { return e.survive(ctx, e.node().KillRuntime) }
