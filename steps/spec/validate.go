// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"strings"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
)

// Validate checks a request for a container as far as it can be without its root
// file system, so that a bad one is refused before anything changes. The error
// names the field and is errdefs.ErrInvalidArgument.
func Validate(c *runtime.ContainerConfig, pod *runtime.PodSandboxConfig, cfg steps.Config) error {
	if c == nil {
		return invalid("config", "it is missing")
	}
	if pod == nil {
		return invalid("sandbox_config", "it is missing")
	}
	for _, check := range []func() error{
		func() error { return validateProcess(c) },
		func() error { return validateMounts(c) },
		func() error { return validateDevices(c) },
	} {
		if err := check(); err != nil {
			return fmt.Errorf("config.%w", err)
		}
	}
	if err := validateSecurity(c.GetLinux().GetSecurityContext(), pod.GetLinux().GetSecurityContext()); err != nil {
		return fmt.Errorf("config.linux.%w", err)
	}
	if err := validateResources("config.linux.resources", c.GetLinux().GetResources()); err != nil {
		return err
	}
	_, _, err := CgroupPaths(cfg, pod, "id")
	return err
}

// ValidatePod refuses a pod each of whose containers would have to be refused, or that
// says of its own processes what cannot be. The error is as that of Validate.
func ValidatePod(pod *runtime.PodSandboxConfig, cfg steps.Config) error {
	l := pod.GetLinux()
	for field, r := range map[string]*runtime.LinuxContainerResources{"resources": l.GetResources(), "overhead": l.GetOverhead()} {
		if err := validateResources("config.linux."+field, r); err != nil {
			return err
		}
	}
	if err := validateSandboxSecurity(l.GetSecurityContext()); err != nil {
		return fmt.Errorf("config.linux.%w", err)
	}
	_, _, err := CgroupPaths(cfg, pod, "id")
	return err
}

// validateSandboxSecurity checks what a sandbox has in common with containers. A group
// without a user is no fault in it: kubelet sends the pod's group, and each container's user.
func validateSandboxSecurity(s *runtime.LinuxSandboxSecurityContext) error {
	like := &runtime.LinuxContainerSecurityContext{
		RunAsUser: s.GetRunAsUser(), SupplementalGroups: s.GetSupplementalGroups(), SupplementalGroupsPolicy: s.GetSupplementalGroupsPolicy(),
		Seccomp: s.GetSeccomp(), SeccompProfilePath: s.GetSeccompProfilePath(), Apparmor: s.GetApparmor(), //nolint:staticcheck // older clients send the deprecated field
	}
	if err := validateUser(like); err != nil {
		return err
	}
	if err := validateID("run_as_group", s.GetRunAsGroup()); err != nil {
		return err
	}
	if _, err := seccompOf(like, ""); err != nil {
		return err
	}
	_, err := appArmorOf(like)
	return err
}

// ValidateResources checks the resources of a request; field is where it has them.
func ValidateResources(field string, r *runtime.LinuxContainerResources) error {
	return validateResources(field, r)
}

func validateProcess(c *runtime.ContainerConfig) error {
	if _, err := StopSignal("", c.GetStopSignal()); err != nil {
		return err
	}
	if dir := c.GetWorkingDir(); dir != "" && !strings.HasPrefix(dir, "/") {
		return invalid("working_dir", "%q is not absolute", dir)
	}
	for _, f := range []struct {
		name   string
		values []string
	}{{"command", c.GetCommand()}, {"args", c.GetArgs()}, {"working_dir", []string{c.GetWorkingDir()}}} {
		for _, v := range f.values {
			if strings.ContainsRune(v, 0) {
				return invalid(f.name, "%q has a zero byte", v)
			}
		}
	}
	for i, e := range c.GetEnvs() {
		field := fmt.Sprintf("envs[%d]", i)
		switch {
		case e.GetKey() == "" || strings.ContainsAny(e.GetKey(), "=\x00"):
			return invalid(field+".key", "%q is no name of a variable", e.GetKey())
		case strings.ContainsRune(string(e.GetValue()), 0):
			return invalid(field+".value", "the value of %s has a zero byte", e.GetKey())
		}
	}
	return nil
}

func validateMounts(c *runtime.ContainerConfig) error {
	for i, m := range c.GetMounts() {
		if err := validateMount(fmt.Sprintf("mounts[%d]", i), m); err != nil {
			return err
		}
	}
	return nil
}

func validateDevices(c *runtime.ContainerConfig) error {
	for i, d := range c.GetDevices() {
		if err := validateDevice(fmt.Sprintf("devices[%d]", i), d); err != nil {
			return err
		}
	}
	_, err := cdiNames(c)
	return err
}
