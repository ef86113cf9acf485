// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	eventsapi "github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"k8s.io/klog/v2"
)

const (
	// maxAge bounds how long a missed event can keep the picture wrong.
	maxAge = 30 * time.Second
	// settle is how long after subscribing events may still be missed.
	settle = 2 * time.Second
	// resubscribe is the pause before events are subscribed to again.
	resubscribe = 500 * time.Millisecond

	pinnedLabel = "io.cri-containerd.pinned"
	pinnedValue = "pinned"
)

// view is the picture of containerd's images that kubelet is shown. It is worked
// out from the store's records alone, when somebody looks and something changed.
type view struct {
	store *Store
	// turn is held by the one who paints; a channel, so that waiting ends with the context.
	turn    chan struct{}
	current *picture                    // guarded by turn
	parsed  map[digest.Digest]*manifest // by target, guarded by turn

	changes atomic.Uint64 // counts what may have changed
	// trusted is the time from which on no event is missed; nil: events are being missed.
	trusted atomic.Pointer[time.Time]
}

// picture is immutable.
type picture struct {
	changes uint64
	painted time.Time
	images  map[string]*entry       // by ID
	refs    map[string]string       // every name, tag and digest to ID
	broken  map[string]images.Image // records that cannot be read, by name
}

// entry is an image with its records; one that is not complete is not shown.
type entry struct {
	Image
	records  []images.Image
	complete bool
}

// manifest is what cannot change behind a target's digest.
type manifest struct {
	config digest.Digest
	size   int64
	spec   ocispec.Image
	chain  string
	layers []ocispec.Descriptor
}

func newView(s *Store) *view {
	return &view{store: s, turn: make(chan struct{}, 1), parsed: map[digest.Digest]*manifest{}}
}

// changed makes the next look paint anew.
func (v *view) changed() { v.changes.Add(1) }

