// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestDefaultFileIsTheDefault(t *testing.T) {
	got, err := Parse("default.toml", DefaultText())
	if err != nil {
		t.Fatal(err)
	}
	got.origin = origin{}
	if want := Default(); !reflect.DeepEqual(got, want) {
		t.Errorf("parsing the default gives\n%+v\nwant\n%+v", got, want)
	}
}

func TestDefaultIsValid(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	empty, err := Parse("empty.toml", nil)
	if err != nil {
		t.Fatal(err)
	}
	empty.origin = origin{}
	if !reflect.DeepEqual(empty, Default()) {
		t.Error("an empty file is not the default")
	}
}

// TestDefaultFileIsComplete: every key of the structs is written in the file, set or as a comment.
func TestDefaultFileIsComplete(t *testing.T) {
	written := map[string]bool{}
	table := ""
	header := regexp.MustCompile(`^\[([^\]]+)\]$`)
	pair := regexp.MustCompile(`^(?:# )?([a-z_]+) = `)
	for _, line := range strings.Split(string(DefaultText()), "\n") {
		if m := header.FindStringSubmatch(line); m != nil {
			table = m[1]
			written[table] = true
		} else if m := pair.FindStringSubmatch(line); m != nil {
			written[join2(table, m[1])] = true
		}
	}
	for _, key := range keysOf("", reflect.TypeFor[Config]()) {
		if !written[key] {
			t.Errorf("default.toml does not mention %s", key)
		}
	}
}

func join2(table, key string) string { return strings.TrimPrefix(table+"."+key, ".") }

func keysOf(path string, typ reflect.Type) []string {
	var out []string
	for i := range typ.NumField() {
		f := typ.Field(i)
		tag := f.Tag.Get("toml")
		switch {
		case tag == "":
		case f.Type.Kind() == reflect.Struct:
			out = append(out, keysOf(join2(path, tag), f.Type)...)
		case f.Type == reflect.TypeFor[map[string]Handler]():
			out = append(out, keysOf(join2(path, tag+".runc"), f.Type.Elem())...)
		default:
			out = append(out, join2(path, tag))
		}
	}
	return out
}

