// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
)

// grace is the grace period of a stop in which the clock is set.
const grace = 4 * time.Second

// TestClock sets the wall clock of the daemon and its shims while all kinds of things go on
// that have to do with time. They are built with an overlay of package time ("make clock").
func TestClock(t *testing.T) {
	if !full() {
		t.Skip("only in \"make crash\": it needs all of Go's library built anew")
	}
	n := newNode(t, "", func(d *harness.Daemon) {
		l, _ := harness.Here()
		dir := l.Bin("clock")
		if _, err := os.Stat(filepath.Join(dir, "sandflowd-faults")); err != nil {
			t.Fatalf("run \"make clock\": %v", err)
		}
		raw, err := os.ReadFile(d.Command[2])
		must(t, err)
		shim := podPrograms[0]
		text := strings.ReplaceAll(string(raw), l.Bin(shim), filepath.Join(dir, shim))
		must(t, os.WriteFile(d.Command[2], []byte(text), 0o644))
		d.Command[0] = filepath.Join(dir, "sandflowd-faults")
	})
	t.Cleanup(func() { _ = os.Remove(filepath.Join(n.lab.Dir, "clock")) })
	now := time.Duration(0)
	for _, j := range []struct {
		name string
		by   time.Duration
	}{
		{"one hour forward", time.Hour}, {"two hours back", -2 * time.Hour},
		{"400 days forward", 400 * 24 * time.Hour}, {"400 days back", -400 * 24 * time.Hour},
	} {
		n.try(j.name, func() { n.jump(j.name, now, now+j.by) })
		now += j.by
	}
}

// setClock sets it so much before or after the true time, and waits until that is seen.
func (n *node) setClock(off time.Duration) {
	n.t.Helper()
	path := filepath.Join(n.lab.Dir, "clock")
	must(n.t, os.WriteFile(path+".new", []byte(strconv.Itoa(int(off/time.Second))), 0o644))
	must(n.t, os.Rename(path+".new", path))
	n.waitFor("the daemon's clock", func() bool { return n.sees(off) })
}

// sees asks the daemon for its time.
func (n *node) sees(off time.Duration) bool {
	n.t.Helper()
	r, err := n.client.ImageFsInfo(n.t.Context(), &cri.ImageFsInfoRequest{})
	must(n.t, err)
	at := time.Unix(0, r.GetImageFilesystems()[0].GetTimestamp())
	return time.Until(at.Add(-off)).Abs() < time.Minute
}

// jump sets the clock from one offset to another.
func (n *node) jump(name string, from, to time.Duration) {
	n.t.Helper()
	n.setClock(from)
	events := n.events()
	busy, ends, deaf, stuck := n.life(""), n.life(""), n.life(""), n.life("")
	for _, l := range []*life{ends, deaf, stuck} {
		l.config.PortMappings = nil
	}
	busy.ctr.Command = []string{"sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"}
	ends.ctr.Command = []string{"sh", "-c", "trap 'exit 7' TERM; while sleep 0.02; do :; done"}
	deaf.ctr.Command = []string{"sh", "-c", "trap '' TERM; while sleep 0.02; do :; done"}
	for _, l := range []*life{busy, ends, deaf, stuck} {
		must(n.t, l.span(0, 3))
	}
	n.fault("undo:network=fail")
	_ = stuck.do(stages[5])
	n.waitFor("what is stuck", func() bool { _, s := n.flows(); return len(s) == 1 })
	begun := time.Now()
	giveUp := deaf.beginStop(grace)
	n.waitFor("the end of the rate of before", func() bool { return busy.rate() > 0 })
	n.setClock(to)
	giveUp()
	deaf.stopWithin(grace)
	took := time.Since(begun)
	if took < grace-100*time.Millisecond || took > grace+patience/2 {
		n.t.Errorf("a stop with a grace of %s took %s", grace, took)
	}
	ends.stopWithin(patience)
	ends.endsInOrder(7, to)
	deaf.endsInOrder(137, to)
	n.waitFor("a rate of the CPU", func() bool { return busy.rate() > 0 })
	if age := n.oldest("sandbox"); age > patience.Seconds() {
		n.t.Errorf("by the metric it has been stuck for %.0f s", age)
	}
	lifted := time.Now()
	n.fault()
	n.noStuck()
	retried := time.Since(lifted)
	if retried > maxBackoff+undoTimeout {
		n.t.Errorf("it was tried again after %s", retried)
	}
	deaf.next()
	must(n.t, n.daemon.Kill())
	must(n.t, n.daemon.Start(n.t.Context()))
	if found := busy.state(); found != "running" {
		n.t.Errorf("after a restart it is %s", found)
	}
	busy.counts()
	told := events()
	for _, l := range []*life{busy, ends, deaf, stuck} {
		n.retire(l)
	}
	n.setClock(to)
	n.healthy()
	n.same()
	report("clock", name, retried.Round(10*time.Millisecond).String(), took.Round(10*time.Millisecond).String(),
		"in order, code and time right", "later than the one before", fmt.Sprintf("%d, in order", told))
}

