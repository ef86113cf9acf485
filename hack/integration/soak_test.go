// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/hack/harness"
)

const (
	// soakRounds are the pod lives, and the execs, unless SANDFLOW_SOAK says another number.
	soakRounds = 60
	// soakWorkers live at the same time.
	soakWorkers = 3
	// soakSamples is how often the daemon is measured on the way.
	soakSamples = 5
)

// figures are what a daemon takes of the machine while it has nothing to do. Sizes are in KiB.
type figures struct {
	goroutines, files, heap, rss int
	shimFiles, shimRSS           int
}

// String implements fmt.Stringer.
func (f figures) String() string {
	return fmt.Sprintf("%4d goroutines, %4d files, heap %6d KiB, RSS %6d KiB; shim: %3d files, RSS %6d KiB",
		f.goroutines, f.files, f.heap, f.rss, f.shimFiles, f.shimRSS)
}

// TestSoak runs many pods, and many sessions whose clients go away, and measures the daemon,
// and the shim of a pod that stays: both are as they were. Case 33 and all of the leaks.
func TestSoak(t *testing.T) {
	klog.SetLogger(logr.Discard()) // the clients complain of being cut
	t.Cleanup(klog.ClearLogger)
	rounds := soakRounds
	if s := os.Getenv("SANDFLOW_SOAK"); s != "" {
		var err error
		rounds, err = strconv.Atoi(s)
		must(t, err)
	}
	s := newSoak(t)
	s.run(soakRounds / 3) // caches fill
	samples := []figures{s.measure(func(figures) bool { return true })}
	t.Logf("%4d lives and execs: %s", 0, samples[0])
	for i := range soakSamples {
		done := rounds * i / soakSamples
		next := rounds * (i + 1) / soakSamples
		s.run(next - done)
		samples = append(samples, s.measure(func(now figures) bool { return samples[0].holds(now, next) }))
		t.Logf("%4d lives and execs: %s", next, samples[i+1])
	}
	if last := samples[soakSamples]; !samples[0].holds(last, rounds) {
		t.Errorf("the daemon grows: it has %s, and had %s", last, samples[0])
		s.dump()
	}
	s.node.exec(s.ctr, "true")
	s.node.remove(s.pod)
	s.node.same()
}

// holds tells whether the figures after some more rounds are as good as these. Some things come
// and go, and memory that was freed is not all given back; what is lost in each round shows all
// the same. The timeline of the last thousand pods and containers is kept on purpose; terminals of
// past execs the shim's library leaves to the garbage collector to close.
func (f figures) holds(later figures, rounds int) bool {
	const few, terminals, heap, rss, remembered, story = 3, 24, 1 << 10, 16 << 10, 500, 7
	return later.goroutines <= f.goroutines+few && later.files <= f.files+few && later.shimFiles <= f.shimFiles+terminals &&
		later.heap <= f.heap+heap+story*min(rounds, remembered) && later.rss <= f.rss+rss && later.shimRSS <= f.shimRSS+rss
}

// soak is a node with a pod that stays, into which sessions go.
type soak struct {
	node     *node
	address  string
	cfg      *cri.PodSandboxConfig
	pod, ctr string
	shim     int

	mu   sync.Mutex
	next int
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	s := &soak{address: l.Addr().String()}
	must(t, l.Close())
	extra := fmt.Sprintf("[metrics]\naddress = %q\n", s.address)
	s.node = newNode(t, options{Options: harness.Options{Extra: extra, LogLevel: "info"}})
	s.cfg = s.node.pod("stays")
	s.pod = s.node.run(s.cfg)
	cat := s.node.ctr("cat", "sh", "-c", "while sleep 0.01; do echo line; done")
	cat.Stdin = true
	s.ctr = s.node.started(s.pod, s.cfg, cat)
	s.shim = s.node.pidsWith(s.pod)[0]
	return s
}

// run does as many pod lives, and as many sessions.
func (s *soak) run(rounds int) {
	s.node.t.Helper()
	todo := make(chan int)
	var wg sync.WaitGroup
	for range soakWorkers {
		wg.Go(func() {
			for i := range todo {
				if err := s.life(i); err != nil {
					s.node.t.Errorf("pod %d: %v", i, err)
				}
				if err := s.session(i); err != nil {
					s.node.t.Errorf("session %d: %v", i, err)
				}
			}
		})
	}
	for range rounds {
		s.mu.Lock()
		s.next++
		i := s.next
		s.mu.Unlock()
		todo <- i
	}
	close(todo)
	wg.Wait()
	if s.node.t.Failed() {
		s.node.t.FailNow()
	}
}

// life runs a pod with a container that ends by itself, or is stopped.
func (s *soak) life(i int) error {
	n, ctx := s.node, s.node.t.Context()
	cfg := n.pod(fmt.Sprintf("soak-%d", i))
	pod, err := n.tryRun(ctx, cfg, "")
	if err != nil {
		return err
	}
	command := []string{"echo", "a line"}
	if i%2 == 0 {
		command = []string{"sleep", "1000"}
	}
	ctr, err := n.tryCreate(ctx, pod, cfg, n.ctr("c", command...))
	if err == nil {
		err = n.tryStart(ctx, ctr)
	}
	if err != nil {
		return err
	}
	if i%3 == 0 { // else the pod's end is its end
		if _, err := n.client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: ctr}); err != nil {
			return err
		}
	}
	if _, err := n.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		return err
	}
	_, err = n.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod})
	return err
}

