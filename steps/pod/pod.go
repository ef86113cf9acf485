// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pod reads what a pod's request means, refuses what cannot be done
// before anything is made, and keeps the pod's directory, which several
// actions share.
package pod

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// MaxHostname is the kernel's limit of a host name, in bytes.
const MaxHostname = 64

// Validate checks everything that the actions of this tree would trip over:
// metadata, host name, DNS configuration, sysctls, namespaces, port mappings and
// bandwidth. Its errors are errdefs.ErrInvalidArgument and say what is wrong
// with which field.
func Validate(cfg *runtime.PodSandboxConfig) error {
	for _, check := range []func(*runtime.PodSandboxConfig) error{
		validateMetadata, validateHostname, validateDNS, validateSysctls, validateNamespaces, validateUserNS, validatePorts, validateBandwidth,
	} {
		if err := check(cfg); err != nil {
			return err
		}
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

func options(cfg *runtime.PodSandboxConfig) *runtime.NamespaceOption {
	return cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

// HostNetwork tells whether the pod uses the node's network, and with it the node's host name.
func HostNetwork(cfg *runtime.PodSandboxConfig) bool {
	return options(cfg).GetNetwork() == runtime.NamespaceMode_NODE
}

// HostIPC tells whether the pod uses the node's IPC namespace and /dev/shm.
func HostIPC(cfg *runtime.PodSandboxConfig) bool {
	return options(cfg).GetIpc() == runtime.NamespaceMode_NODE
}

// Hostname is the pod's host name: the node's for a pod on the node's network
// and for one that asks for none.
func Hostname(cfg *runtime.PodSandboxConfig) (string, error) {
	if name := cfg.GetHostname(); name != "" && !HostNetwork(cfg) {
		return name, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("read the node's host name: %w", err)
	}
	return name, nil
}

// validateMetadata refuses what network plugins could not be told (CNI_ARGS, CNI spec, section 2).
func validateMetadata(cfg *runtime.PodSandboxConfig) error {
	m := cfg.GetMetadata()
	for field, s := range map[string]string{"name": m.GetName(), "namespace": m.GetNamespace(), "uid": m.GetUid()} {
		if !clean(s) || strings.ContainsAny(s, ";=/") {
			return invalid("config.metadata.%s %q contains ';', '=', '/' or a control character", field, s)
		}
	}
	return nil
}

// validateNamespaces refuses modes that a pod cannot have (CRI: NamespaceOption).
func validateNamespaces(cfg *runtime.PodSandboxConfig) error {
	const pod, container, node = runtime.NamespaceMode_POD, runtime.NamespaceMode_CONTAINER, runtime.NamespaceMode_NODE
	o := options(cfg)
	for _, c := range []struct {
		field string
		mode  runtime.NamespaceMode
		may   []runtime.NamespaceMode
	}{
		{"network", o.GetNetwork(), []runtime.NamespaceMode{pod, node}},
		{"ipc", o.GetIpc(), []runtime.NamespaceMode{pod, node}},
		{"pid", o.GetPid(), []runtime.NamespaceMode{pod, container, node}},
	} {
		if !slices.Contains(c.may, c.mode) {
			return invalid("config.linux.security_context.namespace_options.%s: a pod cannot have %s, only one of %v", c.field, c.mode, c.may)
		}
	}
	return nil
}

func validateHostname(cfg *runtime.PodSandboxConfig) error {
	name := cfg.GetHostname()
	if len(name) > MaxHostname {
		return invalid("hostname %q has %d bytes, the limit is %d", name, len(name), MaxHostname)
	}
	if !clean(name) || strings.ContainsAny(name, " /") {
		return invalid("hostname %q contains a blank, a slash or a control character", name)
	}
	return nil
}

// clean tells whether s stays one line of text.
func clean(s string) bool { return !strings.ContainsFunc(s, unicode.IsControl) }

// UserNS is a pod's user namespace: one range of ids each.
type UserNS struct {
	UID, GID *runtime.IDMapping
}

// UserNamespace returns the pod's own user namespace; ok is false if it uses the node's.
func UserNamespace(cfg *runtime.PodSandboxConfig) (u UserNS, ok bool) {
	o := options(cfg).GetUsernsOptions()
	if o == nil || o.GetMode() != runtime.NamespaceMode_POD || len(o.GetUids()) == 0 || len(o.GetGids()) == 0 {
		return UserNS{}, false
	}
	return UserNS{UID: o.GetUids()[0], GID: o.GetGids()[0]}, true
}

// Root is the node's ids of root in the pod.
func (u UserNS) Root() (uid, gid int) {
	return int(u.UID.GetHostId()), int(u.GID.GetHostId())
}

func validateUserNS(cfg *runtime.PodSandboxConfig) error {
	o := options(cfg).GetUsernsOptions()
	if o == nil {
		return nil
	}
	switch o.GetMode() {
	case runtime.NamespaceMode_NODE:
		if len(o.GetUids()) > 0 || len(o.GetGids()) > 0 {
			return invalid("user namespace options: id mappings make no sense with mode NODE")
		}
		return nil
	case runtime.NamespaceMode_POD:
	default:
		return invalid("user namespace options: mode %s is not supported, only POD and NODE", o.GetMode())
	}
	if len(o.GetUids()) != 1 || len(o.GetGids()) != 1 {
		return invalid("user namespace options: %d uid and %d gid mappings, one of each is supported", len(o.GetUids()), len(o.GetGids()))
	}
	for what, m := range map[string]*runtime.IDMapping{"uid": o.GetUids()[0], "gid": o.GetGids()[0]} {
		if err := validateMapping(what, m); err != nil {
			return err
		}
	}
	return nil
}

func validateMapping(what string, m *runtime.IDMapping) error {
	text := fmt.Sprintf("user namespace options: %s mapping %d:%d:%d", what, m.GetContainerId(), m.GetHostId(), m.GetLength())
	switch {
	case m.GetLength() == 0:
		return invalid("%s is empty", text)
	case m.GetContainerId() != 0:
		return invalid("%s leaves root unmapped", text)
	case uint64(m.GetHostId())+uint64(m.GetLength()) > math.MaxUint32:
		return invalid("%s goes past the last id", text)
	}
	return nil
}

func validatePorts(cfg *runtime.PodSandboxConfig) error {
	for i, p := range cfg.GetPortMappings() {
		for what, port := range map[string]int32{"host": p.GetHostPort(), "container": p.GetContainerPort()} {
			if port < 0 || port > math.MaxUint16 {
				return invalid("config.port_mappings[%d]: %s port %d is not between 0 and %d", i, what, port, math.MaxUint16)
			}
		}
		if p.GetHostPort() > 0 && p.GetContainerPort() == 0 {
			return invalid("config.port_mappings[%d].container_port: host port %d leads to none", i, p.GetHostPort())
		}
		if _, ok := runtime.Protocol_name[int32(p.GetProtocol())]; !ok {
			return invalid("config.port_mappings[%d].protocol: %d is unknown", i, p.GetProtocol())
		}
		if ip := p.GetHostIp(); ip != "" {
			if _, err := netip.ParseAddr(ip); err != nil {
				return invalid("config.port_mappings[%d].host_ip: %q is no address", i, ip)
			}
		}
	}
	return nil
}
