// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestCase42OneID pulls one content under several names, runs containers by each, and compares
// what all calls call it, before and after a restart.
func TestCase42OneID(t *testing.T) {
	n := newNode(t, options{})
	img, err := mutate.AppendLayers(n.base(), layer(t, file{Name: "mark", Body: "42"}))
	must(t, err)
	n.push("forty/two:1", img)
	n.push("other/name:2", img)
	digest, err := img.Digest()
	must(t, err)
	refs := []string{
		"cases.example/forty/two:1", "cases.example/forty/two@" + digest.String(),
		"cases.example/forty/two:1@" + digest.String(), "cases.example/other/name:2",
	}
	cfg := n.pod("ids")
	pod := n.run(cfg)
	id := ""
	ctrs := map[string]string{} // reference → container
	for i, ref := range refs {
		got := n.pull(ref)
		if id == "" {
			id = got
		}
		if got != id {
			t.Errorf("%s is called %s, was %s", ref, got, id)
		}
		ctrs[ref] = n.started(pod, cfg, n.ctrOf(ref, "c"+string(rune('0'+i)), "sleep", "1000"))
	}
	ctrs[id] = n.started(pod, cfg, n.ctrOf(id, "by-id", "sleep", "1000"))
	check := func(when string) {
		t.Helper()
		for ref, ctr := range ctrs {
			s := n.status(ctr)
			if s.GetImageId() != id || s.GetImage().GetImage() != ref || n.imageStatus(s.GetImageRef()).GetId() != id {
				t.Errorf("%s, container of %s: image_id %s, image %s, image_ref %s", when, ref, s.GetImageId(), s.GetImage().GetImage(), s.GetImageRef())
			}
			if got := n.imageStatus(ref); got.GetId() != id {
				t.Errorf("%s: ImageStatus of %s says %s", when, ref, got.GetId())
			}
		}
		for _, c := range n.containers() {
			if c.GetImageId() != id {
				t.Errorf("%s: ListContainers has %s", when, c.GetImageId())
			}
		}
		found := 0
		for _, i := range n.listImages() {
			if i.GetId() == id {
				found++
				slices.Sort(i.GetRepoTags())
				if want := []string{refs[0], refs[3]}; !slices.Equal(i.GetRepoTags(), want) || len(i.GetRepoDigests()) != 2 {
					t.Errorf("%s: tags %v, digests %v", when, i.GetRepoTags(), i.GetRepoDigests())
				}
			}
		}
		if found != 1 {
			t.Errorf("%s: %d entries in ListImages", when, found)
		}
	}
	check("before the restart")
	n.restart()
	check("after the restart")
	n.remove(pod)
}

// TestCase45KilledInPull kills the daemon in the middle of a pull, at random points: what is
// listed afterwards is whole, and a pull makes it so. Then layers go behind its back.
func TestCase45KilledInPull(t *testing.T) {
	n := newNode(t, options{})
	noise := make([]byte, 12<<20)
	rng := rand.NewChaCha8([32]byte{45})
	_, _ = rng.Read(noise)
	sum := sha256.Sum256(noise)
	img, err := mutate.AppendLayers(n.base(),
		layer(t, file{Name: "one", Body: string(noise[:4<<20])}), layer(t, file{Name: "two", Body: string(noise[4<<20 : 8<<20])}), layer(t, file{Name: "three", Body: string(noise[8<<20:])}))
	must(t, err)
	n.push("large:1", img)
	const ref = "cases.example/large:1"
	whole := func() {
		t.Helper()
		cfg := n.pod("whole")
		pod := n.run(cfg)
		if got := n.output(pod, cfg, n.ctrOf(ref, "c", "sh", "-c", "cat /one /two /three | sha256sum")); !strings.HasPrefix(got, hex.EncodeToString(sum[:])) {
			t.Errorf("the files of the image have the sum %s", got)
		}
		n.remove(pod)
	}
	for i := range 3 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = n.tryPull(t.Context(), ref)
		}()
		time.Sleep(time.Duration(rand.IntN(30*(i+1))) * time.Millisecond)
		must(t, n.daemon.Kill())
		<-done
		must(t, n.daemon.Start(t.Context()))
		if n.imageStatus(ref) != nil {
			whole()
		}
		n.pull(ref)
		whole()
		_, err := n.client.RemoveImage(t.Context(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: ref}})
		must(t, err)
	}
	n.collect()
	n.same()

	n.pull(ref)
	must(t, n.daemon.Stop())
	n.removeBlobs(1 << 20)
	must(t, n.daemon.Start(t.Context()))
	if n.imageStatus(ref) != nil {
		whole() // it is unpacked: all that is needed is there
	}
	n.pull(ref)
	whole()
}

// removeBlobs removes the larger blobs of the stopped daemon's content store.
func (n *node) removeBlobs(above int64) {
	n.t.Helper()
	removed := 0
	must(n.t, filepath.WalkDir(n.daemon.Root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.Contains(path, "/blobs/sha256/") {
			return err
		}
		if info, err := e.Info(); err != nil || info.Size() < above {
			return err
		}
		removed++
		return os.Remove(path)
	}))
	if removed == 0 {
		n.t.Fatal("no blobs found")
	}
}

// TestCase43Forms asks for an image by all forms of its name, and by some that are none.
func TestCase43Forms(t *testing.T) {
	n := newNode(t, options{})
	ref := n.image("team/app:1", nil, layer(t, file{Name: "app", Body: "app"}))
	id := n.imageStatus(ref).GetId()
	digest := n.imageStatus(ref).GetRepoDigests()[0]
	_, sum, _ := strings.Cut(digest, "@")
	for _, form := range []string{ref, digest, ref + "@" + sum, "cases.example/team/app:wrong@" + sum, id, strings.TrimPrefix(id, "sha256:"), strings.TrimPrefix(id, "sha256:")[:16]} {
		if got := n.imageStatus(form); got.GetId() != id {
			t.Errorf("%s is %q", form, got.GetId())
		}
	}
	for _, form := range []string{"cases.example/team/app", "cases.example/team/app:2", "CASES.example/team/APP:1", "sha256:" + strings.Repeat("0", 64)} {
		if got := n.imageStatus(form); got != nil {
			t.Errorf("%s is %q", form, got.GetId())
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, n.tryPull(ctx, "cases.example/team/app:wrong@"+sum))
	if got := n.imageStatus(ref); !slices.Equal(got.GetRepoTags(), []string{ref}) {
		t.Errorf("the tags are %v", got.GetRepoTags())
	}
	if err := n.tryPull(ctx, "cases.example/team/APP:1"); err == nil {
		t.Error("an upper-case repository was pulled")
	}
}
