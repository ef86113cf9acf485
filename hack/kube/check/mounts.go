// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"strings"

	core "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

var mounts = []check{
	{name: "subPath and subPathExpr: of emptyDir and configMap", run: subPath},
	{name: "Image volume: its files, read-only", run: imageVolume},
	{name: "Image volume: a part of it by subPath", run: imageVolumePart},
	{name: "Mount propagation: None, HostToContainer and Bidirectional", run: propagation},
	{name: "Recursive read-only: mounts below, too", run: recursiveReadOnly},
}

func subPath(ctx context.Context, e *env) error {
	if err := e.configMap(ctx, "config", map[string]string{"text": "hello"}); err != nil {
		return err
	}
	p := shell("parts", `
		echo inside > /part/file
		cat /whole/some/part/file /whole/parts/file
		cat /etc/one; echo
		ls /part`)
	volume(p, emptyDir(), core.VolumeMount{Name: "data", MountPath: "/whole"})
	c := first(p)
	c.Env = []core.EnvVar{field("name", "metadata.name")}
	c.VolumeMounts = append(c.VolumeMounts,
		core.VolumeMount{Name: "data", MountPath: "/part", SubPath: "some/part"},
		core.VolumeMount{Name: "data", MountPath: "/mine", SubPathExpr: "$(name)"})
	c.Command[2] = "echo mine > /mine/file\n" + c.Command[2]
	volume(p, theConfigMap(), core.VolumeMount{MountPath: "/etc/one", SubPath: "text"})
	return e.prints(ctx, p, "inside\nmine\nhello\nfile")
}

// markImage has a file /mark-1 that the base does not have.
const markImage = "gcr.io/k8s-staging-cri-tools/test-image-1:latest"

func imageSource(image string) core.VolumeSource {
	return core.VolumeSource{Image: &core.ImageVolumeSource{Reference: image, PullPolicy: core.PullIfNotPresent}}
}

func imageVolume(ctx context.Context, e *env) error {
	p := shell("mounted", `
		cat /image/mark-1; echo
		touch /image/file 2>&1 | grep -o 'Read-only file system'
		[ -e /mark-1 ] || echo apart`)
	volume(p, imageSource(markImage), core.VolumeMount{MountPath: "/image"})
	return e.prints(ctx, p, "1\nRead-only file system\napart")
}

func imageVolumePart(ctx context.Context, e *env) error {
	p := shell("mounted", "cat /site/index.html; ls /site")
	volume(p, imageSource(markImage), core.VolumeMount{MountPath: "/site", SubPath: "www"})
	if err := e.prints(ctx, p, "hello from a sandflow pod\nindex.html"); err != nil {
		return err
	}
	q := shell("missing", "echo never")
	volume(q, imageSource(markImage), core.VolumeMount{MountPath: "/site", SubPath: "no/such/part"})
	return e.notCreated(ctx, q, "CreateContainerError", "no/such/part")
}

// withDir makes a directory on the node for the time of the check.
func (e *env) withDir(ctx context.Context) (string, error) {
	dir := "/var/lib/" + e.ns
	_, err := e.onNode(ctx, e.node(), "mkdir -p "+dir+"/sub")
	e.later(func(ctx context.Context) error {
		_, err := e.onNode(ctx, e.node(), fmt.Sprintf(
			"for m in $(grep -o ' %s/[^ ]*' /proc/self/mounts); do umount -l $m; done; rm -rf %s", dir, dir))
		return err
	})
	return dir, err
}

func propagation(ctx context.Context, e *env) error {
	dir, err := e.withDir(ctx)
	if err != nil {
		return err
	}
	p := shell("propagating", forever)
	p.Spec.NodeName = e.node().Name
	secured(p).Privileged = ptr.To(true)
	volume(p, hostPath(dir), core.VolumeMount{Name: "dir", MountPath: "/dir", MountPropagation: ptr.To(core.MountPropagationBidirectional)})
	for name, mode := range map[string]core.MountPropagationMode{"slave": core.MountPropagationHostToContainer, "private": core.MountPropagationNone} {
		c := container(name, forever)
		c.VolumeMounts = []core.VolumeMount{{Name: "dir", MountPath: "/dir", MountPropagation: &mode}}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	if _, err := e.start(ctx, p); err != nil {
		return err
	}
	if _, err := e.onNode(ctx, e.node(), fmt.Sprintf("mkdir %s/node && mount -t tmpfs none %s/node && touch %s/node/file", dir, dir, dir)); err != nil {
		return err
	}
	if _, err := e.exec(ctx, p.Name, "mkdir /dir/pod && mount -t tmpfs none /dir/pod && touch /dir/pod/file"); err != nil {
		return err
	}
	const look = "ls %s/node %s/pod | grep -c file || true"
	out, err := e.onNode(ctx, e.node(), fmt.Sprintf(look, dir, dir))
	errs := []error{err, equal("mounts that the node sees", strings.TrimSpace(out), "2")}
	for name, want := range map[string]string{mainName: "2", "slave": "2", "private": "0"} {
		out, err := e.kubectl(ctx, "exec", p.Name, "-c", name, "--", "sh", "-c", fmt.Sprintf(look, "/dir", "/dir"))
		errs = append(errs, err, equal("mounts that "+name+" sees", strings.TrimSpace(out), want))
	}
	return errors.Join(errs...)
}

func recursiveReadOnly(ctx context.Context, e *env) error {
	dir, err := e.withDir(ctx)
	if err != nil {
		return err
	}
	if _, err := e.onNode(ctx, e.node(), fmt.Sprintf("mount -t tmpfs none %s/sub", dir)); err != nil {
		return err
	}
	p := shell("readonly", `
		touch /all/sub/file 2>&1 | grep -o 'Read-only file system'
		touch /top/file 2>&1 | grep -o 'Read-only file system'
		touch /top/sub/file && echo below
		`+forever)
	p.Spec.NodeName = e.node().Name
	volume(p, hostPath(dir), core.VolumeMount{
		Name: "dir", MountPath: "/all", ReadOnly: true, MountPropagation: ptr.To(core.MountPropagationNone),
		RecursiveReadOnly: ptr.To(core.RecursiveReadOnlyEnabled),
	})
	c := first(p)
	c.VolumeMounts = append(c.VolumeMounts, core.VolumeMount{Name: "dir", MountPath: "/top", ReadOnly: true})
	c.ReadinessProbe = execProbe("test", "-e", "/top/sub/file")
	pod, err := e.start(ctx, p)
	if err != nil {
		return err
	}
	out, err := e.logs(ctx, p.Name, core.PodLogOptions{})
	if err != nil {
		return err
	}
	told := core.RecursiveReadOnlyMode("not told")
	for _, m := range status(pod, mainName).VolumeMounts {
		if m.MountPath == "/all" && m.RecursiveReadOnly != nil {
			told = *m.RecursiveReadOnly
		}
	}
	return errors.Join(
		equal("what it printed", out, "Read-only file system\nRead-only file system\nbelow\n"),
		equal("mode in the status", told, core.RecursiveReadOnlyEnabled))
}
