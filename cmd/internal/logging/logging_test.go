// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

func TestLevels(t *testing.T) {
	for level, want := range map[string]string{
		"error": "failed",
		"warn":  "failed careful",
		"info":  "failed careful plain",
		"debug": "failed careful plain detail",
		"trace": "failed careful plain detail everything",
	} {
		for _, format := range []string{Text, JSON} {
			var b bytes.Buffer
			l, err := New(&b, level, format)
			if err != nil {
				t.Fatal(err)
			}
			l = l.WithName("x").WithValues("sandbox", "abc")
			l.Error(errors.New("why"), "failed")
			Warn(l, "careful")
			l.Info("plain")
			l.V(4).Info("detail")
			l.V(8).Info("everything")
			for _, word := range strings.Fields("failed careful plain detail everything") {
				got, wanted := strings.Contains(b.String(), word), strings.Contains(want, word)
				if got != wanted {
					t.Errorf("level %s, %s: %q written: %v, want %v", level, format, word, got, wanted)
				}
			}
		}
	}
}

func TestCallerIsNamed(t *testing.T) {
	var b bytes.Buffer
	l, err := New(&b, "info", Text)
	if err != nil {
		t.Fatal(err)
	}
	l.Info("one")
	l.WithName("x").WithValues("k", 1).Error(nil, "two")
	Warn(l, "three")
	if err := Install(l, "info"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(klog.ClearLogger)
	klog.FromContext(t.Context()).Info("four")
	if n := strings.Count(b.String(), "logging_test.go:"); n != 4 {
		t.Errorf("%d of 4 lines name their caller:\n%s", n, b.String())
	}
}

func TestUnknownLevelAndFormat(t *testing.T) {
	if _, err := New(nil, "loud", Text); err == nil {
		t.Error("level loud is accepted")
	}
	if _, err := New(nil, "info", "xml"); err == nil {
		t.Error("format xml is accepted")
	}
}

func TestJSONLine(t *testing.T) {
	var b bytes.Buffer
	l, err := New(&b, "debug", JSON)
	if err != nil {
		t.Fatal(err)
	}
	l.V(4).Info("made", "sandbox", "abc", "n", 3)
	l.Error(errors.New("why"), "failed", "flow", "create")
	var info, failed map[string]any
	d := json.NewDecoder(&b)
	if err := errors.Join(d.Decode(&info), d.Decode(&failed)); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{"level": "debug", "msg": "made", "sandbox": "abc", "n": 3.0} {
		if info[key] != want {
			t.Errorf("%s is %v, want %v", key, info[key], want)
		}
	}
	for key, want := range map[string]any{"level": "error", "msg": "failed", "err": "why", "flow": "create"} {
		if failed[key] != want {
			t.Errorf("%s is %v, want %v", key, failed[key], want)
		}
	}
	if info["ts"] == nil {
		t.Error("no time")
	}
}

func TestInstall(t *testing.T) {
	var b bytes.Buffer
	l, err := New(&b, "debug", Text)
	if err != nil {
		t.Fatal(err)
	}
	if err := Install(l, "debug"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(klog.ClearLogger)
	klog.FromContext(t.Context()).V(5).Info("contextual")
	klog.V(5).Info("plain")
	klog.V(6).Info("noise")
	for word, want := range map[string]bool{"contextual": true, "plain": true, "noise": false} {
		if got := strings.Contains(b.String(), word); got != want {
			t.Errorf("%q written: %v, want %v", word, got, want)
		}
	}
}
