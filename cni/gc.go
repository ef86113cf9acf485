// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ip"
)

// minGCInterfaces is how many interfaces a pod is assumed to have at least:
// more networks may have been configured when it was attached than are now.
const minGCInterfaces = 8

// GC runs the GC verb of the networks that are new enough for it (1.1.0): the
// plugins release everything that belongs to no pod in keep. What the bridge plugin
// leaves in nftables, for want of that verb, goes with it. It must not be
// used while another runtime attaches pods to the same networks; a
// configuration can refuse it with disableGC.
func (n *Network) GC(ctx context.Context, keep []string) error {
	l := n.current(ctx)
	for _, id := range keep {
		n.begin(id) // the daemon before this one may have been killed in its DEL
	}
	ctx, cancel := context.WithTimeoutCause(ctx, n.cfg.Timeout, timeoutError(n.cfg.Timeout))
	defer cancel()
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, id := range keep {
		for i := range max(minGCInterfaces, len(l.nets)) {
			args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: id, IfName: fmt.Sprintf("eth%d", i)})
		}
	}
	var errs []error
	for _, w := range l.nets {
		if err := n.lib(nil).GCNetworkList(ctx, w.list, args); err != nil {
			errs = append(errs, fmt.Errorf("collect garbage of network %q: %w", w.list.Name, err))
		}
		if w.list.DisableGC {
			continue
		}
		if err := ip.GCIPMasqForNetwork(w.list.Name, args.ValidAttachments); err != nil {
			errs = append(errs, fmt.Errorf("collect masquerade rules of network %q: %w", w.list.Name, err))
		}
	}
	return errors.Join(errs...)
}
