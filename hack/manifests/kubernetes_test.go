// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	goyaml "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	kubelet "k8s.io/kubelet/config/v1beta1"
	kind "sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
	"sigs.k8s.io/yaml"
)

const socket = "unix:///run/sandflow/sandflow.sock"

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// strict decodes a document as Kubernetes does, and refuses what is unknown.
func strict(t *testing.T, path string, text []byte, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(text, into); err != nil {
		t.Errorf("%s: %v", path, err)
	}
}

// TestRuntimeClasses decodes the classes; each must belong to a handler in the file beside it.
func TestRuntimeClasses(t *testing.T) {
	classes := map[string]bool{}
	files, err := filepath.Glob("../../deploy/runtimeclass/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("classes: %v, %v", files, err)
	}
	var pod corev1.Pod
	for _, file := range files {
		if filepath.Base(file) == "pod.yaml" {
			strict(t, file, read(t, file), &pod)
			continue
		}
		var class nodev1.RuntimeClass
		strict(t, file, read(t, file), &class)
		if class.APIVersion != nodev1.SchemeGroupVersion.String() || class.Kind != "RuntimeClass" || class.Name == "" {
			t.Errorf("%s is a %s of %s, %q", file, class.Kind, class.APIVersion, class.Name)
		}
		config := read(t, strings.TrimSuffix(file, ".yaml")+".toml")
		if !bytes.Contains(config, []byte("\n[runtime.handlers."+class.Handler+"]\n")) {
			t.Errorf("the handler %s of %s is not in the configuration beside it", class.Handler, file)
		}
		classes[class.Name] = true
	}
	if c := pod.Spec.RuntimeClassName; c == nil || !classes[*c] || len(pod.Spec.Containers) != 1 {
		t.Errorf("the example pod is %+v", pod.Spec)
	}
}

// statsGate has kubelet ask the runtime for the metrics of pods.
const statsGate = "PodAndContainerStatsFromCRI"

// TestKubeletConfiguration decodes kubelet's part of kubeadm's configuration, and that of
// the guide. (The rest of kubeadm's is validated by kubeadm itself, in hack/deploy.)
func TestKubeletConfiguration(t *testing.T) {
	documents := strings.Split(string(read(t, "../../deploy/kubeadm/init.yaml")), "\n---\n")
	guide := string(read(t, "../../docs/install.md"))
	_, block, found := strings.Cut(guide, "```yaml\napiVersion: kubelet")
	if !found {
		t.Fatal("the guide has no configuration of kubelet")
	}
	block, _, _ = strings.Cut("apiVersion: kubelet"+block, "```")
	var of kubelet.KubeletConfiguration
	strict(t, "docs/install.md", []byte(block), &of)
	if of.ContainerRuntimeEndpoint != socket || !of.FeatureGates[statsGate] {
		t.Errorf("the guide's endpoint is %s, its gates are %v", of.ContainerRuntimeEndpoint, of.FeatureGates)
	}
	for _, d := range documents {
		if strings.Contains(d, "kind: KubeletConfiguration") {
			var of kubelet.KubeletConfiguration
			strict(t, "init.yaml", []byte(d), &of)
			if !of.FeatureGates[statsGate] {
				t.Errorf("the gates are %v, without %s", of.FeatureGates, statsGate)
			}
			return
		}
	}
	t.Error("init.yaml has no configuration of kubelet")
}

// TestKindCluster decodes the cluster as kind does, which refuses what is unknown.
func TestKindCluster(t *testing.T) {
	d := goyaml.NewDecoder(bytes.NewReader(read(t, "../../deploy/kind/cluster.yaml")))
	d.KnownFields(true)
	var cluster kind.Cluster
	if err := d.Decode(&cluster); err != nil {
		t.Fatal(err)
	}
	if cluster.APIVersion != "kind.x-k8s.io/v1alpha4" || cluster.Kind != "Cluster" || len(cluster.Nodes) < 2 {
		t.Errorf("the cluster is %+v", cluster)
	}
	if !cluster.FeatureGates[statsGate] {
		t.Errorf("the gates are %v, without %s", cluster.FeatureGates, statsGate)
	}
	// kind merges these by their kind; one that is none of kubeadm's would change nothing.
	kinds := map[string]bool{"InitConfiguration": false, "JoinConfiguration": false}
	for _, patch := range cluster.KubeadmConfigPatches {
		var p struct {
			Kind             string                     `json:"kind"`
			NodeRegistration struct{ CRISocket string } `json:"nodeRegistration"`
		}
		strict(t, "cluster.yaml", []byte(patch), &p)
		if p.NodeRegistration.CRISocket != socket {
			t.Errorf("the patch of %s sets the socket %q", p.Kind, p.NodeRegistration.CRISocket)
		}
		kinds[p.Kind] = true
	}
	if len(kinds) != 2 || !kinds["InitConfiguration"] || !kinds["JoinConfiguration"] {
		t.Errorf("there are patches of %v", kinds)
	}
}

// TestK3sConfiguration: k3s reads its flags from it.
func TestK3sConfiguration(t *testing.T) {
	var config struct {
		Endpoint string   `json:"container-runtime-endpoint"`
		Kubelet  []string `json:"kubelet-arg"`
	}
	strict(t, "config.yaml", read(t, "../../deploy/k3s/config.yaml"), &config)
	if config.Endpoint != socket {
		t.Errorf("k3s would use %q", config.Endpoint)
	}
	if want := "feature-gates=" + statsGate + "=true"; !slices.Contains(config.Kubelet, want) {
		t.Errorf("kubelet's arguments are %q, without %s", config.Kubelet, want)
	}
}
