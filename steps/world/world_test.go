// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

var (
	pod  = strings.Repeat("ab12", 16)
	ctr  = strings.Repeat("0cd3", 16)
	lost = strings.Repeat("9f9e", 16)
)

func TestIDs(t *testing.T) {
	for name, want := range map[string]string{
		"": "", "eth0": "",
		"/run/pods/" + pod + "/ns/net":           pod,
		"/run/pods/" + pod + "/shim/runc/" + ctr: ctr,
		ctr + "-images":                          ctr,
		"sandflow-" + ctr + ".scope":             ctr,
		"sha256:" + pod:                          "",
		"a" + pod:                                "", // longer than an ID
		pod + "\r\neth0":                         pod,
		`comment "name: \"lab\" id: \"` + pod:    pod,
	} {
		if got := idIn(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestAssign(t *testing.T) {
	things := []Thing{
		{Kind: Mounts, ID: pod}, {Kind: Mounts, ID: ctr}, {Kind: Mounts, ID: lost}, {Kind: Mounts}, {Kind: JournalRecords, ID: pod},
	}
	for name, tt := range map[string]struct {
		before, after []Record
		nobodys       string
	}{
		"none":                         {nil, nil, "0 1 2 3 4"},
		"both":                         {[]Record{{Workflow: "sandbox", ID: pod}, {Workflow: "container", ID: ctr}}, []Record{{Workflow: "sandbox", ID: pod}, {Workflow: "container", ID: ctr}}, "2 3"},
		"one that came, one that went": {[]Record{{Workflow: "sandbox", ID: pod}}, []Record{{Workflow: "container", ID: ctr}}, "2 3"},
		"taken down meanwhile":         {[]Record{{Workflow: "sandbox", ID: pod}}, []Record{{Workflow: "sandbox", ID: pod, Reserved: true}}, "1 2 3"},
		"taken down":                   {[]Record{{Workflow: "sandbox", ID: pod, Reserved: true}}, []Record{{Workflow: "sandbox", ID: pod, Reserved: true}}, "0 1 2 3"},
	} {
		got := slices.Clone(things)
		assign(got, tt.before, tt.after)
		var found []string
		for i, x := range got {
			if x.Nobodys() {
				found = append(found, string(rune('0'+i)))
			}
		}
		if s := strings.Join(found, " "); s != tt.nobodys {
			t.Errorf("%s: nobody's are %s, want %s", name, s, tt.nobodys)
		}
	}
}

func TestSlices(t *testing.T) {
	for parent, want := range map[string]string{
		"/kubepods/burstable/pod1":          "/kubepods/burstable/pod1",
		"kubepods-burstable-pod1_2.slice":   "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice",
		"/a.slice/a-b.slice/a-b-c.slice":    "/a.slice/a-b.slice/a-b-c.slice",
		"sandflow.slice":                    "/sandflow.slice",
		"/system.slice/not-a-slice.service": "/system.slice/not-a-slice.service",
	} {
		if got := expandSlice(parent); got != want {
			t.Errorf("%s: %s, want %s", parent, got, want)
		}
	}
	l := &look{Where: Where{CgroupParent: "/pods"}, records: []Record{{Parent: "/pods/a"}, {Parent: "/kube"}, {}}}
	if got := strings.Join(l.parents(), " "); got != "/kube /pods" {
		t.Errorf("parents: %s", got)
	}
	systemd := &look{Where: Where{CgroupParent: "/sandflow-pods.slice"}}
	if got := strings.Join(systemd.parents(), " "); got != "/sandflow.slice/sandflow-pods.slice" {
		t.Errorf("the slice of pods without a parent is looked for at %s", got)
	}
	text := "12:cpu:/other/" + lost + "\n11:memory:/kube/x/" + ctr + "\n"
	if got := idOfCgroup(text, l.parents()); got != ctr {
		t.Errorf("ID of a cgroup: %q", got)
	}
}

func TestRuleOwners(t *testing.T) {
	all := []rule{
		{"POSTROUTING", `ip saddr 10.88.0.9 comment "name: \"lab\" id: \"` + pod + `\"" counter jump CNI-19260f829d52b690ddbddc6f`},
		{"CNI-19260f829d52b690ddbddc6f", "ip daddr 10.88.0.0/16 counter accept"},
		{"CNI-HOSTPORT-DNAT", `-p tcp --comment "dnat name: lab id: ` + ctr + `" -j CNI-DN-0123456789abcdef01234`},
	}
	owners, jumped := ownersOf(all)
	if owners["CNI-19260f829d52b690ddbddc6f"] != pod || owners["CNI-DN-0123456789abcdef01234"] != ctr || len(owners) != 2 || !jumped["CNI-19260f829d52b690ddbddc6f"] {
		t.Errorf("owners: %v", owners)
	}
	l := &look{networks: networks{names: map[string]bool{"lab": true}}}
	if !l.mentions(all[0].text, "") || l.mentions("name: other", "") || !l.mentions("x", pod) {
		t.Error("rules of other networks are not told apart")
	}
}

// TestList lays out what pods leave, with one that is known and one that is not.
func TestList(t *testing.T) {
	dir := t.TempDir()
	w := Where{
		State: filepath.Join(dir, "s"), Root: filepath.Join(dir, "r"), ConfDir: filepath.Join(dir, "net.d"),
		Records: func() []Record { return []Record{{Workflow: "sandbox", ID: pod}} },
	}
	leases := filepath.Join(dir, "leases")
	for path, text := range map[string]string{
		"s/lock": "", "s/pods/" + pod + "/files/hosts": "", "s/pods/" + lost + "/shim/runc/k8s.io/" + lost + "/state.json": "{}",
		"s/containers/odd/x": "", "s/tmp/x": "", "s/other/deep/x": "", "r/journal.db": "",
		"r/volumes/" + lost + "/deep/x": "", "r/networks/" + pod + ".json": `{"config": {"name": "old", "plugins": [{"type": "bridge"}]}}`,
		"r/cni/results/lab-" + lost + "-eth0": "", "r/containerd/x": "", "r/io.containerd.x/y": "",
		"net.d/1.conflist": `{"name": "lab", "plugins": [{"type": "bridge", "bridge": "br9", "ipam": {"type": "host-local", "dataDir": "` + leases + `"}}]}`,
		"net.d/2.json":     "no",
		"leases/lab/lock":  "", "leases/lab/10.0.0.1": lost + "\r\neth0", "leases/lab/10.0.0.2": pod + "\neth0", "leases/lab/last_reserved_ip.0": "",
		"leases/other/10.0.0.3": lost,
	} {
		path = filepath.Join(dir, path)
		fatal(t, os.MkdirAll(filepath.Dir(path), 0o700))
		fatal(t, os.WriteFile(path, []byte(text), 0o600))
	}
	fatal(t, unix.Mkfifo(filepath.Join(w.State, "pods", lost, "fifo"), 0o600))
	socket, err := net.Listen("unix", filepath.Join(w.State, "pods", lost, "s"))
	if err != nil { // the path is too long where tests run
		t.Log(err)
	} else {
		defer func() { _ = socket.Close() }()
	}
	things, err := Settled(t.Context(), w)
	fatal(t, err)
	var got []string
	for _, x := range Nobodys(things) {
		if x.Kind != Sockets && x.Kind != ListeningSockets {
			got = append(got, x.Kind+" "+strings.TrimPrefix(x.Name, dir+"/"))
		}
	}
	want := []string{
		"CNI cache entries r/cni/results/lab-" + lost + "-eth0",
		"OCI runtime states s/pods/" + lost + "/shim/runc/k8s.io/" + lost,
		"address leases 10.0.0.1",
		"directories r/volumes/" + lost,
		"directories s/containers/odd",
		"directories s/pods/" + lost,
		"directories s/pods/" + lost + "/shim",
		"directories s/pods/" + lost + "/shim/runc",
		"directories s/pods/" + lost + "/shim/runc/k8s.io",
		"fifos s/pods/" + lost + "/fifo",
		"files s/containers/odd/x",
		"files s/pods/" + lost + "/shim/runc/k8s.io/" + lost + "/state.json",
	}
	if !slices.Equal(got, want) {
		t.Errorf("nobody's are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	var own []string
	for _, x := range things {
		if !x.Nobodys() {
			own = append(own, x.Kind)
		}
	}
	if s := strings.Join(own, ", "); s != "address leases, directories, directories, files, files, journal records" {
		t.Errorf("the pod's are %s", s)
	}
	l := &look{Where: w.withDefaults()}
	fatal(t, l.readNetworks())
	if !l.networks.bridges["br9"] || !l.networks.bridges["cni0"] || !l.networks.names["old"] || !l.networks.addresses[leases+"/lab"] {
		t.Errorf("networks: %+v", l.networks)
	}
}

func TestListOfANodeThatHasNothing(t *testing.T) {
	things, err := List(t.Context(), Where{})
	fatal(t, err)
	if len(things) > 0 {
		t.Errorf("there are %v", things)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := List(ctx, Where{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRules reads what nft lists, but for kube-proxy's table.
func TestRules(t *testing.T) {
	got := parseNft(`table ip kube-proxy {
	chain services {
		ip daddr 10.96.0.1 drop
	}
}
table ip nat {
	chain CNI-HOSTPORT-DNAT {
		jump CNI-DN-0123456789abcdef
	}
}
`)
	want := []rule{{"CNI-HOSTPORT-DNAT", "jump CNI-DN-0123456789abcdef"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
