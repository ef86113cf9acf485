// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
	"github.com/sandflow-cri/sandflow/steps/runtime/runtimetest"
)

// recordingLab is a lab whose OCI runtime can fake dumps.
func recordingLab(t *testing.T) (*lab, *runtimetest.Recording) {
	t.Helper()
	rec, err := runtimetest.NewRecording(t.TempDir(), runtimetest.Root(t))
	if err != nil {
		t.Fatal(err)
	}
	l := newLab(t, nil)
	l.m.cfg.Handlers[""] = Handler{Type: OwnType, Binary: rec.Path}
	if l.tasks, err = l.m.Tasks(l.pod); err != nil {
		t.Fatal(err)
	}
	return l, rec
}

func (l *lab) status(id string) Status {
	l.Helper()
	s, err := l.tasks.State(l.Context(), id)
	if err != nil {
		l.Fatal(err)
	}
	return s.Status
}

func (l *lab) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// dump asks for a dump into a directory of its own.
func (l *lab) dump(ctx context.Context, id string) (dir string, err error) {
	l.Helper()
	dir = l.TempDir()
	l.must(os.Mkdir(filepath.Join(dir, "checkpoint"), 0o700))
	return dir, l.tasks.Checkpoint(ctx, CheckpointRequest{ID: id, Images: filepath.Join(dir, "checkpoint"), Work: dir})
}

func (l *lab) calls(rec *runtimetest.Recording, id string) []string {
	l.Helper()
	calls, err := rec.Calls()
	l.must(err)
	for i := range calls {
		calls[i] = strings.ReplaceAll(calls[i], " "+id+" ", " ")
	}
	return calls
}

func TestPauseAndResume(t *testing.T) {
	l, rec := recordingLab(t)
	id := l.script("sleep 1000")
	for range 2 {
		l.must(l.tasks.Pause(t.Context(), id))
		if s := l.status(id); s != StatusPaused {
			t.Fatalf("it is %s", s)
		}
	}
	for range 2 {
		l.must(l.tasks.Resume(t.Context(), id))
		if s := l.status(id); s != StatusRunning {
			t.Fatalf("it is %s", s)
		}
	}
	if got, want := l.calls(rec, id), []string{"pause running", "resume paused"}; !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
	// A frozen container can be deleted.
	l.must(l.tasks.Pause(t.Context(), id))
	l.delete(id)
	for _, err := range []error{l.tasks.Pause(t.Context(), "none"), l.tasks.Resume(t.Context(), "none")} {
		if !errdefs.IsNotFound(err) {
			t.Errorf("unknown container: %v", err)
		}
	}
}

func TestCheckpoint(t *testing.T) {
	l, rec := recordingLab(t)
	id := l.script("sleep 1000")
	l.must(l.tasks.Pause(t.Context(), id))
	dir, err := l.dump(t.Context(), id)
	l.must(err)
	if s := l.status(id); s != StatusPaused {
		t.Errorf("after the dump it is %s", s)
	}
	for _, f := range []string{"checkpoint/pages-1.img", "dump.log", "stats-dump"} {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			t.Error(err)
		}
	}
	l.must(l.tasks.Resume(t.Context(), id))
	l.must(rec.Order("checkpoint", "", "fail"))
	if _, err := l.dump(t.Context(), id); err == nil || !strings.Contains(err.Error(), "made to fail") {
		t.Errorf("a dump that fails: %v", err)
	}
	if s := l.status(id); s != StatusRunning {
		t.Errorf("after a dump that failed it is %s", s)
	}
	kept := filepath.Join(l.bundle(id), "criu-dump.log")
	if raw, err := os.ReadFile(kept); err != nil || !strings.Contains(string(raw), "made to fail") {
		t.Errorf("the log that the error names: %q, %v", raw, err)
	}
	l.must(bundle.Clean(l.bundle(id)))
	if _, err := os.Stat(kept); err == nil {
		t.Error("the log is left in the bundle")
	}
}

// TestCheckpointGivenUp has a dump that hangs, and each of the ways to end it.
func TestCheckpointGivenUp(t *testing.T) {
	for name, end := range map[string]func(l *lab, id string){
		"resume": func(l *lab, id string) { l.must(l.tasks.Resume(l.Context(), id)) },
		"kill": func(l *lab, id string) {
			l.must(l.tasks.Kill(l.Context(), id, uint32(unix.SIGKILL), false))
			l.wait(id)
		},
		"delete": func(l *lab, id string) { l.delete(id) },
	} {
		t.Run(name, func(t *testing.T) {
			l, rec := recordingLab(t)
			l.must(rec.Order("checkpoint", "", "hang"))
			id := l.script("sleep 1000")
			l.must(l.tasks.Pause(t.Context(), id))
			done := make(chan error, 1)
			go func() {
				dir := t.TempDir()
				done <- l.tasks.Checkpoint(l.Context(), CheckpointRequest{ID: id, Images: dir, Work: dir})
			}()
			for !slices.Contains(l.calls(rec, id), "checkpoint paused") {
				time.Sleep(time.Millisecond)
			}
			end(l, id)
			if err := <-done; err == nil {
				t.Error("the dump succeeded")
			}
			if name == "resume" && l.status(id) != StatusRunning {
				t.Errorf("it is %s", l.status(id))
			}
		})
	}
}

func TestCheckpointDeadline(t *testing.T) {
	l, rec := recordingLab(t)
	l.must(rec.Order("checkpoint", "", "hang"))
	id := l.script("sleep 1000")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := l.dump(ctx, id); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a dump past its deadline: %v", err)
	}
	l.must(l.tasks.Resume(t.Context(), id))
	l.must(rec.Order("checkpoint", "", ""))
	if _, err := l.dump(t.Context(), id); err != nil {
		t.Errorf("the next dump: %v", err)
	}
}

func TestRestore(t *testing.T) {
	l, rec := recordingLab(t)
	old := l.script("sleep 1000")
	dir, err := l.dump(t.Context(), old)
	l.must(err)
	from := CreateRequest{Checkpoint: filepath.Join(dir, "checkpoint")}
	id := l.create(nil, from, "sh", "-c", "echo restored; exit 7")
	if s := l.status(id); s != StatusCreated {
		t.Errorf("before its start it is %s", s)
	}
	l.must(l.tasks.Start(t.Context(), id))
	if e := l.wait(id); e.Code != 7 {
		t.Errorf("exit %+v", e)
	}
	if got, err := rec.Restored(); err != nil || !slices.Equal(got, []string{old}) {
		t.Errorf("restored %q, %v", got, err)
	}
	if raw, err := os.ReadFile(l.logPath(id)); err != nil || !strings.HasSuffix(string(raw), "stdout F restored\n") {
		t.Errorf("log %q, %v", raw, err)
	}
	l.delete(id)

	l.delete(l.create(nil, from, "true")) // never started

	l.must(rec.Order("restore", "", "fail"))
	failing := l.create(nil, from, "true")
	if err := l.tasks.Start(t.Context(), failing); err == nil || !strings.Contains(err.Error(), "made to fail") {
		t.Errorf("a restoration that fails: %v", err)
	}
	l.delete(failing)

	l.must(rec.Order("restore", "", "hang"))
	hanging := l.create(nil, from, "true")
	done := make(chan error, 1)
	go func() { done <- l.tasks.Start(l.Context(), hanging) }()
	for !slices.Contains(l.calls(rec, hanging), "restore none") {
		time.Sleep(time.Millisecond)
	}
	l.delete(hanging)
	if err := <-done; err == nil {
		t.Error("the restoration succeeded")
	}
}