// session opens one of the kinds of sessions; its client goes away in the middle.
func (s *soak) session(i int) error {
	ctx, cancel := context.WithCancel(s.node.t.Context())
	defer cancel()
	c := s.node.client
	switch i % 5 {
	case 0: // a call that is given up
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		_, err := c.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: s.ctr, Cmd: []string{"sleep", "4713"}})
		if err == nil {
			return fmt.Errorf("a command that sleeps ended")
		}
		return nil
	case 1: // a URL that is not used
		_, err := c.Exec(ctx, &cri.ExecRequest{ContainerId: s.ctr, Cmd: []string{"cat"}, Stdin: true, Stdout: true})
		return err
	case 2:
		r, err := c.Attach(ctx, &cri.AttachRequest{ContainerId: s.ctr, Stdin: true, Stdout: true, Stderr: true})
		if err != nil {
			return err
		}
		return cut(ctx, cancel, r.GetUrl(), i%2 == 0, remotecommand.StreamOptions{Stderr: io.Discard})
	case 3:
		r, err := c.Exec(ctx, &cri.ExecRequest{
			ContainerId: s.ctr, Cmd: []string{"sh", "-c", "yes & cat"}, Stdin: true, Stdout: true, Stderr: true,
		})
		if err != nil {
			return err
		}
		return cut(ctx, cancel, r.GetUrl(), i%2 == 0, remotecommand.StreamOptions{Stderr: io.Discard})
	default:
		r, err := c.Exec(ctx, &cri.ExecRequest{ContainerId: s.ctr, Cmd: []string{"sh", "-c", "echo x; cat"}, Stdin: true, Stdout: true, Tty: true})
		if err != nil {
			return err
		}
		return cut(ctx, cancel, r.GetUrl(), i%2 == 0, remotecommand.StreamOptions{Tty: true})
	}
}

// first calls a function when it is written to for the first time.
type first struct {
	once sync.Once
	then func()
}

// Write implements io.Writer.
func (f *first) Write(p []byte) (int, error) {
	f.once.Do(f.then)
	return len(p), nil
}

// cut opens a session with stdin and stdout, and goes away at the first output.
func cut(ctx context.Context, cancel context.CancelFunc, url string, websocket bool, o remotecommand.StreamOptions) error {
	in, typed := io.Pipe()
	defer func() { _ = typed.Close() }()
	seen := false
	o.Stdin, o.Stdout = in, &first{then: func() { seen = true; cancel() }}
	var err error
	if websocket {
		var e remotecommand.Executor
		e, err = remotecommand.NewWebSocketExecutor(&rest.Config{}, http.MethodGet, url)
		if err == nil {
			err = e.StreamWithContext(ctx, o)
		}
	} else {
		err = stream(ctx, url, o)
	}
	if !seen {
		return fmt.Errorf("no output: %w", err)
	}
	return nil
}

// measure waits until the daemon is done with what was asked of it, or a while.
func (s *soak) measure(good func(figures) bool) figures {
	s.node.t.Helper()
	waitFor(s.node.t, "the sessions' commands to end", func() bool {
		return len(s.node.pidsWith("sleep\x004713"))+len(s.node.pidsWith("yes & cat"))+len(s.node.pidsWith("echo x; cat")) == 0
	})
	for deadline := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		if f := s.now(); good(f) || time.Now().After(deadline) {
			return f
		}
	}
}

var (
	goroutineTotal = regexp.MustCompile(`goroutine profile: total (\d+)`)
	heapAlloc      = regexp.MustCompile(`# HeapAlloc = (\d+)`)
	vmRSS          = regexp.MustCompile(`VmRSS:\s+(\d+) kB`)
)

func (s *soak) now() figures {
	n := s.node
	n.t.Helper()
	return figures{
		heap:       s.number(heapAlloc, s.pprof("heap?gc=1&debug=1")) >> 10,
		goroutines: s.number(goroutineTotal, s.pprof("goroutine?debug=1")),
		files:      n.files(n.daemon.PID()),
		rss:        s.rss(n.daemon.PID()),
		shimFiles:  n.files(s.shim),
		shimRSS:    s.rss(s.shim),
	}
}

func (s *soak) rss(pid int) int {
	s.node.t.Helper()
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	must(s.node.t, err)
	return s.number(vmRSS, string(raw))
}

func (s *soak) number(pattern *regexp.Regexp, text string) int {
	s.node.t.Helper()
	found := pattern.FindStringSubmatch(text)
	if found == nil {
		s.node.t.Fatalf("no %s in %.200q", pattern, text)
	}
	v, err := strconv.Atoi(found[1])
	must(s.node.t, err)
	return v
}

func (s *soak) pprof(what string) string {
	s.node.t.Helper()
	req, err := http.NewRequestWithContext(s.node.t.Context(), http.MethodGet, "http://"+s.address+"/debug/pprof/"+what, http.NoBody)
	must(s.node.t, err)
	req.Close = true // a connection kept would be counted
	r, err := http.DefaultClient.Do(req)
	must(s.node.t, err)
	raw, err := io.ReadAll(r.Body)
	must(s.node.t, err)
	must(s.node.t, r.Body.Close())
	return string(raw)
}

// dump keeps what the daemon is doing and what it holds, for the reader of the failure.
func (s *soak) dump() {
	n := s.node
	reports := filepath.Join(n.lab.Build, "reports")
	must(n.t, os.MkdirAll(reports, 0o755))
	for file, what := range map[string]string{"soak-goroutines.txt": "goroutine?debug=1", "soak-heap.txt": "heap?gc=1&debug=1"} {
		must(n.t, os.WriteFile(filepath.Join(reports, file), []byte(s.pprof(what)), 0o644))
	}
	n.t.Logf("open files: %v, of the shim: %v; see soak-*.txt in %s", n.kinds(n.daemon.PID()), n.kinds(s.shim), reports)
}
