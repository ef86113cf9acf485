// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
)

// kubernetesVersion names the recipe of BuildKubernetes; a change of it has the images built
// anew.
const kubernetesVersion = "8"

// What Kubernetes' tests expect of their image for names: the C library asks files first.
const nsswitch = "passwd: files\ngroup: files\nhosts: files dns\n"

// kubernetesTools are programs that Kubernetes' images have beside those of the base, by the
// names that Debian gives them.
var kubernetesTools = map[string]string{"bash": "bash", "curl": "curl", "nc.openbsd": "nc", "ip": "ip", "ss": "ss", "hostname": "hostname"}

// pulledOnly are images that the tests pull ahead, for specs that are not among those of node
// conformance, or cannot run in a laboratory.
var pulledOnly = []string{
	e2e + "perl:5.26", e2e + "volume/nfs:1.6.0", e2e + "node-perf/npb-ep:1.6.0", e2e + "node-perf/npb-is:1.7.0",
	e2e + "node-perf/pytorch-wide-deep:1.0.0", "registry.k8s.io/etcd:3.7.0-0", "gcr.io/cadvisor/cadvisor:v0.47.2",
	"docker.io/nfvpe/sriov-device-plugin:v3.1", "registry.k8s.io/node-problem-detector/node-problem-detector:v1.35.2",
}

// BuildKubernetes makes, in a directory of their own, the images that the node conformance
// tests of Kubernetes v1.37 ask for, unless this version of them is there already. The programs
// agnhost and sample-device-plugin are taken from the directory programs.
func BuildKubernetes(ctx context.Context, dir, programs string) (err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	release, err := lock(dir + ".lock")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	stamp := filepath.Join(dir, "version-"+kubernetesVersion)
	if _, err := os.Stat(stamp); err == nil {
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	tmp, err := workDir(dir)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	p, err := gather(ctx, tmp, "bash", "curl", "netcat-openbsd", "iproute2", "hostname")
	if err != nil {
		return err
	}
	all, err := p.kubernetes(ctx, tmp, programs)
	if err != nil {
		return err
	}
	if err := write(Layout(dir), all); err != nil {
		return fmt.Errorf("could not write the images to %s: %w", Layout(dir), err)
	}
	return os.WriteFile(stamp, nil, 0o644)
}

// lock waits until no other process holds the file's lock, and returns how to let it go.
func lock(path string) (release func() error, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f.Close, nil
}

// kubernetes puts the images together.
func (p *parts) kubernetes(ctx context.Context, dir, programs string) ([]named, error) {
	nmeter, err := compiled(ctx, dir, "nmeter", nmeterSource, 0o755)
	if err != nil {
		return nil, err
	}
	bash, err := p.debian.program("bash", "bin/bash")
	if err != nil {
		return nil, err
	}
	second, err := layer(bash)
	if err != nil {
		return nil, err
	}
	sh, err := compiled(ctx, dir, "sh", shSource, 0o755)
	if err != nil {
		return nil, err
	}
	tools, err := p.toolsLayer()
	if err != nil {
		return nil, err
	}
	agnhost, err := p.agnhostLayer(filepath.Join(programs, "agnhost"))
	if err != nil {
		return nil, err
	}
	device, err := layer([]file{{path: "sampledeviceplugin", from: filepath.Join(programs, "sample-device-plugin"), mode: 0o755}})
	if err != nil {
		return nil, err
	}
	b := &book{parts: p}
	b.one(shell(), []v1.Layer{p.base, second, sh, nmeter}, KubernetesBusybox)
	b.server(80, e2e+"nginx:1.27.0-2")
	b.server(80, e2e+"nginx:1.28.0-2")
	b.one(v1.Config{Env: []string{pathEnv}, Cmd: []string{"/bin/nnp"}}, []v1.Layer{p.base, p.nonewprivs}, e2e+"nonewprivs:1.4")
	b.system(as("1234"), e2e+"nonroot:1.5")
	b.system(shell(), e2e+"ipc-utils:1.4")
	b.one(shell(), []v1.Layer{p.base, tools}, e2e+"glibc-dns-testing:2.1.1")
	b.one(v1.Config{Env: []string{pathEnv}, Entrypoint: []string{"/sampledeviceplugin", "-alsologtostderr"}}, []v1.Layer{p.base, device},
		e2e+"sample-device-plugin:1.7", e2e+"sample-device-plugin:1.8.0")
	b.system(shell(), pulledOnly...)
	for _, tag := range []string{"2.66.1", "2.55"} {
		cfg := v1.Config{Env: []string{pathEnv, "MARK=" + tag}, Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}
		b.one(cfg, []v1.Layer{p.base, tools, sh, nmeter, agnhost}, e2e+"agnhost:"+tag)
	}
	b.one(v1.Config{Env: []string{pathEnv, "MARK=3.10.2"}, Entrypoint: []string{"/bin/pause"}}, []v1.Layer{p.pause}, "registry.k8s.io/pause:3.10.2")
	return b.all, b.err
}

// toolsLayer has what some images have beyond the base.
func (p *parts) toolsLayer() (v1.Layer, error) {
	files := []file{{path: "etc/nsswitch.conf", text: nsswitch, mode: 0o644}}
	for _, name := range slices.Sorted(maps.Keys(kubernetesTools)) {
		more, err := p.debian.program(name, "bin/"+kubernetesTools[name])
		if err != nil {
			return nil, err
		}
		files = append(files, missing(files, more)...)
	}
	return layer(files)
}

// agnhostLayer is agnhost with what its image has beside it: users, a certificate, and the files
// of a registry that it can serve.
func (p *parts) agnhostLayer(program string) (v1.Layer, error) {
	files := []file{
		{path: "agnhost", from: program, mode: 0o755},
		{path: "agnhost-2", link: "agnhost", mode: 0o777},
		{path: "uploads", mode: os.ModeDir | 0o755},
		{path: "etc/passwd", text: strings.Replace(passwd, "default-user", "user-defined-in-image", 1), mode: 0o644},
		{path: "etc/group", text: strings.ReplaceAll(group, "default-user", "user-defined-in-image"), mode: 0o644},
	}
	pause, err := image(v1.Config{Env: []string{pathEnv}, Entrypoint: []string{"/bin/pause"}}, p.pause)
	if err != nil {
		return nil, err
	}
	secure, err := selfSigned("localhost")
	if err != nil {
		return nil, err
	}
	served, err := registryFiles("pause", "testing", pause)
	if err != nil {
		return nil, err
	}
	// The program is large, and does not go far.
	return layer(slices.Concat(files, secure, served), tarball.WithCompressionLevel(gzip.BestSpeed))
}
