// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cri/interceptors"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/snapshot/snapshottest"
)

// jobs runs jobs at once and notes them.
type jobs struct {
	mu  sync.Mutex
	ran []string
	err error
}

func (j *jobs) Job(ctx context.Context, workflow, flow, id string, fn func(context.Context) error) error {
	j.mu.Lock()
	j.ran = append(j.ran, workflow+"."+flow+" "+id)
	err := j.err
	j.mu.Unlock()
	if err != nil {
		return err
	}
	return fn(ctx)
}

func pull(ref string) *cri.PullImageRequest {
	return &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}}
}

func status(ref string) *cri.ImageStatusRequest {
	return &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}, Verbose: true}
}

// Case 42: one ID for an image, the same in all calls. Case 4: removing twice.
func TestImageLife(t *testing.T) {
	store, reg := snapshottest.New(t), snapshottest.Serve(t, nil)
	ref := reg.Push(t, "app:1", snapshottest.Image(t, v1.Config{User: "1003:1004", Cmd: []string{"run"}},
		snapshottest.Layer(t, snapshottest.File{Name: "file", Body: "text"})))
	j := &jobs{}
	s := New(store, j)
	ctx := t.Context()

	if got, err := s.ImageStatus(ctx, status(ref)); err != nil || got.GetImage() != nil {
		t.Fatalf("before the pull: %v, %v", got, err)
	}
	pulled, err := s.PullImage(ctx, pull(ref))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"image.pull " + ref}; !slices.Equal(j.ran, want) {
		t.Errorf("jobs %v, want %v", j.ran, want)
	}
	id := pulled.GetImageRef()
	for _, form := range []string{ref, id, strings.TrimPrefix(id, "sha256:")[:12]} {
		got, err := s.ImageStatus(ctx, status(form))
		if err != nil {
			t.Fatal(err)
		}
		img := got.GetImage()
		if img.GetId() != id || img.GetSize() == 0 || img.GetUid().GetValue() != 1003 || img.GetUsername() != "" || img.GetPinned() {
			t.Errorf("status by %s: %v", form, img)
		}
		if !slices.Equal(img.GetRepoTags(), []string{ref}) || len(img.GetRepoDigests()) != 1 {
			t.Errorf("tags %v, digests %v", img.GetRepoTags(), img.GetRepoDigests())
		}
		var verbose struct{ ImageSpec ocispec.Image }
		if err := json.Unmarshal([]byte(got.GetInfo()["info"]), &verbose); err != nil || verbose.ImageSpec.Config.Cmd[0] != "run" {
			t.Errorf("info %v, %v", got.GetInfo(), err)
		}
	}
	for filter, want := range map[string]int{"": 1, ref: 1, id: 1, "no/such:1": 0} {
		got, err := s.ListImages(ctx, &cri.ListImagesRequest{Filter: &cri.ImageFilter{Image: &cri.ImageSpec{Image: filter}}})
		if err != nil || len(got.GetImages()) != want || want == 1 && got.GetImages()[0].GetId() != id {
			t.Errorf("filter %q: %v, %v", filter, got, err)
		}
	}
	if _, err := store.PrepareRootfs(ctx, "container", snapshot.RootfsOptions{Image: id}); err != nil {
		t.Fatal(err)
	}
	fs, err := s.ImageFsInfo(ctx, &cri.ImageFsInfoRequest{})
	if err != nil || len(fs.GetImageFilesystems()) != 1 || len(fs.GetContainerFilesystems()) != 1 {
		t.Fatalf("%v, %v", fs, err)
	}
	if u := fs.GetImageFilesystems()[0]; u.GetFsId().GetMountpoint() == "" || u.GetTimestamp() == 0 || u.GetInodesUsed().GetValue() == 0 {
		t.Errorf("usage %v", u)
	} else if w := fs.GetContainerFilesystems()[0]; w.GetFsId().GetMountpoint() != u.GetFsId().GetMountpoint() || w.GetInodesUsed().GetValue() == 0 ||
		w.GetInodesUsed().GetValue() >= u.GetInodesUsed().GetValue() {
		t.Errorf("the image takes %v, a container that has written nothing %v", u, w)
	}
	if err := store.RemoveRootfs(ctx, "container"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: ref}}); err != nil {
			t.Error(err)
		}
	}
	if got, err := s.ListImages(ctx, nil); err != nil || len(got.GetImages()) != 0 {
		t.Errorf("after the removal: %v, %v", got, err)
	}
}

