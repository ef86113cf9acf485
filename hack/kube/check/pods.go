// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/sandflow-cri/sandflow/hack/images"
)

// The images of the checks.
const (
	busybox = images.Busybox
	agnhost = images.Agnhost
	nginx   = images.Nginx
)

// mainName is the name of a pod's first container.
const mainName = "main"

// forever keeps a container running.
const forever = "exec sleep 3600"

// shell is a pod with one container that runs a shell script once.
func shell(name, script string) *core.Pod {
	return &core.Pod{
		ObjectMeta: meta.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: core.PodSpec{
			RestartPolicy:                 core.RestartPolicyNever,
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			AutomountServiceAccountToken:  ptr.To(false),
			EnableServiceLinks:            ptr.To(false),
			Containers:                    []core.Container{container(mainName, script)},
		},
	}
}

// script1 is a container that runs a shell script.
func container(name, script string) core.Container {
	return core.Container{
		Name: name, Image: busybox, ImagePullPolicy: core.PullIfNotPresent,
		Command: []string{"sh", "-ec", script},
	}
}

// server is a pod that answers requests on port 8080: /hostname with its name, and more (see
// agnhost netexec).
func server(name string) *core.Pod {
	p := shell(name, "")
	c := first(p)
	c.Image, c.Command, c.Args = agnhost, nil, []string{"netexec", "--http-port=8080", "--udp-port=8081"}
	c.ReadinessProbe = httpProbe("/hostname")
	return p
}

// httpProbe asks port 8080 every second.
func httpProbe(path string) *core.Probe {
	return probe(core.ProbeHandler{HTTPGet: &core.HTTPGetAction{Path: path, Port: intstr.FromInt32(8080)}})
}

// probe is one that looks every second and believes the first answer.
func probe(h core.ProbeHandler) *core.Probe {
	return &core.Probe{ProbeHandler: h, PeriodSeconds: 1, FailureThreshold: 1, SuccessThreshold: 1, TimeoutSeconds: 5}
}

// execProbe runs a command as a probe.
func execProbe(command ...string) *core.Probe {
	return probe(core.ProbeHandler{Exec: &core.ExecAction{Command: command}})
}

// first is the first container of a pod.
func first(p *core.Pod) *core.Container { return &p.Spec.Containers[0] }

// secured is the first container's security context, made if it has none.
func secured(p *core.Pod) *core.SecurityContext {
	c := first(p)
	if c.SecurityContext == nil {
		c.SecurityContext = &core.SecurityContext{}
	}
	return c.SecurityContext
}

// podSecured is the pod's security context, made if it has none.
func podSecured(p *core.Pod) *core.PodSecurityContext {
	if p.Spec.SecurityContext == nil {
		p.Spec.SecurityContext = &core.PodSecurityContext{}
	}
	return p.Spec.SecurityContext
}

// volume gives a pod a volume, mounted in its first container.
func volume(p *core.Pod, source core.VolumeSource, at core.VolumeMount) {
	if at.Name == "" {
		at.Name = fmt.Sprintf("volume-%d", len(p.Spec.Volumes))
	}
	p.Spec.Volumes = append(p.Spec.Volumes, core.Volume{Name: at.Name, VolumeSource: source})
	c := first(p)
	c.VolumeMounts = append(c.VolumeMounts, at)
}

// emptyDir is a volume that lives as long as the pod.
func emptyDir() core.VolumeSource {
	return core.VolumeSource{EmptyDir: &core.EmptyDirVolumeSource{}}
}

// hostPath is a directory of the node.
func hostPath(path string) core.VolumeSource {
	return core.VolumeSource{HostPath: &core.HostPathVolumeSource{Path: path, Type: ptr.To(core.HostPathDirectoryOrCreate)}}
}

