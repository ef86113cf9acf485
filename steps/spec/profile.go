// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"path"
	"strings"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Spellings of the deprecated string fields.
const (
	runtimeDefault  = "runtime/default"
	dockerDefault   = "docker/default"
	unconfined      = "unconfined"
	localhostPrefix = "localhost/"
)

// profileOf brings the deprecated string and the profile of today into one form;
// nil if neither is set. The profile wins.
func profileOf(field string, p *runtime.SecurityProfile, deprecated string) (*runtime.SecurityProfile, error) {
	if p != nil {
		switch p.GetProfileType() {
		case runtime.SecurityProfile_RuntimeDefault, runtime.SecurityProfile_Unconfined, runtime.SecurityProfile_Localhost:
			return p, nil
		}
		return nil, invalid(field+".profile_type", "%d is unknown", p.GetProfileType())
	}
	switch {
	case deprecated == "":
		return nil, nil
	case deprecated == runtimeDefault, deprecated == dockerDefault:
		return &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_RuntimeDefault}, nil
	case deprecated == unconfined:
		return &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_Unconfined}, nil
	case strings.HasPrefix(deprecated, localhostPrefix):
		return &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_Localhost, LocalhostRef: deprecated}, nil
	}
	return nil, invalid(field, "profile %q is unknown", deprecated)
}

// seccompOf is the seccomp profile asked for; byDefault (of the configuration)
// is for requests that name none. Nil is unconfined.
func seccompOf(s *runtime.LinuxContainerSecurityContext, byDefault string) (*runtime.SecurityProfile, error) {
	const field = "security_context.seccomp"
	p, err := profileOf(field, s.GetSeccomp(), s.GetSeccompProfilePath()) //nolint:staticcheck // older clients send the deprecated field
	if err != nil {
		return nil, err
	}
	if p == nil {
		if byDefault == "RuntimeDefault" {
			return &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_RuntimeDefault}, nil
		}
		return nil, nil
	}
	if p.GetProfileType() == runtime.SecurityProfile_Localhost && !path.IsAbs(seccompFile(p)) {
		return nil, invalid(field+".localhost_ref", "%q is not an absolute path", p.GetLocalhostRef())
	}
	return p, nil
}

// seccompFile is the path in a Localhost profile, with or without "localhost/" before it.
func seccompFile(p *runtime.SecurityProfile) string {
	return strings.TrimPrefix(p.GetLocalhostRef(), localhostPrefix)
}

// appArmorOf is the AppArmor profile asked for, nil if none is named.
func appArmorOf(s *runtime.LinuxContainerSecurityContext) (*runtime.SecurityProfile, error) {
	const field = "security_context.apparmor"
	p, err := profileOf(field, s.GetApparmor(), s.GetApparmorProfile()) //nolint:staticcheck // older clients send the deprecated field
	if err != nil || p == nil {
		return nil, err
	}
	if p.GetProfileType() == runtime.SecurityProfile_Localhost && strings.TrimPrefix(p.GetLocalhostRef(), localhostPrefix) == "" {
		return nil, invalid(field+".localhost_ref", "it is empty")
	}
	return p, nil
}