// look returns the present picture.
func (v *view) look(ctx context.Context) (*picture, error) {
	select {
	case v.turn <- struct{}{}:
		defer func() { <-v.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	changes := v.changes.Load()
	if p := v.current; p != nil && p.changes == changes && time.Since(p.painted) < maxAge && v.listening() {
		return p, nil
	}
	p, err := v.paint(ctx)
	if err != nil {
		return nil, err
	}
	p.changes, p.painted = changes, time.Now()
	v.current = p
	return p, nil
}

func (v *view) listening() bool {
	since := v.trusted.Load()
	return since != nil && !time.Now().Before(*since)
}

func (v *view) paint(ctx context.Context) (*picture, error) {
	ctx = v.store.Context(ctx)
	records, err := v.store.client.ImageService().List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containerd's images: %w", err)
	}
	p := &picture{images: map[string]*entry{}, refs: map[string]string{}, broken: map[string]images.Image{}}
	parsed := make(map[digest.Digest]*manifest, len(v.parsed))
	for _, r := range records {
		m, err := v.parse(ctx, r.Target)
		switch {
		case err == nil:
			parsed[r.Target.Digest] = m
			p.add(r, m)
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errdefs.IsUnavailable(err):
			return nil, fmt.Errorf("read image %s: %w", r.Name, err)
		default:
			klog.FromContext(ctx).V(4).Info("An image's record cannot be read", "image", r.Name, "err", err) //nolint:mnd // detail
			p.broken[r.Name] = r
		}
	}
	v.parsed = parsed
	for _, e := range p.images {
		if e.complete, err = v.complete(ctx, e, parsed[e.Target.Digest]); err != nil {
			return nil, fmt.Errorf("look for the layers of image %s: %w", e.ID, err)
		}
		e.finish()
	}
	if pin := v.store.config.SandboxImage; pin != "" {
		if e, err := p.find(pin); err == nil {
			e.Pinned = true
		}
	}
	return p, nil
}

// parse reads manifest and configuration of the target for this machine's platform.
func (v *view) parse(ctx context.Context, target ocispec.Descriptor) (*manifest, error) {
	if m := v.parsed[target.Digest]; m != nil {
		cs := v.store.client.ContentStore()
		// What was read once can have been deleted since.
		if _, err := cs.Info(ctx, m.config); err != nil {
			return nil, err
		}
		if _, err := cs.Info(ctx, target.Digest); err != nil {
			return nil, err
		}
		return m, nil
	}
	return v.store.readManifest(ctx, target)
}

func (s *Store) readManifest(ctx context.Context, target ocispec.Descriptor) (*manifest, error) {
	cs := documents{s.client.ContentStore()}
	mf, err := images.Manifest(ctx, cs, target, platforms.Default())
	if err != nil {
		return nil, err
	}
	b, err := content.ReadBlob(ctx, cs, mf.Config)
	if err != nil {
		return nil, err
	}
	m := &manifest{config: mf.Config.Digest, size: target.Size + mf.Config.Size, layers: mf.Layers}
	if err := json.Unmarshal(b, &m.spec); err != nil {
		return nil, fmt.Errorf("image configuration %s: %w", mf.Config.Digest, err)
	}
	for _, l := range mf.Layers {
		m.size += l.Size
	}
	m.chain = identity.ChainID(m.spec.RootFS.DiffIDs).String()
	return m, nil
}

// complete says whether a container can be made of the image: it is unpacked, or can be.
func (v *view) complete(ctx context.Context, e *entry, m *manifest) (bool, error) {
	if m.chain == "" {
		return true, nil
	}
	_, err := v.store.client.SnapshotService(v.store.config.Snapshotter).Stat(ctx, m.chain)
	if err == nil || !errdefs.IsNotFound(err) {
		return err == nil, err
	}
	cs := v.store.client.ContentStore()
	for _, l := range m.layers {
		if _, err := cs.Info(ctx, l.Digest); errdefs.IsNotFound(err) {
			klog.FromContext(ctx).V(4).Info("An image lacks a layer", "image", e.ID, "layer", l.Digest) //nolint:mnd // detail
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	return true, nil
}

// image is the part of an Image that follows from the target.
func (m *manifest) image(target ocispec.Descriptor) Image {
	return Image{
		ID: m.config.String(), Target: target, Size: m.size, Spec: m.spec, ChainID: m.chain, Labels: map[string]string{},
	}
}

func (p *picture) add(r images.Image, m *manifest) {
	id := m.config.String()
	e := p.images[id]
	if e == nil {
		e = &entry{Image: m.image(r.Target)}
		p.images[id] = e
	}
	e.records = append(e.records, r)
	e.Names = append(e.Names, r.Name)
	maps.Copy(e.Labels, r.Labels)
	e.Pinned = e.Pinned || r.Labels[pinnedLabel] == pinnedValue
	p.refs[r.Name] = id
	tag, dgst, ok := repoNames(r.Name, r.Target.Digest)
	if !ok {
		return
	}
	p.refs[dgst] = id
	e.RepoDigests = append(e.RepoDigests, dgst)
	if tag != "" {
		p.refs[tag] = id
		e.RepoTags = append(e.RepoTags, tag)
	}
}

func (e *entry) finish() {
	for _, l := range []*[]string{&e.Names, &e.RepoTags, &e.RepoDigests} {
		slices.Sort(*l)
		*l = slices.Compact(*l)
	}
}

// find finds an image by any reference, complete or not.
func (p *picture) find(ref string) (*entry, error) {
	if e := p.images[ref]; e != nil {
		return e, nil
	}
	if id, ok := p.refs[ref]; ok {
		return p.images[id], nil
	}
	if named, err := normalize(ref); err == nil {
		if id, ok := p.refs[named.String()]; ok {
			return p.images[id], nil
		}
	}
	digits, ok := idPrefix(ref)
	if !ok {
		return nil, fmt.Errorf("image %q: %w", ref, errdefs.ErrNotFound)
	}
	var found *entry
	for id, e := range p.images {
		if !strings.HasPrefix(strings.TrimPrefix(id, string(digest.SHA256)+":"), digits) {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("image %q: several images' IDs begin so: %w", ref, errdefs.ErrNotFound)
		}
		found = e
	}
	if found == nil {
		return nil, fmt.Errorf("image %q: %w", ref, errdefs.ErrNotFound)
	}
	return found, nil
}

// follow watches containerd's events until ctx ends.
func (v *view) follow(ctx context.Context) {
	for ctx.Err() == nil {
		v.followOnce(ctx)
		v.trusted.Store(nil)
		select {
		case <-ctx.Done():
		case <-time.After(resubscribe):
		}
	}
}

func (v *view) followOnce(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, errs := v.store.client.EventService().Subscribe(ctx,
		`topic~="^/images/"`, `topic=="/content/delete"`, `topic=="/snapshot/remove",event.key~="^sha256:"`)
	since := time.Now().Add(settle)
	v.trusted.Store(&since)
	for {
		select {
		case e := <-events:
			v.event(e)
		case err := <-errs:
			if err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Lost containerd's events; will subscribe again")
			}
			return
		}
	}
}

func (v *view) event(e *eventsapi.Envelope) {
	if e != nil && e.Namespace == v.store.config.Namespace {
		v.changed()
	}
}