// amounts makes a resource list of "cpu", "100m", "memory", "64Mi" and so on.
func amounts(pairs ...string) core.ResourceList {
	list := core.ResourceList{}
	for i := 0; i+1 < len(pairs); i += 2 {
		list[core.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

// create makes a pod.
func (e *env) create(ctx context.Context, p *core.Pod) error {
	if _, err := e.client.CoreV1().Pods(e.ns).Create(ctx, p, meta.CreateOptions{}); err != nil {
		return fmt.Errorf("could not create pod %s: %w", p.Name, err)
	}
	return nil
}

// delete deletes a pod with its own grace period.
func (e *env) delete(ctx context.Context, name string) error {
	return e.client.CoreV1().Pods(e.ns).Delete(ctx, name, meta.DeleteOptions{})
}

// start makes a pod and waits until it is ready.
func (e *env) start(ctx context.Context, p *core.Pod) (*core.Pod, error) {
	if err := e.create(ctx, p); err != nil {
		return nil, err
	}
	return e.ready(ctx, p.Name)
}

// run makes a pod, waits until it has succeeded, and returns what its first container printed.
func (e *env) run(ctx context.Context, p *core.Pod) (string, error) {
	if err := e.create(ctx, p); err != nil {
		return "", err
	}
	last, err := e.ended(ctx, p.Name)
	if err != nil {
		return "", err
	}
	out, err := e.logs(ctx, p.Name, core.PodLogOptions{Container: first(p).Name})
	if err != nil {
		return "", err
	}
	if last.Status.Phase != core.PodSucceeded {
		return out, fmt.Errorf("pod %s failed; it printed:\n%s%s", p.Name, out, state(last))
	}
	return out, nil
}

// logs returns a container's log.
func (e *env) logs(ctx context.Context, pod string, o core.PodLogOptions) (string, error) {
	raw, err := e.client.CoreV1().Pods(e.ns).GetLogs(pod, &o).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("could not read the log of pod %s: %w", pod, err)
	}
	return string(raw), nil
}

// said waits until a running container has printed a text, without space at the ends.
func (e *env) said(ctx context.Context, pod, container, want string) error {
	return e.heard(ctx, pod, container, func(text string) error {
		return equal("container "+container+" of pod "+pod+" printed", text, want)
	})
}

// heard waits until what a running container has printed is right. A pod counts as ready
// before its first words have gone through the pipe.
func (e *env) heard(ctx context.Context, pod, container string, right func(text string) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return eventually(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		out, err := e.logs(ctx, pod, core.PodLogOptions{Container: container})
		if err != nil {
			return err
		}
		return right(strings.TrimSpace(out))
	})
}

// following returns a container's log as it comes.
func (e *env) following(ctx context.Context, pod string) (io.ReadCloser, error) {
	stream, err := e.client.CoreV1().Pods(e.ns).GetLogs(pod, &core.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("could not follow the log of pod %s: %w", pod, err)
	}
	return stream, nil
}

// prints makes a pod, waits until it has succeeded, and compares what it printed, without
// space at the ends.
func (e *env) prints(ctx context.Context, p *core.Pod, want string) error {
	out, err := e.run(ctx, p)
	if err != nil {
		return err
	}
	return equal("pod "+p.Name+" printed", strings.TrimSpace(out), want)
}

// equal tells how two values differ, if they do.
func equal[T comparable](what string, got, want T) error {
	if got == want {
		return nil
	}
	return fmt.Errorf("%s:\n%v\nwanted:\n%v", what, got, want)
}

// nonEmpty tells that a text is missing.
func nonEmpty(what, text string) error {
	if text == "" {
		return errors.New("no " + what)
	}
	return nil
}

// contains tells which texts are missing in another.
func contains(what, text string, wanted ...string) error {
	var errs []error
	for _, w := range wanted {
		if !strings.Contains(text, w) {
			errs = append(errs, fmt.Errorf("no %q in %s:\n%s", w, what, text))
		}
	}
	return errors.Join(errs...)
}

// status is the status of a container of a pod.
func status(p *core.Pod, name string) *core.ContainerStatus {
	for _, all := range [][]core.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for i := range all {
			if all[i].Name == name {
				return &all[i]
			}
		}
	}
	return &core.ContainerStatus{}
}

// terminated is how a container of a pod ended; the zero value if it has not.
func terminated(p *core.Pod, name string) core.ContainerStateTerminated {
	if t := status(p, name).State.Terminated; t != nil {
		return *t
	}
	return core.ContainerStateTerminated{ExitCode: -1, Reason: "not terminated"}
}

// waiting is why a container of a pod waits.
func waiting(p *core.Pod, name string) core.ContainerStateWaiting {
	if w := status(p, name).State.Waiting; w != nil {
		return *w
	}
	return core.ContainerStateWaiting{}
}

// waits waits until a container waits for one of some reasons, and returns the message.
func (e *env) waits(ctx context.Context, pod, container string, reasons ...string) (string, error) {
	p, err := e.podUntil(ctx, pod, "waiting with "+strings.Join(reasons, " or "), func(p *core.Pod) (bool, error) {
		for _, r := range reasons {
			if waiting(p, container).Reason == r {
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return "", err
	}
	return waiting(p, container).Message, nil
}
