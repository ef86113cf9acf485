// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"path"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Annotations of the OCI spec that tools and shims for containerd's CRI expect.
const (
	annotationPrefix = "io.kubernetes.cri."

	annotationType          = annotationPrefix + "container-type"
	annotationSandboxID     = annotationPrefix + "sandbox-id"
	annotationContainerName = annotationPrefix + "container-name"
	annotationSandboxName   = annotationPrefix + "sandbox-name"
	annotationNamespace     = annotationPrefix + "sandbox-namespace"
	annotationSandboxUID    = annotationPrefix + "sandbox-uid"
	annotationImage         = annotationPrefix + "image-name"

	containerType = "container"
)

// setAnnotations gives the spec the annotations of pod and container (the latter
// win) that the runtime handler lets through, and the standard ones, which no
// request can change: shims act on them.
func (b *build) setAnnotations() {
	out := map[string]string{}
	for _, from := range []map[string]string{b.podConfig.GetAnnotations(), b.config.GetAnnotations()} {
		for key, value := range from {
			if allowed(b.runtime.Annotations, key) {
				out[key] = value
			}
		}
	}
	for key, value := range standardAnnotations(b.Pod.ID, b.podConfig.GetMetadata(), b.config) {
		out[key] = value
	}
	b.spec.Annotations = out
}

func standardAnnotations(podID string, pod *runtime.PodSandboxMetadata, c *runtime.ContainerConfig) map[string]string {
	return map[string]string{
		annotationType:          containerType,
		annotationSandboxID:     podID,
		annotationContainerName: c.GetMetadata().GetName(),
		annotationSandboxName:   pod.GetName(),
		annotationNamespace:     pod.GetNamespace(),
		annotationSandboxUID:    pod.GetUid(),
		annotationImage:         c.GetImage().GetImage(),
	}
}

// allowed matches a key against patterns of path.Match, where "*" at the end also
// matches slashes. A broken pattern matches nothing.
func allowed(patterns []string, key string) bool {
	for _, p := range patterns {
		if ok, err := path.Match(p, key); err == nil && ok {
			return true
		}
		if n := len(p) - 1; n >= 0 && p[n] == '*' && len(key) >= n && key[:n] == p[:n] && !hasMeta(p[:n]) {
			return true
		}
	}
	return false
}

func hasMeta(p string) bool {
	for _, c := range p {
		switch c {
		case '*', '?', '[', '\\':
			return true
		}
	}
	return false
}
