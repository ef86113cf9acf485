// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// record is a line of a container's log.
type record struct {
	time   time.Time
	stream string
	full   bool
	text   string
}

// log reads a container's log and checks the form of each record.
func (n *node) log(cfg *cri.PodSandboxConfig, ctr string) []record {
	n.t.Helper()
	raw, err := os.ReadFile(filepath.Join(cfg.GetLogDirectory(), ctr+".log"))
	must(n.t, err)
	return parse(n.t, raw)
}

func parse(t *testing.T, raw []byte) []record {
	t.Helper()
	var out []record
	for line := range bytes.Lines(raw) {
		f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), " ", 4)
		if len(f) != 4 || (f[1] != "stdout" && f[1] != "stderr") || (f[2] != "F" && f[2] != "P") || !bytes.HasSuffix(line, []byte("\n")) {
			t.Fatalf("a record of the wrong form: %.100q", line)
		}
		at, err := time.Parse(time.RFC3339Nano, f[0])
		must(t, err)
		out = append(out, record{at, f[1], f[2] == "F", f[3]})
	}
	return out
}

// rebuild puts a stream together again.
func rebuild(records []record, stream string) string {
	var b strings.Builder
	for _, r := range records {
		if r.stream == stream {
			b.WriteString(r.text)
			if r.full {
				b.WriteByte('\n')
			}
		}
	}
	return b.String()
}

// TestLogIsExact prints random lines on both streams and rebuilds them from the log (CASES 22).
func TestLogIsExact(t *testing.T) {
	n := newNode(t, options{})
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(1, 2))
	want := map[string]string{}
	for _, stream := range []string{"stdout", "stderr"} {
		var b strings.Builder
		for range 200 {
			length := rng.IntN(100 << 10)
			if rng.IntN(3) > 0 {
				length = rng.IntN(100)
			}
			for range length {
				b.WriteByte(byte(' ' + rng.IntN(95)))
			}
			b.WriteByte('\n')
		}
		b.WriteString("without an end")
		want[stream] = b.String()
		must(t, os.WriteFile(filepath.Join(dir, stream), []byte(want[stream]), 0o644))
	}
	cfg := n.pod("talker")
	pod := n.run(cfg)
	c := n.ctr("talker", "sh", "-c", "cat /data/stderr >&2 & cat /data/stdout; wait")
	c.Mounts = []*cri.Mount{{HostPath: dir, ContainerPath: "/data", Readonly: true}}
	n.exited(n.started(pod, cfg, c))
	records := n.log(cfg, "talker")
	for stream, text := range want {
		// The last line has no end, yet its record must say that nothing follows.
		if got := strings.TrimSuffix(rebuild(records, stream), "\n"); got != text {
			t.Errorf("%s: %d bytes rebuilt, %d printed, different from byte %d on", stream, len(got), len(text), differ(got, text))
		}
	}
	n.remove(pod)
	n.same()
}

func differ(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// TestRotation renames and reopens a busy log many times: every line is there once, in order (CASES 23).
func TestRotation(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("busy")
	pod := n.run(cfg)
	const lines = 300000
	ctr := n.started(pod, cfg, n.ctr("busy", "sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo $i; done", lines)))
	path := filepath.Join(cfg.GetLogDirectory(), "busy.log")
	var parts []string
	for n.status(ctr).GetState() == cri.ContainerState_CONTAINER_RUNNING {
		part := fmt.Sprintf("%s.%d", path, len(parts))
		must(t, os.Rename(path, part))
		parts = append(parts, part)
		_, err := n.client.ReopenContainerLog(t.Context(), &cri.ReopenContainerLogRequest{ContainerId: ctr})
		if err != nil { // only because it has ended, which its status tells in a moment
			t.Log(err)
			n.exited(ctr)
			break
		}
		time.Sleep(30 * time.Millisecond)
	}
	n.exited(ctr)
	next := 1
	for _, part := range append(parts, path) {
		raw, err := os.ReadFile(part)
		if os.IsNotExist(err) {
			continue // the last rename came after the exit
		}
		must(t, err)
		for _, r := range parse(t, raw) {
			if got, err := strconv.Atoi(r.text); err != nil || got != next {
				t.Fatalf("%s: line %q where %d should be", filepath.Base(part), r.text, next)
			}
			next++
		}
	}
	if next != lines+1 || len(parts) < 5 {
		t.Errorf("%d lines in %d files, want %d in many", next-1, len(parts)+1, lines)
	}
	if _, err := n.client.ReopenContainerLog(t.Context(), &cri.ReopenContainerLogRequest{ContainerId: ctr}); err == nil {
		t.Error("the log of an exited container was reopened")
	}
	n.remove(pod)
	n.same()
}

// TestLogPaths are the ways in which a log may be asked for, or not (CASES 25).
func TestLogPaths(t *testing.T) {
	n := newNode(t, options{})
	for name, k := range map[string]struct{ dir, path, want string }{
		"directory missing":  {"missing/deep", "c.log", "missing/deep/c.log"},
		"path in directory":  {"there", "sub/c.log", "there/sub/c.log"},
		"only the path":      {"", "c.log", ""},
		"only the directory": {"there", "", ""},
		"neither":            {"", "", ""},
	} {
		base := t.TempDir()
		cfg := n.pod("log")
		cfg.LogDirectory = ""
		if k.dir != "" {
			cfg.LogDirectory = filepath.Join(base, k.dir)
		}
		pod := n.run(cfg)
		c := n.ctr("c", "echo", "hello")
		c.LogPath = k.path
		ctr := n.started(pod, cfg, c)
		n.exited(ctr)
		want := ""
		if k.want != "" {
			want = filepath.Join(base, k.want)
			if raw, err := os.ReadFile(want); err != nil || !strings.HasSuffix(string(raw), " stdout F hello\n") {
				t.Errorf("%s: the log is %q (%v)", name, raw, err)
			}
		}
		if got := n.status(ctr).GetLogPath(); got != want {
			t.Errorf("%s: log_path is %q, want %q", name, got, want)
		}
		n.remove(pod)
	}
	n.same()
}

// TestDaemonAway prints on while the daemon is dead: nothing blocks, nothing is lost (CASES 24).
func TestDaemonAway(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("busy")
	pod := n.run(cfg)
	const lines = 100000
	ctr := n.started(pod, cfg, n.ctr("busy", "sh", "-c",
		fmt.Sprintf("until [ -e /go ]; do sleep 0.02; done; i=0; while [ $i -lt %d ]; do i=$((i+1)); echo $i; done; echo done", lines)))
	must(t, n.daemon.Kill())
	n.touchIn("until [ -e /go ]", "/go")
	waitFor(t, "the container to print all while the daemon is away", func() bool {
		return len(n.pidsWith("until [ -e /go ]")) == 0
	})
	must(t, n.daemon.Start(t.Context()))
	n.exited(ctr)
	if got := n.log(cfg, "busy"); len(got) != lines+1 || got[lines].text != "done" {
		t.Errorf("%d lines in the log, want %d", len(got), lines+1)
	}
	n.remove(pod)
	n.same()
}