// Every form of credentials reaches the registry, and wrong ones are told apart
// from an image that is not there.
func TestPullCredentialsAndErrors(t *testing.T) {
	store := snapshottest.New(t)
	guard := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user, password, _ := r.BasicAuth(); user != "u" || password != "p" {
				w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
				http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	open := snapshottest.Serve(t, nil)
	open.Push(t, "app:1", snapshottest.Image(t, v1.Config{}))
	closed := snapshottest.Serve(t, func(next http.Handler) http.Handler { return guard(proxyTo(t, open.Host, next)) })
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	s := New(store, &jobs{})
	for name, c := range map[string]struct {
		ref  string
		auth *cri.AuthConfig
		want codes.Code
		text string
	}{
		"anonymous":      {closed.Host + "/app:1", nil, codes.Unauthenticated, "app:1"},
		"wrong password": {closed.Host + "/app:1", &cri.AuthConfig{Username: "u", Password: "x"}, codes.Unauthenticated, "app:1"},
		"password":       {closed.Host + "/app:1", &cri.AuthConfig{Username: "u", Password: "p"}, codes.OK, ""},
		"auth":           {closed.Host + "/app:1", &cri.AuthConfig{Auth: "dTpw"}, codes.OK, ""},
		"not there":      {open.Host + "/none:1", nil, codes.NotFound, "none:1"},
		"bad reference":  {"app:not a tag", nil, codes.InvalidArgument, "not a tag"},
		"no reference":   {"", nil, codes.InvalidArgument, "no image"},
		"no registry":    {gone.Addr().String() + "/app:1", nil, codes.Unknown, "app:1"},
	} {
		r := pull(c.ref)
		r.Auth = c.auth
		_, err := s.PullImage(t.Context(), r)
		if got := interceptors.Code(err); got != c.want || (err != nil && !strings.Contains(err.Error(), c.text)) {
			t.Errorf("%s: %v: %v, want %v", name, got, err, c.want)
		}
		if name == "no registry" && (err == nil || !strings.HasPrefix(err.Error(), "RegistryUnavailable: ")) {
			t.Errorf("%s: kubelet does not see why: %v", name, err)
		}
	}
}

// proxyTo sends reads to the registry at host.
func proxyTo(t *testing.T, host string, next http.Handler) http.Handler {
	t.Helper()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			next.ServeHTTP(w, r)
			return
		}
		http.Redirect(w, r, "http://"+host+r.URL.Path, http.StatusTemporaryRedirect)
	})
}

// fake is a store of one image or one error.
type fake struct {
	img  snapshot.Image
	err  error
	auth *snapshot.Auth
	opts snapshot.PullOptions
}

func (f *fake) Pull(_ context.Context, _ string, auth *snapshot.Auth, o snapshot.PullOptions) (snapshot.Image, error) {
	f.auth, f.opts = auth, o
	return f.img, f.err
}

func (f *fake) Images(context.Context) ([]snapshot.Image, error) {
	return []snapshot.Image{f.img}, f.err
}
func (f *fake) Image(context.Context, string) (snapshot.Image, error) { return f.img, f.err }
func (f *fake) RemoveImage(context.Context, string) error             { return f.err }
func (f *fake) ImageFS(context.Context) (snapshot.FS, error)          { return snapshot.FS{}, f.err }
func (f *fake) ContainerFS(context.Context) (snapshot.FS, error)      { return snapshot.FS{}, f.err }

func TestUserOfImage(t *testing.T) {
	for user, want := range map[string]string{
		"": "- ", "0": "0 ", "1002": "1002 ", "1003:1004": "1003 ", "www-data": "- www-data", "www-data:www": "- www-data",
		"www-data:1004": "- www-data", "-1": "- -1", "99999999999999999999": "- 99999999999999999999", ":5": "- ",
	} {
		img := snapshot.Image{Spec: ocispec.Image{Config: ocispec.ImageConfig{User: user}}}
		got := toCRI(img)
		uid := "-"
		if got.GetUid() != nil {
			uid = fmt.Sprint(got.GetUid().GetValue())
		}
		if uid+" "+got.GetUsername() != want {
			t.Errorf("USER %q: %s %q, want %q", user, uid, got.GetUsername(), want)
		}
	}
}

func TestPullPassesEverything(t *testing.T) {
	f := &fake{img: snapshot.Image{ID: "sha256:1"}}
	s := New(f, &jobs{}, WithHandlers(func(handler string) (string, bool) { return "for-" + handler, handler == "vm" }))
	r := pull("x:1")
	r.Image.RuntimeHandler = "vm"
	r.Auth = &cri.AuthConfig{Username: "u", Password: "p", Auth: "a", ServerAddress: "s", IdentityToken: "i", RegistryToken: "r"}
	got, err := s.PullImage(t.Context(), r)
	if err != nil || got.GetImageRef() != "sha256:1" {
		t.Errorf("%v, %v", got, err)
	}
	if want := (snapshot.Auth{Username: "u", Password: "p", Auth: "a", ServerAddress: "s", IdentityToken: "i", RegistryToken: "r"}); *f.auth != want {
		t.Errorf("auth %+v", *f.auth)
	}
	if f.opts.Snapshotter != "for-vm" {
		t.Errorf("options %+v", f.opts)
	}
	r.Image.RuntimeHandler = "unknown"
	if _, err := s.PullImage(t.Context(), r); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "runtime_handler") {
		t.Errorf("an unknown handler: %v", err)
	}
}

func TestErrors(t *testing.T) {
	broken := errors.New("the disk is gone")
	s := New(&fake{err: broken}, &jobs{})
	ctx := t.Context()
	call := map[string]error{}
	_, call["list"] = s.ListImages(ctx, &cri.ListImagesRequest{})
	_, call["status"] = s.ImageStatus(ctx, status("x"))
	_, call["remove"] = s.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: "x"}})
	_, call["pull"] = s.PullImage(ctx, pull("x"))
	_, call["fs"] = s.ImageFsInfo(ctx, nil)
	for name, err := range call {
		if !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, nilStatus := s.ImageStatus(ctx, nil)
	_, nilPull := s.PullImage(ctx, nil)
	_, nilRemove := s.RemoveImage(ctx, nil)
	for _, err := range []error{nilStatus, nilPull, nilRemove} {
		if !errdefs.IsInvalidArgument(err) {
			t.Errorf("a nil request gives %v", err)
		}
	}
	full := New(&fake{}, &jobs{err: fmt.Errorf("image.pull: %w", engine.ErrConcurrentFailed)})
	if _, err := full.PullImage(ctx, pull("x")); interceptors.Code(err) != codes.ResourceExhausted {
		t.Errorf("above the limit: %v", err)
	}
}
