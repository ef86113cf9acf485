// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package world lists everything that the runtime can leave on a node, each
// thing with the pod or container whose record it belongs to, or none. It only
// looks; what it finds is removed by the actions' undo and sweep.
package world

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"

	"github.com/sandflow-cri/sandflow/steps"
)

// The kinds of things.
const (
	NamespacePins        = "namespace pins"
	Mounts               = "mounts"
	Links                = "network links"
	Rules                = "firewall rules"
	Addresses            = "address leases"
	Files                = "files"
	Directories          = "directories"
	Sockets              = "sockets"
	FIFOs                = "fifos"
	RuntimeStates        = "OCI runtime states"
	CacheEntries         = "CNI cache entries"
	ListeningSockets     = "unix sockets"
	Cgroups              = "cgroups"
	Shims                = "shims"
	Inits                = "inits"
	Processes            = "processes"
	Snapshots            = "snapshots"
	SnapshotDirectories  = "snapshot directories"
	Leases               = "containerd leases"
	LeasedContent        = "leased content"
	ContainerdContainers = "containerd containers"
	ContainerdSandboxes  = "containerd sandboxes"
	JournalRecords       = "journal records"
)

// Thing is one thing on the node.
type Thing struct {
	Kind, Name string
	// ID is the pod or container whose name the thing bears; empty if it bears none.
	ID string
	// Record is the workflow of the record of that ID; empty if there is none.
	Record string
	// Behind says that there is a record, but of a pod that has been taken down
	// and must hold nothing but that record.
	Behind bool
}

// Nobodys says that no record answers for the thing.
func (t Thing) Nobodys() bool { return t.Record == "" || t.Behind }

// Record is a pod or container that is known.
type Record struct {
	Workflow, ID, Name string
	// Parent is the pod's cgroup parent as the request has it; empty is the default.
	Parent string
	// Reserved says that all of it has been undone but the record itself.
	Reserved bool
}

// Where says where to look. What is left empty is left out.
type Where struct {
	// State and Root are the daemon's directories.
	State, Root string
	// ContainerdState and ContainerdRoot are those of an embedded containerd,
	// which come and go on their own; defaults are the directories "containerd" in them.
	ContainerdState, ContainerdRoot string
	// Shim is the absolute path of our shim.
	Shim string
	// CgroupParent is the default parent of pods. Those of records are looked at too.
	CgroupParent string
	// ConfDir has CNI's configurations; those that pods were attached with are in Root.
	ConfDir string
	// AddressDirs are more data directories of host-local than the configurations name.
	AddressDirs []string
	// Client is containerd's, Namespace what pods' things are in (default k8s.io),
	// Snapshotters those that handlers use (default overlayfs).
	Client       *containerd.Client
	Namespace    string
	Snapshotters []string
	// Records gives what is known. It is called twice, before and after looking.
	Records func() []Record
	// Node lists also what cannot be told from other programs' things: all
	// mounts, links, rules, processes and leases. It is for nodes that have
	// nothing but this runtime, as those of tests.
	Node bool
}

// look is one look at the node.
type look struct {
	Where
	records  []Record // as before
	networks networks
	things   []Thing
}

func (l *look) add(kind, name, id string) {
	l.things = append(l.things, Thing{Kind: kind, Name: name, ID: id})
}

type collector func(ctx context.Context, l *look) error

var collectors = []collector{
	mounts, links, rules, addresses, files, cgroups, processes, listening, leases, snapshots, foreign, journal,
}

