// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"encoding/json"
	"maps"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go/features"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/steps"
)

// askTimeout bounds one question to an OCI runtime at start.
const askTimeout = 3 * time.Second

// handlerFeatures is what the OCI runtimes of the handlers can do, asked once
// at start. mu guards the fields.
type handlerFeatures struct {
	mu    sync.Mutex
	found map[string]*runtime.RuntimeHandlerFeatures
	warn  []string
	bad   []string // published holes, see badRuntime
}

func (f *handlerFeatures) detect(ctx context.Context, c steps.Config) {
	found, warn, bad := map[string]*runtime.RuntimeHandlerFeatures{}, []string{}, []string{}
	for name, rt := range c.Runtimes {
		told, holes, err := askRuntime(ctx, rt.Binary)
		for _, hole := range holes {
			klog.FromContext(ctx).Info("Warning: an OCI runtime has a known vulnerability", "handler", name, "which", hole)
			bad = append(bad, "handler "+name+": "+hole)
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Could not ask an OCI runtime for its features", "handler", name)
			warn = append(warn, "handler "+name+": its features are unknown: "+err.Error())
		}
		found[name] = told
		if name == c.DefaultRuntime {
			found[""] = told // kubelet asks for the handler without a name
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.Sort(bad)
	f.found, f.warn, f.bad = found, warn, bad
}

// askRuntime asks an OCI runtime what it can do, and says what is known against it.
func askRuntime(ctx context.Context, binary string) (*runtime.RuntimeHandlerFeatures, []string, error) {
	told, can := &runtime.RuntimeHandlerFeatures{}, &features.Features{}
	if binary == "" {
		return told, nil, nil
	}
	err := askFeatures(ctx, binary, can)
	holes := badRuntime(ctx, binary, can)
	if err != nil {
		return told, holes, err
	}
	told.RecursiveReadOnlyMounts = slices.Contains(can.MountOptions, "rro")
	if can.Linux != nil {
		idmap := can.Linux.MountExtensions
		told.UserNamespaces = slices.Contains(can.Linux.Namespaces, "user") &&
			idmap != nil && idmap.IDMap != nil && idmap.IDMap.Enabled != nil && *idmap.IDMap.Enabled
	}
	return told, holes, nil
}

func askFeatures(ctx context.Context, binary string, can *features.Features) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "features").Output()
	if err != nil {
		return err
	}
	return json.Unmarshal(out, can)
}

func (f *handlerFeatures) handlers() []*runtime.RuntimeHandler {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []*runtime.RuntimeHandler
	for _, name := range slices.Sorted(maps.Keys(f.found)) {
		list = append(list, &runtime.RuntimeHandler{Name: name, Features: f.found[name]})
	}
	return list
}

func (f *handlerFeatures) warnings() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.warn
}

// podCIDR is what kubelet last told; mu guards it.
type podCIDR struct {
	mu    sync.Mutex
	cidrs string
}

func (p *podCIDR) set(cidrs string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cidrs = cidrs
}

func (p *podCIDR) get() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cidrs
}