func TestRefusals(t *testing.T) {
	long := "/" + strings.Repeat("x", 120)
	tests := []struct {
		name, file, text string
		want             string
	}{
		{"unknown key", "c.toml", "\n[cri]\nsoket = \"/x\"", "c.toml:3: cri.soket: unknown key (known: max_exec_per_container, max_message, socket, stream_address, stream_creation_timeout, stream_idle_timeout, stream_port)"},
		{"unknown table", "c.toml", "[crio]\nx = 1", "c.toml:1: crio: unknown key"},
		{"unknown flow", "c.toml", "[workflows.sandbox.pause]\nconcurrent = 1", "c.toml:1: workflows.sandbox.pause: unknown key"},
		{"failover of a down flow", "c.toml", "[workflows.sandbox.destroy]\nfailover = true", "c.toml:2: workflows.sandbox.destroy.failover: unknown key"},
		{"bad type", "c.toml", "[cni]\nmax_conf = \"one\"", "c.toml:2: cni.max_conf: want an integer, not the string \"one\""},
		{"bad element", "c.toml", "[cni]\nbin_dirs = [\n  \"/a\",\n  1,\n]", "c.toml:4: cni.bin_dirs[1]: want a string, not 1"},
		{"bad step", "c.toml", "[workflows.sandbox.create]\nsteps = [\n[\"files\"],\n\"network\"]", "c.toml:4: workflows.sandbox.create.steps[1]: want a list, not the string \"network\""},
		{"bad duration", "c.toml", "[cleanup]\nundo_timeout = \"soon\"", "c.toml:2: cleanup.undo_timeout: \"soon\" is not a duration"},
		{"duration as number", "c.toml", "[cleanup]\nundo_timeout = 5", "c.toml:2: cleanup.undo_timeout: want a duration"},
		{"bad size", "c.toml", "[runtime]\nmax_log_line = \"1 cow\"", "c.toml:2: runtime.max_log_line: \"1 cow\" is not a size"},
		{"syntax", "c.toml", "root = \"/a\"\nstate == 1", "c.toml:2: "},
		{"key twice", "c.toml", "root = \"/a\"\nroot = \"/b\"", "c.toml:2: "},
		{"relative path", "c.toml", "root = \"a\"", "c.toml:1: root: \"a\" is not an absolute path"},
		{"long socket", "c.toml", "[admin]\nsocket = \"" + long + "\"", "c.toml:2: admin.socket: the path has 121 bytes; this unix socket's has at most 106"},
		{"long state", "c.toml", "state = \"" + long + "\"", "c.toml:1: state: "},
		{"same socket", "c.toml", "[cri]\nsocket = \"/run/sandflow/admin.sock\"", "c.toml:2: cri.socket: is the same socket as admin.socket"},
		{"no such handler", "c.toml", "[runtime]\ndefault = \"kata\"", "c.toml:2: runtime.default: there is no runtime handler \"kata\" (known: \"runc\")"},
		{"bad level", "c.toml", "[log]\nlevel = \"loud\"", "c.toml:2: log.level: \"loud\" is not possible"},
		{"queue without limit", "c.toml", "[workflows.image.pull]\nconcurrent = 0\nqueue = 3", "c.toml:3: workflows.image.pull.queue: has no effect"},
		{"handler type", "c.toml", "[runtime.handlers.vm]\ntype = \"kata\"", "c.toml:2: runtime.handlers.vm.type: \"kata\" is neither"},
		{"root below state", "c.toml", "root = \"/run/sandflow/x\"", "c.toml: state: must not be the same directory as root"},
		{"state below root", "c.toml", "state = \"/var/lib/sandflow/x\"", "c.toml:1: state: must not be the same directory as root"},
		{"sandbox container of our own", "c.toml", "[runtime.handlers.vm]\nsandbox = \"container\"", "c.toml:2: runtime.handlers.vm.sandbox: a pod of type \"sandflow\" has no sandbox container"},
		{"plugins attached", "c.toml", "[containerd]\naddress = \"/run/c.sock\"\n[containerd.plugins.x]\na = 1", "c.toml:3: containerd.plugins: has no effect"},
		{"JSON unknown key", "c.json", "{\n\"cri\": {\n\"soket\": \"/x\"}}", "c.json:3: cri.soket: unknown key"},
		{"JSON bad type", "c.json", "{\n\"cni\": {\"max_conf\":\n true}}", "c.json:2: cni.max_conf: want an integer, not true"},
		{"JSON step", "c.json", "{\"workflows\": {\"sandbox\": {\"create\": {\"steps\": [\n[\"files\"],\n[1]]}}}}", "c.json:3: workflows.sandbox.create.steps[1][0]: want a string, not 1"},
		{"JSON key twice", "c.json", "{\"root\": \"/a\",\n\"root\": \"/b\"}", "c.json:2: root: the key is written twice"},
		{"JSON null", "c.json", "{\"root\": null}", "c.json:1: root: want a string, not null"},
		{"JSON syntax", "c.json", "{\n\"root\" 1}", "c.json:2: "},
		{"JSON cut", "c.json", "{\n\"root\": ", "c.json:2: "},
		{"JSON tail", "c.json", "{} {}", "c.json:1: there is text behind"},
		{"JSON list", "c.json", "[]", "c.json:1: the file must hold one JSON object"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse(tt.file, []byte(tt.text))
			if err == nil {
				t.Fatal("no error")
			}
			if !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("error\n%s\nwant\n%s", err, tt.want)
			}
			var e *Error
			if !errors.As(err, &e) {
				t.Errorf("error is a %T", err)
			}
		})
	}
}

func TestAllFaultsAtOnceInOrder(t *testing.T) {
	_, err := Parse("c.toml", []byte("zz = 1\nroot = 2\n[cri]\nyy = 3\nsocket = 4\n"))
	want := []string{"c.toml:1: zz", "c.toml:2: root", "c.toml:4: cri.yy", "c.toml:5: cri.socket"}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != len(want) {
		t.Fatalf("got %q", lines)
	}
	for i := range want {
		if !strings.HasPrefix(lines[i], want[i]) {
			t.Errorf("fault %d is %q, want %q", i, lines[i], want[i])
		}
	}
}