// List looks at the node as it is now. What comes or goes meanwhile may be told
// wrongly; Settled looks twice. What could not be looked at is in the error, the
// rest is listed all the same.
func List(ctx context.Context, w Where) ([]Thing, error) {
	l := &look{Where: w.withDefaults()}
	if l.Records != nil {
		l.records = l.Records()
	}
	var errs []error
	errs = append(errs, l.readNetworks())
	for _, c := range collectors {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		errs = append(errs, c(ctx, l))
	}
	after := l.records
	if l.Records != nil {
		after = l.Records()
	}
	assign(l.things, l.records, after)
	slices.SortStableFunc(l.things, func(a, b Thing) int {
		if c := strings.Compare(a.Kind, b.Kind); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	if err := errors.Join(errs...); err != nil {
		return l.things, fmt.Errorf("look at what is on the node: %w", err)
	}
	return l.things, nil
}

func (w Where) withDefaults() Where {
	if w.ContainerdState == "" && w.State != "" {
		w.ContainerdState = w.State + "/containerd"
	}
	if w.ContainerdRoot == "" && w.Root != "" {
		w.ContainerdRoot = w.Root + "/containerd"
	}
	if w.Namespace == "" {
		w.Namespace = "k8s.io"
	}
	if len(w.Snapshotters) == 0 {
		w.Snapshotters = []string{"overlayfs"}
	}
	return w
}

// assign finds the record of each thing. A record that was there before or
// after answers for what was seen between; one that was Reserved must have been
// so all the time to answer for nothing.
func assign(things []Thing, before, after []Record) {
	known := map[string]Record{}
	for _, r := range before {
		known[r.ID] = r
	}
	for _, r := range after {
		was, ok := known[r.ID]
		r.Reserved = r.Reserved && ok && was.Reserved
		known[r.ID] = r
	}
	for i := range things {
		t := &things[i]
		r, ok := known[t.ID]
		if !ok {
			continue
		}
		t.Record = r.Workflow
		t.Behind = r.Reserved && t.Kind != JournalRecords
	}
}

// Nobodys are the things that no record answers for.
func Nobodys(things []Thing) []Thing {
	var out []Thing
	for _, t := range things {
		if t.Nobodys() {
			out = append(out, t)
		}
	}
	return out
}

// pause is how long things on their way may take to be gone, or to be known.
const pause = 300 * time.Millisecond

// Settled is List, but what no record answers for is only told if that is so
// twice, a moment apart: it is no one's, and not just coming or going.
func Settled(ctx context.Context, w Where) ([]Thing, error) {
	first, err := List(ctx, w)
	if err != nil || len(Nobodys(first)) == 0 {
		return first, err
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
	}
	second, err := List(ctx, w)
	sure := both(Nobodys(first), second)
	return slices.DeleteFunc(second, func(t Thing) bool { return t.Nobodys() && !slices.Contains(sure, t) }), err
}

// both are the things that two lists have in common.
func both(a, b []Thing) []Thing {
	have := map[Thing]bool{}
	for _, t := range a {
		have[t] = true
	}
	var out []Thing
	for _, t := range b {
		if have[t] {
			out = append(out, t)
		}
	}
	return out
}

// journal lists the records themselves.
func journal(_ context.Context, l *look) error {
	for _, r := range l.records {
		l.add(JournalRecords, r.Workflow+"/"+r.ID, r.ID)
	}
	return nil
}

// idPattern is an ID as the CRI server makes them; idLength is how long one is.
var idPattern = regexp.MustCompile(`(^|[^0-9a-f:])([0-9a-f]{64})($|[^0-9a-f])`)

// idIn finds the last ID in a name or path: that of a container rather than of
// its pod. Digests (sha256:…) are none.
func idIn(s string) string {
	id := ""
	for s != "" {
		m := idPattern.FindStringSubmatchIndex(s)
		if m == nil {
			break
		}
		id = s[m[4]:m[5]]
		s = s[m[5]:]
	}
	return id
}

// below says whether path is in dir, or dir itself.
func below(path, dir string) bool {
	return dir != "" && (path == dir || strings.HasPrefix(path, dir+"/"))
}

// Pod and container directories, as steps.Config names them.
func podNetNS(state, id string) string {
	return steps.Config{State: state}.PodDir(id) + "/ns/net"
}
