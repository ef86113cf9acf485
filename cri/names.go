// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
)

// newID returns 32 random bytes in hex: the length that CRI clients expect.
func newID() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails since Go 1.24
	return hex.EncodeToString(b[:])
}

// podName is what a sandbox reserves: no two sandboxes have the same metadata.
func podName(m *runtime.PodSandboxMetadata) string {
	return podIdentity(m) + strconv.FormatUint(uint64(m.GetAttempt()), 10)
}

// podIdentity is what the names of all sandboxes of one pod begin with.
func podIdentity(m *runtime.PodSandboxMetadata) string {
	return strings.Join([]string{m.GetNamespace(), m.GetName(), m.GetUid(), ""}, "_")
}

// containerName is what a container reserves within its pod.
func containerName(podID string, m *runtime.ContainerMetadata) string {
	return strings.Join([]string{podID, m.GetName(), strconv.FormatUint(uint64(m.GetAttempt()), 10)}, "_")
}

// podIn is the pod's ID in the name of a container.
func podIn(containerName string) string {
	podID, _, _ := strings.Cut(containerName, "_")
	return podID
}

// unclaimed remembers creates that arrived after their caller had gone, so that
// the identical request which follows gets what stands and not "name taken".
// mu guards the map alone and is never held across a call.
type unclaimed struct {
	mu   sync.Mutex
	made map[string]proto.Message // subject ID → request
}

func (u *unclaimed) add(id string, request proto.Message) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.made == nil {
		u.made = map[string]proto.Message{}
	}
	u.made[id] = request
}

// claim hands over what holds the name, if it was made for the same request and
// nobody has it yet.
func (u *unclaimed) claim(err error, request proto.Message) (string, bool) {
	taken := &engine.NameTakenError{}
	if !errors.As(err, &taken) {
		return "", false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	was, ok := u.made[taken.ID]
	if !ok || !proto.Equal(was, request) {
		return "", false
	}
	delete(u.made, taken.ID)
	return taken.ID, true
}

func (u *unclaimed) forget(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.made, id)
}

// plainName refuses names that could leave a directory.
func plainName(field, name string) error {
	if name == "" {
		return invalid("%s is empty", field)
	}
	if len(name) > maxName {
		return invalid("%s has %d bytes, more than %d", field, len(name), maxName)
	}
	if strings.ContainsAny(name, "/\x00") || name == "." || name == ".." {
		return invalid("%s %q has a path in it", field, name)
	}
	return nil
}

// Bounds of what a request may carry for every list to repeat. Kubernetes allows
// 253 bytes of a name and 256 KiB of annotations; ours leave room and keep the
// list of a full node within a gRPC message.
const (
	maxName   = 1 << 10
	maxLabels = 512 << 10
)

// boundedLabels refuses labels and annotations that would make lists unanswerable.
func boundedLabels(labels, annotations map[string]string) error {
	size := 0
	for _, m := range []map[string]string{labels, annotations} {
		for k, v := range m {
			size += len(k) + len(v)
		}
	}
	if size > maxLabels {
		return invalid("labels and annotations have %d bytes, more than %d", size, maxLabels)
	}
	return nil
}

// boundedImage refuses names of an image that are none, and what lists would repeat of it.
func boundedImage(i *runtime.ImageSpec) error {
	if i.GetImage() == "" {
		return invalid("config.image is missing")
	}
	for field, name := range map[string]string{
		"image": i.GetImage(), "user_specified_image": i.GetUserSpecifiedImage(), "runtime_handler": i.GetRuntimeHandler(), "image_ref": i.GetImageRef(),
	} {
		if len(name) > maxName {
			return invalid("config.image.%s has %d bytes, more than %d", field, len(name), maxName)
		}
	}
	if err := boundedLabels(nil, i.GetAnnotations()); err != nil {
		return fmt.Errorf("config.image: %w", err)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errInvalid)...)
}