func TestLayers(t *testing.T) {
	tomlText := `
state = "/run/two"
[cri]
max_message = "32MiB"
[containerd.plugins."io.containerd.metadata.v1.bolt"]
no_sync = true
[workflows.sandbox.create]
concurrent = 7
[runtime.handlers.crun]
binary = "/usr/bin/crun"
oci_version = "1.0.2"
[cleanup]
undo_timeout = "90s"
`
	jsonText := `{"state": "/run/two", "cri": {"max_message": 33554432},
"containerd": {"plugins": {"io.containerd.metadata.v1.bolt": {"no_sync": true}}},
"workflows": {"sandbox": {"create": {"concurrent": 7}}},
"runtime": {"handlers": {"crun": {"binary": "/usr/bin/crun", "oci_version": "1.0.2"}}},
"cleanup": {"undo_timeout": "90s"}}`
	want := Default()
	want.State = "/run/two"
	want.CRI.Socket, want.Admin.Socket = "/run/two/sandflow.sock", "/run/two/admin.sock"
	want.Containerd.Socket = "/run/two/containerd.sock"
	want.CRI.MaxMessage = 32 << 20
	want.Containerd.Plugins["io.containerd.metadata.v1.bolt"] = map[string]any{"no_sync": true}
	want.Workflows.Sandbox.Create.Concurrent = 7
	want.Runtime.Handlers["crun"] = Handler{
		Type: TypeSandflow, Binary: "/usr/bin/crun", Sandbox: SandboxShim, OCIVersion: "1.0.2",
	}
	want.Cleanup.UndoTimeout = Duration(90 * time.Second)
	for file, text := range map[string]string{"c.toml": tomlText, "c.json": jsonText, "json-by-content": jsonText} {
		got, err := Parse(file, []byte(text))
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		got.origin = origin{}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s gives\n%+v\nwant\n%+v", file, got, want)
		}
	}
}

// TestJSONRoundTrip: what MarshalJSON writes is a configuration file of its own.
func TestJSONRoundTrip(t *testing.T) {
	text, err := json.Marshal(Default())
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse("c.json", text)
	if err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if string(again) != string(text) {
		t.Errorf("round trip gives\n%s\nwant\n%s", again, text)
	}
}

func TestOverrides(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(file, []byte("[admin]\nsocket = \"/run/admin.sock\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(file, Overrides{Root: "/r", State: "/s", Socket: "/x.sock"})
	if err != nil {
		t.Fatal(err)
	}
	got := []string{c.Root, c.State, c.CRI.Socket, c.Admin.Socket, c.Containerd.Socket, c.File()}
	want := []string{"/r", "/s", "/x.sock", "/run/admin.sock", "/s/containerd.sock", file}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLoadOfAMissingFile(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "none.toml"), Overrides{})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
}

func TestFaultNamesTheNearestLine(t *testing.T) {
	c, err := Parse("c.toml", []byte("[workflows.sandbox.create]\nsteps = [\n [\"files\",\n  \"namespaces\"],\n [\"network\"], [\"shim\"]]\n[[containerd.plugins.x.list]]\na = 1\n[[containerd.plugins.x.list]]\nb.c = {d = 1}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for path, line := range map[string]int{
		"workflows.sandbox.create.steps[0][1]": 4,
		"workflows.sandbox.create.steps[0]":    3,
		"workflows.sandbox.create.steps[2][0]": 5,
		"workflows.sandbox.create.queue":       1,
		"workflows.sandbox.destroy.steps":      0,
		"workflows.sandbox":                    1,
		"workflows.container":                  0,
		"containerd.plugins.x.list[0].a":       7,
		"containerd.plugins.x.list[1]":         8,
		"containerd.plugins.x.list[1].b.c.d":   9,
		"cni.conf_dir":                         0,
	} {
		if got := c.Fault(path, "").Line; got != line {
			t.Errorf("%s is at line %d, want %d", path, got, line)
		}
	}
}

func TestParentOfQuotedKeys(t *testing.T) {
	for path, want := range map[string]string{
		"a": "", "a.b": "a", "a[1]": "a", "a[1].b": "a[1]", `a."b.c"`: "a", `a."b.c".d`: `a."b.c"`, `"x"`: "", `"`: "", `"\""`: `"\`,
	} {
		if got := parent(path); got != want {
			t.Errorf("parent(%s) is %q, want %q", path, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("c.toml", DefaultText())
	f.Add("c.json", []byte(`{"workflows":{"sandbox":{"create":{"steps":[["a"]]}}}}`))
	f.Add("c.toml", []byte("[[a]]\nb=[[1],{c=2}]\n[a.d]\ne.f=1"))
	f.Fuzz(func(_ *testing.T, file string, text []byte) {
		c, err := Parse(file, text) // must not panic
		if err == nil {
			_ = c.Validate()
		}
	})
}
