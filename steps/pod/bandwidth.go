// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"math"

	"k8s.io/apimachinery/pkg/api/resource"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cni"
)

// Annotations of Kubernetes for the bandwidth of a pod, in bits per second.
const (
	ingressAnnotation = "kubernetes.io/ingress-bandwidth"
	egressAnnotation  = "kubernetes.io/egress-bandwidth"
)

// unlimitedBurst in bits is as good as no limit and fits what the bandwidth plugin takes.
const unlimitedBurst = math.MaxInt32

// bounds of a bandwidth as Kubernetes documents them, in bits per second.
const (
	minRate = 1_000
	maxRate = 1_000_000_000_000_000
)

// Bandwidth reads the pod's bandwidth annotations; nil if there are none. A value
// that is no quantity of bits per second is an errdefs.ErrInvalidArgument.
func Bandwidth(cfg *runtime.PodSandboxConfig) (*cni.Bandwidth, error) {
	annotations := cfg.GetAnnotations()
	in, err := rate(annotations, ingressAnnotation)
	if err != nil {
		return nil, err
	}
	out, err := rate(annotations, egressAnnotation)
	if err != nil {
		return nil, err
	}
	if in == 0 && out == 0 {
		return nil, nil
	}
	b := &cni.Bandwidth{IngressRate: in, EgressRate: out}
	if in > 0 {
		b.IngressBurst = unlimitedBurst
	}
	if out > 0 {
		b.EgressBurst = unlimitedBurst
	}
	return b, nil
}

func rate(annotations map[string]string, key string) (uint64, error) {
	text, ok := annotations[key]
	if !ok {
		return 0, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, invalid("annotation %s=%q: %w", key, text, err)
	}
	v := q.Value()
	if v < minRate || v > maxRate {
		return 0, invalid("annotation %s=%q is not between 1k and 1P bits per second", key, text)
	}
	return uint64(v), nil
}

func validateBandwidth(cfg *runtime.PodSandboxConfig) error {
	_, err := Bandwidth(cfg)
	return err
}