// beginStop asks for the container's stop, and gives the way to give that up.
func (l *life) beginStop(grace time.Duration) (giveUp func()) {
	ctx, cancel := l.context()
	done := make(chan error, 1)
	go func() { done <- l.askToStop(ctx, grace) }()
	return func() {
		l.n.t.Helper()
		cancel()
		if err := <-done; err != nil && status.Code(err) != codes.Canceled {
			l.n.t.Errorf("a stop that was given up: %v", err)
		}
	}
}

// stopWithin stops the container.
func (l *life) stopWithin(grace time.Duration) {
	l.n.t.Helper()
	ctx, cancel := l.context()
	defer cancel()
	if err := l.askToStop(ctx, grace); err != nil {
		l.n.t.Error(err)
	}
}

func (l *life) askToStop(ctx context.Context, grace time.Duration) error {
	_, err := l.n.client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: l.id, Timeout: int64(grace / time.Second)})
	return err
}

// endsInOrder checks what is told of a container that was started before the clock was set and
// has ended since.
func (l *life) endsInOrder(code int32, off time.Duration) {
	l.n.t.Helper()
	ctx, cancel := l.context()
	defer cancel()
	r, err := l.n.client.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: l.id})
	must(l.n.t, err)
	s := r.GetStatus()
	if s.GetExitCode() != code || s.GetStartedAt() == 0 || s.GetStartedAt() > s.GetFinishedAt() {
		l.n.t.Errorf("exit code %d (want %d), started %d, finished %d", s.GetExitCode(), code, s.GetStartedAt(), s.GetFinishedAt())
	}
	if at := time.Unix(0, s.GetFinishedAt()); time.Until(at.Add(-off)).Abs() > time.Minute {
		l.n.t.Errorf("it is said to have ended at %s, with the clock %s off", at, off)
	}
}

// rate is what the container uses of the CPU; 0 is not known.
func (l *life) rate() uint64 {
	l.n.t.Helper()
	r, err := l.n.client.ContainerStats(l.n.t.Context(), &cri.ContainerStatsRequest{ContainerId: l.id})
	must(l.n.t, err)
	return r.GetStats().GetCpu().GetUsageNanoCores().GetValue()
}

// next makes another sandbox of the same pod, with the same container, and checks that kubelet
// takes them for the newest.
func (l *life) next() {
	l.n.t.Helper()
	old, oldCtr := l.pod, l.id
	must(l.n.t, l.do(stages[5]))
	l.config.Metadata.Attempt++
	l.ctr.Metadata.Attempt++
	must(l.n.t, l.span(0, 3))
	created := map[string]int64{}
	pods, err := l.n.client.ListPodSandbox(l.n.t.Context(), &cri.ListPodSandboxRequest{})
	must(l.n.t, err)
	for _, p := range pods.GetItems() {
		created[p.GetId()] = p.GetCreatedAt()
	}
	ctrs, err := l.n.client.ListContainers(l.n.t.Context(), &cri.ListContainersRequest{})
	must(l.n.t, err)
	for _, c := range ctrs.GetContainers() {
		created[c.GetId()] = c.GetCreatedAt()
	}
	if created[l.pod] <= created[old] || created[l.id] <= created[oldCtr] {
		l.n.t.Errorf("created: sandbox %d after %d, container %d after %d", created[l.pod], created[old], created[l.id], created[oldCtr])
	}
	_, err = l.n.client.RemovePodSandbox(l.n.t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: old})
	must(l.n.t, err)
}

// counts checks that the numbers in the log are all there, each once and in order.
func (l *life) counts() {
	l.n.t.Helper()
	raw, err := os.ReadFile(filepath.Join(l.config.GetLogDirectory(), l.ctr.GetLogPath()))
	must(l.n.t, err)
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	for i, line := range lines {
		f := strings.Fields(line)
		if len(f) != 4 || f[3] != strconv.Itoa(i+1) {
			l.n.t.Fatalf("line %d of the log is %q", i+1, line)
		}
		if _, err := time.Parse(time.RFC3339Nano, f[0]); err != nil {
			l.n.t.Fatal(err)
		}
	}
}

// events collects those of containers; what it gives ends that, checks their order and says how
// many there were.
func (n *node) events() func() int {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	stream, err := n.client.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	must(n.t, err)
	var times []int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			e, err := stream.Recv()
			if err != nil {
				if !errors.Is(err, io.EOF) && ctx.Err() == nil && len(times) == 0 {
					n.t.Error(err)
				}
				return // also when the daemon is killed
			}
			times = append(times, e.GetCreatedAt())
		}
	})
	return func() int {
		cancel()
		wg.Wait()
		for i := range times[1:] {
			if times[i+1] < times[i] { // two of one change have the same
				n.t.Errorf("event %d is of %d, the one before of %d", i+1, times[i+1], times[i])
			}
		}
		return len(times)
	}
}
