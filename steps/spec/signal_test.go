// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Case 18: names with and without SIG, numbers, real-time offsets; the request wins.
func TestStopSignal(t *testing.T) {
	for _, c := range []struct {
		image   string
		request runtime.Signal
		want    string
		number  syscall.Signal
	}{
		{"", 0, "SIGTERM", 15},
		{"SIGRTMIN+3", 0, "SIGRTMIN+3", 37},
		{"37", 0, "SIGRTMIN+3", 37},
		{"RTMIN+3", 0, "SIGRTMIN+3", 37},
		{"rtmax-1", 0, "SIGRTMAX-1", 63},
		{"SIGQUIT", 0, "SIGQUIT", 3},
		{"sigterm", 0, "SIGTERM", 15},
		{"9", 0, "SIGKILL", 9},
		{"SIGIOT", 0, "SIGABRT", 6},
		{"SIGQUIT", runtime.Signal_SIGNAL_SIGUSR1, "SIGUSR1", 10},
		{"nonsense", runtime.Signal_SIGNAL_SIGRTMINPLUS3, "SIGRTMIN+3", 37},
		{"", runtime.Signal_SIGNAL_SIGRTMAXMINUS2, "SIGRTMAX-2", 62},
	} {
		got, err := StopSignal(c.image, c.request)
		if err != nil || got != c.want {
			t.Errorf("%q, %s: got %q, %v, want %q", c.image, c.request, got, err, c.want)
		}
		if n, err := ParseSignal(got); err != nil || n != c.number {
			t.Errorf("%q is number %d, %v, want %d", got, n, err, c.number)
		}
	}
}

func TestStopSignalRefused(t *testing.T) {
	for _, s := range []string{"nonsense", "0", "-1", "99", "SIG", "RTMIN+99", "SIGSIGTERM"} {
		if _, err := StopSignal(s, 0); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%q: %v", s, err)
		}
	}
	if _, err := StopSignal("", runtime.Signal(999)); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Error(err)
	}
}

// Every signal of the CRI can be sent and comes back in the status, but for aliases.
func TestSignalsOfTheCRI(t *testing.T) {
	for n := range runtime.Signal_name {
		s := runtime.Signal(n)
		name, err := StopSignal("", s)
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		if s == 0 {
			continue
		}
		a, _ := ParseSignal(name)
		b, _ := ParseSignal(requestSignal(SignalOf(name)))
		if a != b {
			t.Errorf("%s comes back as %s", s, SignalOf(name))
		}
	}
}

func FuzzParseSignal(f *testing.F) {
	for _, s := range []string{"SIGTERM", "RTMIN+3", "37", "", "-9", "SIGRTMAX-14"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSignal(s)
		if err == nil && (n < 1 || n > 64) {
			t.Errorf("%q is %d", s, n)
		}
	})
}
