// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

// object is a configuration file in the making. JSON is YAML.
type object map[string]any

func writeObject(path string, o object) error {
	raw, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(path, string(raw)+"\n")
}

func writeFile(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o600)
}

// brisk has kubelet see soon what happens, and try again soon; and it lets pods do more.
var brisk = object{
	"allowedUnsafeSysctls":                      []string{"kernel.msg*", "net.core.somaxconn"},
	"crashLoopBackOff":                          object{"maxContainerRestartPeriod": "10s"},
	"syncFrequency":                             "10s",
	"fileCheckFrequency":                        "1s",
	"nodeStatusUpdateFrequency":                 "2s",
	"nodeLeaseDurationSeconds":                  8,
	"volumeStatsAggPeriod":                      "10s",
	"configMapAndSecretChangeDetectionStrategy": "Watch",
}

// kubeletConfig is the kubelet's file. Without a cluster nobody is asked who may do what.
func (n *Node) kubeletConfig() object {
	const none = "0%"
	config := object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix://" + n.endpoint(),
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               n.CgroupRoot,
		// Since 1.35 kubelet refuses cgroup v1 unless told otherwise.
		"failCgroupV1": false,
		"failSwapOn":   false,
		"oomScoreAdj":  0,
		"evictionHard": object{
			"memory.available": none, "nodefs.available": none, "nodefs.inodesFree": none,
			"imagefs.available": none, "imagefs.inodesFree": none,
		},
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		"serializeImagePulls":         false,
		"registryPullQPS":             0,
		"eventRecordQPS":              0,
		"staticPodPath":               manifestDir,
		"volumePluginDir":             "/var/lib/kubelet/volumeplugins",
		"clusterDNS":                  []string{dnsAddress},
		"clusterDomain":               "cluster.local",
		"featureGates":                n.gates,
		"runtimeRequestTimeout":       "2m",
	}
	if !n.cluster.options.Plain {
		maps.Copy(config, brisk)
	}
	if n.pki == nil {
		config["authentication"] = object{"anonymous": object{"enabled": true}, "webhook": object{"enabled": false}}
		config["authorization"] = object{"mode": "AlwaysAllow"}
		config["enableServer"] = true
		return config
	}
	config["authentication"] = object{
		"anonymous": object{"enabled": false}, "webhook": object{"enabled": true},
		"x509": object{"clientCAFile": n.pki.crt("ca")},
	}
	config["authorization"] = object{"mode": "Webhook"}
	config["tlsCertFile"], config["tlsPrivateKeyFile"] = n.pki.crt(n.Name), n.pki.keyOf(n.Name)
	return config
}

// proxyConfig is kube-proxy's file.
func (n *Node) proxyConfig(kubeconfig string) object {
	return object{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode": "nftables", "clusterCIDR": podNetwork, "hostnameOverride": n.Name,
		"clientConnection": object{"kubeconfig": kubeconfig},
		"oomScoreAdj":      0,
		"featureGates":     n.gates,
		// The kernel's limits are the machine's, not this node's.
		"conntrack": object{
			"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
			"udpTimeout": "0s", "udpStreamTimeout": "0s",
		},
		"nftables": object{"minSyncPeriod": "100ms", "syncPeriod": "10s"},
	}
}

// conflist is the node's network: a bridge of its own, and host ports. Other nodes' pods are
// reached by routes, so nothing is masqueraded.
func (n *Node) conflist() object {
	return object{
		"cniVersion": "1.0.0", "name": "pods",
		"plugins": []object{
			{
				"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
				"ipam": object{
					"type":   "host-local",
					"ranges": [][]object{{{"subnet": n.PodCIDR}}},
					"routes": []object{{"dst": "0.0.0.0/0"}},
				},
			},
			{"type": "portmap", "capabilities": object{"portMappings": true}, "snat": true, "backend": "nftables"},
		},
	}
}

// sandflowConfig is what differs from sandflow's default on this node.
func (n *Node) sandflowConfig() string {
	var b strings.Builder
	fmt.Fprintf(&b, "[log]\nlevel = \"debug\"\n[runtime]\ncgroup_driver = \"cgroupfs\"\n")
	fmt.Fprintf(&b, "[runtime.handlers.runc]\nbinary = \"runc\"\n")
	if n.crun != "" {
		fmt.Fprintf(&b, "[runtime.handlers.crun]\nbinary = %q\noci_version = \"1.0.2\"\n", n.crun)
	}
	if n.kind == Attached {
		fmt.Fprintf(&b, "[containerd]\naddress = %q\n[nri]\nsocket_path = %q\n", upstreamSocket, "/run/sandflow/nri.sock")
	}
	return b.String()
}

// upstreamConfig is that of an ordinary containerd: beside sandflow, or in its place.
func (n *Node) upstreamConfig() string {
	var b strings.Builder
	fmt.Fprintf(&b, "version = 3\n")
	fmt.Fprintf(&b, "[plugins.\"io.containerd.cri.v1.images\".registry]\n  config_path = \"/etc/containerd/certs.d\"\n")
	fmt.Fprintf(&b, "[plugins.\"io.containerd.cri.v1.images\".pinned_images]\n  sandbox = %q\n", pauseImage)
	runtime := "[plugins.\"io.containerd.cri.v1.runtime\"]\n  restrict_oom_score_adj = true\n" +
		"  enable_unprivileged_ports = true\n  enable_unprivileged_icmp = true\n"
	fmt.Fprint(&b, runtime)
	handlers := map[string]string{"runc": "runc"}
	if n.crun != "" {
		handlers["crun"] = n.crun
	}
	for name, binary := range handlers {
		table := fmt.Sprintf("plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.%s", name)
		fmt.Fprintf(&b, "[%s]\n  runtime_type = \"io.containerd.runc.v2\"\n[%s.options]\n  BinaryName = %q\n", table, table, binary)
	}
	return b.String()
}
