// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"strings"

	core "k8s.io/api/core/v1"
)

var pulling = []check{
	{name: "Image pull policies: Always, IfNotPresent and Never", run: pullPolicies},
	{name: "Image: by digest, and its ID in the status", run: byDigest},
	{name: "Image that is not there: ErrImagePull, then ImagePullBackOff", run: noImage},
	{name: "Image never pulled and not there: ErrImageNeverPull", run: neverPulled},
	{name: "Image with a bad name: InvalidImageName", run: badImageName},
}

// ran runs a pod of an image with a policy on the node.
func (e *env) ran(ctx context.Context, name, image string, policy core.PullPolicy) error {
	p := shell(name, "echo ran")
	p.Spec.NodeName = e.node().Name
	first(p).Image, first(p).ImagePullPolicy = image, policy
	return e.prints(ctx, p, "ran")
}

// ownImage is used by no other check.
const ownImage = "gcr.io/k8s-staging-cri-tools/test-image-tag:test"

func pullPolicies(ctx context.Context, e *env) error {
	for _, step := range []struct {
		name, event string
		policy      core.PullPolicy
	}{
		{"one", "Successfully pulled image", core.PullAlways},
		{"two", "Successfully pulled image", core.PullAlways},
		{"three", "already present on machine", core.PullIfNotPresent},
		{"four", "already present on machine", core.PullNever},
	} {
		if err := e.ran(ctx, step.name, ownImage, step.policy); err != nil {
			return fmt.Errorf("%s: %w", step.policy, err)
		}
		if err := e.event(ctx, step.name, "Pulled", step.event); err != nil {
			return err
		}
	}
	return nil
}

func byDigest(ctx context.Context, e *env) error {
	const tag = "gcr.io/k8s-staging-cri-tools/test-image-tag:all"
	if err := e.ran(ctx, "tagged", tag, core.PullAlways); err != nil {
		return err
	}
	pod, err := e.client.CoreV1().Pods(e.ns).Get(ctx, "tagged", getOptions)
	if err != nil {
		return err
	}
	s := status(pod, mainName)
	name, digest, ok := strings.Cut(s.ImageID, "@")
	if !ok || !strings.HasPrefix(digest, "sha256:") {
		return fmt.Errorf("the image ID should have a digest: %q", s.ImageID)
	}
	if err := errors.Join(equal("image", s.Image, tag), equal("repository", name, strings.TrimSuffix(tag, ":all"))); err != nil {
		return err
	}
	return e.ran(ctx, "digested", s.ImageID, core.PullAlways)
}

// refused makes a pod of an image that cannot be had, and waits for a reason.
func (e *env) refused(ctx context.Context, image string, policy core.PullPolicy, reason string) (string, error) {
	p := shell("hopeless", "echo never")
	first(p).Image, first(p).ImagePullPolicy = image, policy
	if err := e.create(ctx, p); err != nil {
		return "", err
	}
	return e.waits(ctx, p.Name, mainName, reason)
}

func noImage(ctx context.Context, e *env) error {
	const image = "registry.example/no/such/image:1"
	message, err := e.refused(ctx, image, core.PullIfNotPresent, "ErrImagePull")
	if err != nil {
		return err
	}
	if err := contains("the message", message, image, "not found"); err != nil {
		return err
	}
	message, err = e.waits(ctx, "hopeless", mainName, "ImagePullBackOff")
	return errors.Join(err, contains("the message", message, "Back-off pulling image", image, "not found"))
}

func neverPulled(ctx context.Context, e *env) error {
	const image = "registry.example/not/here:1"
	message, err := e.refused(ctx, image, core.PullNever, "ErrImageNeverPull")
	return errors.Join(err, contains("the message", message, image, "Never"))
}

func badImageName(ctx context.Context, e *env) error {
	message, err := e.refused(ctx, "UPPER/case::", core.PullIfNotPresent, "InvalidImageName")
	return errors.Join(err, contains("the message", message, "UPPER/case"))
}
