// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"math"
	"slices"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps/spec/users"
)

// resolveUser gives the user of the first process. Groups are all its groups:
// the primary one (a process outside of it could slip past negative group
// permissions), the image's if the policy is Merge, the request's.
func (b *build) resolveUser() (users.User, error) {
	who := users.Who{Name: b.sec.GetRunAsUsername(), Image: b.Ctr.Image.Config.User}
	if v := b.sec.GetRunAsUser(); v != nil {
		who.UID = &v.Value
	}
	if v := b.sec.GetRunAsGroup(); v != nil {
		who.GID = &v.Value
	}
	u, err := users.Resolve(b.Rootfs.Path, who)
	if err != nil {
		return users.User{}, err
	}
	u.Groups = groups(u, b.sec.GetSupplementalGroups(), b.sec.GetSupplementalGroupsPolicy())
	return u, b.checkMapped(u)
}

func groups(u users.User, request []int64, policy runtime.SupplementalGroupsPolicy) []uint32 {
	all := []uint32{u.GID}
	add := func(gid uint32) {
		if !slices.Contains(all, gid) {
			all = append(all, gid)
		}
	}
	if policy == runtime.SupplementalGroupsPolicy_Merge {
		for _, g := range u.Groups {
			add(g)
		}
	}
	for _, g := range request {
		add(uint32(g)) // range checked by Validate
	}
	return all
}

// checkMapped refuses ids that the pod's user namespace does not have: the OCI
// runtime would fail with a bare "invalid argument".
func (b *build) checkMapped(u users.User) error {
	o := b.userns()
	if o == nil {
		return nil
	}
	if !mapped(o.GetUids(), u.UID) {
		return fmt.Errorf("user %d has no place in the pod's user namespace (%s): %w", u.UID, ranges(o.GetUids()), errdefs.ErrInvalidArgument)
	}
	for _, g := range append([]uint32{u.GID}, u.Groups...) {
		if !mapped(o.GetGids(), g) {
			return fmt.Errorf("group %d has no place in the pod's user namespace (%s): %w", g, ranges(o.GetGids()), errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// userns is the pod's user namespace, nil if it has none of its own.
func (b *build) userns() *runtime.UserNamespace {
	o := b.podConfig.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if b.Pod.Namespaces.User == "" || o == nil || o.GetMode() != runtime.NamespaceMode_POD {
		return nil
	}
	return o
}

func mapped(mappings []*runtime.IDMapping, id uint32) bool {
	return slices.ContainsFunc(mappings, func(m *runtime.IDMapping) bool {
		return id >= m.GetContainerId() && uint64(id) < uint64(m.GetContainerId())+uint64(m.GetLength())
	})
}

func ranges(mappings []*runtime.IDMapping) string {
	text := ""
	for _, m := range mappings {
		if text != "" {
			text += ", "
		}
		text += fmt.Sprintf("%d-%d", m.GetContainerId(), uint64(m.GetContainerId())+uint64(m.GetLength())-1)
	}
	return text
}

// validateUser checks what needs no image (CRI: LinuxContainerSecurityContext).
func validateUser(s *runtime.LinuxContainerSecurityContext) error {
	if s.GetRunAsUser() != nil && s.GetRunAsUsername() != "" {
		return invalid("security_context", "only one of run_as_user and run_as_username can be set")
	}
	if s.GetRunAsGroup() != nil && s.GetRunAsUser() == nil && s.GetRunAsUsername() == "" {
		return invalid("security_context.run_as_group", "it needs run_as_user or run_as_username")
	}
	for field, v := range map[string]*runtime.Int64Value{"run_as_user": s.GetRunAsUser(), "run_as_group": s.GetRunAsGroup()} {
		if err := validateID(field, v); err != nil {
			return err
		}
	}
	for i, g := range s.GetSupplementalGroups() {
		if !inIDRange(g) {
			return invalid(fmt.Sprintf("security_context.supplemental_groups[%d]", i), "%d is out of range", g)
		}
	}
	if _, ok := runtime.SupplementalGroupsPolicy_name[int32(s.GetSupplementalGroupsPolicy())]; !ok {
		return invalid("security_context.supplemental_groups_policy", "%d is unknown", s.GetSupplementalGroupsPolicy())
	}
	return nil
}

func validateID(field string, v *runtime.Int64Value) error {
	if v != nil && !inIDRange(v.GetValue()) {
		return invalid("security_context."+field, "%d is out of range", v.GetValue())
	}
	return nil
}

func inIDRange(id int64) bool { return id >= 0 && id <= math.MaxInt32 }
