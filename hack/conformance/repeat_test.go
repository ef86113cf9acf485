// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandflow-cri/sandflow/hack/harness"
)

// repeats is how often all specs run in each way.
const repeats = 3

// TestRepeated runs all specs again and again, one by one and several at once, and keeps how it
// went for docs/conformance.md. It takes half an hour: "make conformance-repeat".
func TestRepeated(t *testing.T) {
	l, ok := harness.Here()
	if !ok || os.Getenv("SANDFLOW_REPEAT") == "" {
		t.Skip("run \"make conformance-repeat\"")
	}
	var all []Repeat
	for _, parallel := range []int{1, 6} {
		for i := range repeats {
			t.Run(fmt.Sprintf("%d at once, run %d", parallel, i+1), func(t *testing.T) {
				all = append(all, repeat(t, l, parallel, fmt.Sprintf("repeat-%d-%d", parallel, i+1)))
			})
		}
	}
	if err := saveRepeats(all); err != nil {
		t.Error(err)
	}
}

func repeat(t *testing.T, l *harness.Lab, parallel int, name string) Repeat {
	t.Helper()
	registry, d := start(t, l, false)
	begun := time.Now()
	specs, err := Run(t.Context(), l, d, registry.Digest, Options{
		Parallel: parallel, NRISocket: d.NRI, Log: filepath.Join(l.Build, "reports", name+".log"),
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, d.Tail())
	}
	r := Repeat{Parallel: parallel, Seconds: int(time.Since(begun).Seconds())}
	expected, err := Expected()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		switch s.Outcome {
		case Passed:
			r.Passed++
		case Skipped:
			r.Skipped++
		default:
			r.Failed++
		}
		if wrong := Judge(expected, s); wrong != "" {
			t.Errorf("%s: %s", s.Name, wrong)
			r.Unexpected = append(r.Unexpected, s.Name)
		}
	}
	t.Logf("%+v", r)
	if err := d.Stop(); err != nil {
		t.Errorf("could not stop the daemon in order: %v", err)
	}
	keep(t, d.Log, filepath.Join(l.Build, "reports", name+"-daemon.log"))
	return r
}
