// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

var users = []check{
	{name: "runAsUser and runAsGroup: the pod's, and a container's instead", run: runAs},
	{name: "runAsNonRoot: refused for root, and for a user without a number", run: runAsNonRoot},
	{name: "fsGroup: volumes belong to it", run: fsGroup},
	{name: "supplementalGroupsPolicy Merge: with the image's groups", run: groupsMerge},
	{name: "supplementalGroupsPolicy Strict: without the image's groups", run: groupsStrict},
}

// Images with a user of their own.
const (
	numericUser = "gcr.io/k8s-staging-cri-tools/test-image-user-uid:latest"         // 1002
	namedUser   = "gcr.io/k8s-staging-cri-tools/test-image-user-username:latest"    // www-data
	grouped     = "gcr.io/k8s-staging-cri-tools/test-image-predefined-group:latest" // 1000, in group 50000
)

func runAs(ctx context.Context, e *env) error {
	const script = "echo $(id -u) $(id -g) $(id -G)"
	p := shell("podwide", script)
	podSecured(p).RunAsUser, podSecured(p).RunAsGroup = ptr.To[int64](1234), ptr.To[int64](5678)
	podSecured(p).SupplementalGroups = []int64{42}
	q := shell("own", script)
	podSecured(q).RunAsUser, podSecured(q).RunAsGroup = ptr.To[int64](1234), ptr.To[int64](5678)
	secured(q).RunAsUser, secured(q).RunAsGroup = ptr.To[int64](77), ptr.To[int64](88)
	r := shell("image", script)
	first(r).Image = namedUser
	return errors.Join(e.prints(ctx, p, "1234 5678 5678 42"), e.prints(ctx, q, "77 88 88"), e.prints(ctx, r, "33 33 33"))
}

// notCreated makes a pod whose container kubelet or runtime refuse, and waits for the reason.
func (e *env) notCreated(ctx context.Context, p *core.Pod, reason string, texts ...string) error {
	if err := e.create(ctx, p); err != nil {
		return err
	}
	message, err := e.waits(ctx, p.Name, mainName, reason)
	return errors.Join(err, contains("the message", message, texts...))
}

func runAsNonRoot(ctx context.Context, e *env) error {
	good := shell("good", "id -u")
	first(good).Image = numericUser
	root, named := shell("root", "echo never"), shell("named", "echo never")
	first(named).Image = namedUser
	for _, p := range []*core.Pod{good, root, named} {
		podSecured(p).RunAsNonRoot = ptr.To(true)
	}
	const reason = "CreateContainerConfigError"
	return errors.Join(
		e.prints(ctx, good, "1002"),
		e.notCreated(ctx, root, reason, "container has runAsNonRoot and image will run as root"),
		e.notCreated(ctx, named, reason, "non-numeric user (www-data)"))
}

func fsGroup(ctx context.Context, e *env) error {
	if err := e.secret(ctx, "secret", map[string]string{"text": "x"}); err != nil {
		return err
	}
	p := shell("grouped", `
		stat -c '%g %a' /data
		touch /data/file
		stat -c '%u:%g' /data/file
		stat -L -c '%g %a' /secret/text
		id -G`)
	podSecured(p).RunAsUser, podSecured(p).RunAsGroup, podSecured(p).FSGroup = ptr.To[int64](1234), ptr.To[int64](5678), ptr.To[int64](9876)
	volume(p, emptyDir(), core.VolumeMount{MountPath: "/data"})
	volume(p, core.VolumeSource{Secret: &core.SecretVolumeSource{SecretName: "secret", DefaultMode: ptr.To[int32](0o400)}},
		core.VolumeMount{MountPath: "/secret"})
	return e.prints(ctx, p, "9876 2777\n1234:9876\n9876 440\n5678 9876")
}

// groupsOf runs an image whose user is in a group of the image, with a policy, and returns
// the groups and what the status tells.
func (e *env) groupsOf(ctx context.Context, policy core.SupplementalGroupsPolicy) (string, []int64, error) {
	p := shell("grouped", "id -G; "+forever)
	first(p).Image = grouped
	s := podSecured(p)
	s.RunAsUser, s.RunAsGroup, s.SupplementalGroups, s.SupplementalGroupsPolicy = ptr.To[int64](1000), ptr.To[int64](3000), []int64{60000}, &policy
	pod, err := e.start(ctx, p)
	if err != nil {
		return "", nil, err
	}
	groups := ""
	if err := e.heard(ctx, p.Name, mainName, func(text string) error {
		groups = text
		return nonEmpty("groups", text)
	}); err != nil {
		return "", nil, err
	}
	user := status(pod, mainName).User
	if user == nil || user.Linux == nil {
		return "", nil, errors.New("the status does not tell the container's user")
	}
	return groups, user.Linux.SupplementalGroups, nil
}

func groupsMerge(ctx context.Context, e *env) error {
	groups, told, err := e.groupsOf(ctx, core.SupplementalGroupsPolicyMerge)
	if err != nil {
		return err
	}
	return errors.Join(sameGroups("groups", groups, "3000 50000 60000"), sameGroups("groups in the status", join(told), "3000 50000 60000"))
}

func groupsStrict(ctx context.Context, e *env) error {
	groups, told, err := e.groupsOf(ctx, core.SupplementalGroupsPolicyStrict)
	if err != nil {
		return err
	}
	return errors.Join(sameGroups("groups", groups, "3000 60000"), sameGroups("groups in the status", join(told), "3000 60000"))
}

func join(numbers []int64) string { return strings.Trim(fmt.Sprint(numbers), "[]") }

// sameGroups compares groups in any order.
func sameGroups(what, got, want string) error {
	words := strings.Fields(got)
	slices.Sort(words)
	return equal(what, strings.Join(words, " "), want)
}
