// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
)

func TestNewIDIsLongAndFresh(t *testing.T) {
	a, b := newID(), newID()
	if len(a) != 64 || a == b {
		t.Fatalf("ids %q and %q: want 64 hex digits, each its own", a, b)
	}
}

func TestNamesTellMetadataApart(t *testing.T) {
	base := &runtime.PodSandboxMetadata{Name: "n", Namespace: "ns", Uid: "u", Attempt: 1}
	for what, other := range map[string]*runtime.PodSandboxMetadata{
		"name":      {Name: "x", Namespace: "ns", Uid: "u", Attempt: 1},
		"namespace": {Name: "n", Namespace: "x", Uid: "u", Attempt: 1},
		"uid":       {Name: "n", Namespace: "ns", Uid: "x", Attempt: 1},
		"attempt":   {Name: "n", Namespace: "ns", Uid: "u", Attempt: 2},
	} {
		if podName(base) == podName(other) {
			t.Errorf("another %s gives the same name %q", what, podName(base))
		}
	}
}

func TestUnclaimedIsGivenOnceToTheSameRequest(t *testing.T) {
	request := func(name string) *runtime.RunPodSandboxRequest {
		return &runtime.RunPodSandboxRequest{Config: &runtime.PodSandboxConfig{Metadata: &runtime.PodSandboxMetadata{Name: name}}}
	}
	taken := fmt.Errorf("climb: %w", &engine.NameTakenError{Workflow: "sandbox", Name: "n", ID: "1"})
	var u unclaimed
	u.add("1", request("a"))
	if _, ok := u.claim(errors.New("other"), request("a")); ok {
		t.Error("claimed on an error that is not about the name")
	}
	if _, ok := u.claim(taken, request("b")); ok {
		t.Error("claimed by another request")
	}
	if id, ok := u.claim(taken, request("a")); !ok || id != "1" {
		t.Errorf("claim = %q, %v; want 1", id, ok)
	}
	if _, ok := u.claim(taken, request("a")); ok {
		t.Error("claimed twice")
	}
	u.add("1", request("a"))
	u.forget("1")
	if _, ok := u.claim(taken, request("a")); ok {
		t.Error("claimed after it was forgotten")
	}
}

// Case 93: names and log paths with ".." or "/" are refused.
func TestCase93NamesAndLogPathsStayInside(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "a\x00b", strings.Repeat("a", maxName+1)} {
		if err := plainName("name", name); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("plainName(%q) = %v; want it refused", name, err)
		}
	}
	if err := plainName("name", "web-1..x"); err != nil {
		t.Errorf("an ordinary name is refused: %v", err)
	}
	for _, path := range []string{"..", "../x", "a/../../x", "."} {
		if got, err := logPath("/var/log/pods/p", path); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("logPath(%q) = %q, %v; want it refused", path, got, err)
		}
	}
}

// What every list repeats is bounded: three pods with 6 MiB of annotations each
// made every ListPodSandbox fail.
func TestLabelsAreBounded(t *testing.T) {
	half := strings.Repeat("x", maxLabels/2)
	if err := boundedLabels(map[string]string{"a": half[2:]}, map[string]string{"b": half}); err != nil {
		t.Errorf("as much as may be is refused: %v", err)
	}
	err := boundedLabels(map[string]string{"a": half}, map[string]string{"b": half})
	if !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("too much: %v", err)
	}
}

func TestImagesAreBounded(t *testing.T) {
	long := strings.Repeat("i", maxName)
	fits := &runtime.ImageSpec{Image: long, UserSpecifiedImage: long, RuntimeHandler: long, ImageRef: long, Annotations: map[string]string{"a": "b"}}
	if err := boundedImage(fits); err != nil {
		t.Errorf("as much as may be is refused: %v", err)
	}
	for field, spec := range map[string]*runtime.ImageSpec{
		"missing":              {},
		"image":                {Image: long + "i"},
		"user_specified_image": {Image: "i", UserSpecifiedImage: long + "i"},
		"runtime_handler":      {Image: "i", RuntimeHandler: long + "i"},
		"image_ref":            {Image: "i", ImageRef: long + "i"},
		"annotations":          {Image: "i", Annotations: map[string]string{"a": strings.Repeat("x", maxLabels)}},
	} {
		if err := boundedImage(spec); !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// Case 25: only with both directory and path is there a log.
func TestCase25LogPath(t *testing.T) {
	for _, c := range []struct{ dir, path, want string }{
		{"/logs", "c/0.log", "/logs/c/0.log"}, {"", "c/0.log", ""}, {"/logs", "", ""}, {"", "", ""},
	} {
		if got, err := logPath(c.dir, c.path); err != nil || got != c.want {
			t.Errorf("logPath(%q, %q) = %q, %v; want %q", c.dir, c.path, got, err, c.want)
		}
	}
}
