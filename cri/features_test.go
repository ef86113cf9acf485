// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandflow-cri/sandflow/steps"
)

// ociRuntime is a program that says of itself what an OCI runtime does when asked for its features.
func ociRuntime(t *testing.T, features string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "oci")
	script := "#!/bin/sh\n[ \"$1\" = features ] || { echo 'other version 1.0.0'; exit 0; }\n" + features + "\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// Kubelet is told what each handler's OCI runtime says that it can do, and nothing else; the
// default one also without its name. One that says nothing is a warning.
func TestFeaturesOfHandlers(t *testing.T) {
	const all = `echo '{"ociVersionMin": "1.0.0", "ociVersionMax": "1.3.0", "mountOptions": ["ro", "rro"],
 "linux": {"namespaces": ["mount", "user"], "mountExtensions": {"idmap": {"enabled": true}}}}'`
	c := steps.Config{DefaultRuntime: "whole", Runtimes: map[string]steps.Runtime{
		"whole":   {Binary: ociRuntime(t, all)},
		"no-rro":  {Binary: ociRuntime(t, strings.Replace(all, `, "rro"`, "", 1))},
		"no-map":  {Binary: ociRuntime(t, strings.Replace(all, `"enabled": true`, `"enabled": false`, 1))},
		"no-user": {Binary: ociRuntime(t, strings.Replace(all, `, "user"`, "", 1))},
		"silent":  {Binary: ociRuntime(t, "exit 1")},
		"odd":     {Binary: ociRuntime(t, "echo '{'")},
		"vm":      {Type: "io.example.vm.v2"},
	}}
	var f handlerFeatures
	f.detect(t.Context(), c)
	want := map[string][2]bool{ // recursive read-only mounts, user namespaces
		"": {true, true}, "whole": {true, true}, "no-rro": {false, true}, "no-map": {true, false}, "no-user": {true, false},
		"silent": {}, "odd": {}, "vm": {},
	}
	for _, h := range f.handlers() {
		got := [2]bool{h.GetFeatures().GetRecursiveReadOnlyMounts(), h.GetFeatures().GetUserNamespaces()}
		if w, ok := want[h.GetName()]; !ok || got != w {
			t.Errorf("handler %q: %v, want %v", h.GetName(), got, w)
		}
		delete(want, h.GetName())
	}
	if len(want) > 0 {
		t.Errorf("not told of: %v", want)
	}
	warnings := strings.Join(f.warnings(), "\n")
	if !strings.Contains(warnings, "silent") || !strings.Contains(warnings, "odd") || len(f.warnings()) != 2 {
		t.Errorf("warnings: %s", warnings)
	}
}
