// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"path"
	"strings"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps/spec/inroot"
)

const (
	defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	terminal    = "TERM=xterm"
)

// process fills in what is run: command, environment, working directory.
func (b *build) process() error {
	if err := validateImage(b.Ctr.Image.Config); err != nil {
		return fmt.Errorf("image %s: %w", b.config.GetImage().GetImage(), err)
	}
	args := arguments(b.config, b.Ctr.Image.Config.Entrypoint, b.Ctr.Image.Config.Cmd)
	if len(args) == 0 {
		return fmt.Errorf("neither the request nor the image %s names a command: %w", b.config.GetImage().GetImage(), errdefs.ErrInvalidArgument)
	}
	b.spec.Process.Args = args
	b.spec.Process.Terminal = b.config.GetTty()
	b.spec.Process.Env = b.environment()
	b.spec.Process.Cwd = workingDir(b.config.GetWorkingDir(), b.Ctr.Image.Config.WorkingDir)
	return b.makeWorkingDir()
}

// validateImage refuses texts of an image that the kernel would cut off.
func validateImage(c ocispec.ImageConfig) error {
	for _, f := range []struct {
		name   string
		values []string
	}{{"Entrypoint", c.Entrypoint}, {"Cmd", c.Cmd}, {"Env", c.Env}, {"WorkingDir", []string{c.WorkingDir}}, {"User", []string{c.User}}} {
		for _, v := range f.values {
			if strings.ContainsRune(v, 0) {
				return invalid(f.name, "%q has a zero byte", v)
			}
		}
	}
	return nil
}

// arguments joins request and image as Kubernetes has it: a command replaces the
// image's entrypoint and its arguments, args replace the arguments alone.
func arguments(c *runtime.ContainerConfig, entrypoint, cmd []string) []string {
	command, args := c.GetCommand(), c.GetArgs()
	if len(command) == 0 {
		if len(args) == 0 {
			args = cmd
		}
		command = entrypoint
	}
	return append(append([]string{}, command...), args...)
}

// environment is, later ones winning: the defaults, the pod's host name, the
// image's, the request's. Each variable is there once.
func (b *build) environment() []string {
	env := variables{}
	env.set(defaultPath)
	if b.config.GetTty() {
		env.set(terminal)
	}
	if name := b.hostName(); name != "" {
		env.set("HOSTNAME=" + name)
	}
	for _, e := range b.Ctr.Image.Config.Env {
		env.set(e)
	}
	for _, e := range b.config.GetEnvs() {
		env.set(e.GetKey() + "=" + string(e.GetValue()))
	}
	return env.list
}

func (b *build) hostName() string {
	if b.Pod.Namespaces.HostName != "" {
		return b.Pod.Namespaces.HostName
	}
	if b.Pod.Namespaces.UTS != "" {
		return b.podConfig.GetHostname()
	}
	return b.host.hostName
}

// variables is a list of NAME=value where a name keeps the place of its first setting.
type variables struct {
	list  []string
	index map[string]int
}

func (v *variables) set(e string) {
	name, _, ok := strings.Cut(e, "=")
	if !ok || name == "" {
		return // images have such; OCI runtimes refuse them
	}
	if v.index == nil {
		v.index = map[string]int{}
	}
	if i, ok := v.index[name]; ok {
		v.list[i] = e
		return
	}
	v.index[name] = len(v.list)
	v.list = append(v.list, e)
}

// workingDir is absolute; a relative one in an image is taken from the root.
func workingDir(request, image string) string {
	if request != "" {
		return path.Clean("/" + request)
	}
	return path.Clean("/" + image)
}

// makeWorkingDir makes the directory in the root file system if the image lacks
// it. In a user namespace it is left to the OCI runtime, which makes it inside, so
// that it belongs to the container's root.
func (b *build) makeWorkingDir() error {
	cwd := b.spec.Process.Cwd
	if cwd == "/" || b.Pod.Namespaces.User != "" {
		return nil
	}
	if err := inroot.MkdirAll(b.Rootfs.Path, cwd, 0o755); err != nil {
		return fmt.Errorf("working directory: %w", err)
	}
	return nil
}

// setUser finds the user in the image.
func (b *build) setUser() error {
	u, err := b.resolveUser()
	if err != nil {
		return err
	}
	b.user = u
	b.spec.Process.User = specs.User{UID: u.UID, GID: u.GID, AdditionalGids: u.Groups}
	return nil
}
