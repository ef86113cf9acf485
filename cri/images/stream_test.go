// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cri/interceptors"
	"github.com/sandflow-cri/sandflow/snapshot"
)

// library is a store of many images.
type library struct {
	Store
	images []snapshot.Image
	err    error
}

func (l library) Images(context.Context) ([]snapshot.Image, error) { return l.images, l.err }

func dial(t *testing.T, s *Service) cri.ImageServiceClient {
	t.Helper()
	options, err := interceptors.ServerOptions(interceptors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(options...)
	cri.RegisterImageServiceServer(g, s)
	socket := filepath.Join(t.TempDir(), "s")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return cri.NewImageServiceClient(conn)
}

// Case 82: five thousand images of 8 KiB each are too much for one message.
func TestCase82StreamImages(t *testing.T) {
	l := library{}
	for i := range 5000 {
		l.images = append(l.images, snapshot.Image{ID: fmt.Sprintf("sha256:%064d", i), RepoTags: []string{strings.Repeat("t", 8192)}})
	}
	stream, err := dial(t, New(l, &jobs{})).StreamImages(t.Context(), &cri.StreamImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	n, messages := 0, 0
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		messages++
		if len(m.GetImages()) == 0 || proto.Size(m) > 1<<20 {
			t.Errorf("a message of %d images and %d bytes", len(m.GetImages()), proto.Size(m))
		}
		for _, img := range m.GetImages() {
			if img.GetId() != l.images[n].ID {
				t.Fatalf("image %d is %s", n, img.GetId())
			}
			n++
		}
	}
	if n != len(l.images) || messages < 40 {
		t.Errorf("%d images in %d messages", n, messages)
	}
}

func TestStreamImagesFails(t *testing.T) {
	stream, err := dial(t, New(library{err: errors.New("the disk is gone")}, &jobs{})).StreamImages(t.Context(), &cri.StreamImagesRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if interceptors.Code(err) != codes.Unknown || !strings.Contains(err.Error(), "the disk is gone") {
		t.Error(err)
	}
}
