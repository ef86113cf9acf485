// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/sandflow-cri/sandflow/hack/kube/cluster"
)

var network = []check{
	{name: "Network: pod to pod, by every address", run: podToPod},
	{name: "Network: service address by kube-proxy, over two pods", run: service},
	{name: "Network: node port by kube-proxy", run: nodePort},
	{name: "Network: pod from every node", run: podFromNode},
	{name: "hostPort: by the node's address", run: hostPortByNode},
	{name: "hostPort: by localhost on the node", run: hostPortByLocalhost},
	{name: "hostPort and service address: UDP", run: udp},
	{name: "hostNetwork: the pod is in the node's network", run: hostNetwork},
	{name: "API access from a pod with its service account", run: apiAccess},
}

// fetch gets a page from a node.
func (e *env) fetch(ctx context.Context, from *cluster.Node, host, port, path string) (string, error) {
	url := "http://" + net.JoinHostPort(host, port) + path
	return output(from.Command(ctx, "curl", "--silent", "--show-error", "--fail", "--max-time", "5", url), "")
}

// fetchedSoon fetches until a page is what is wanted: rules for services and ports follow
// their pods a moment later.
func (e *env) fetchedSoon(ctx context.Context, from *cluster.Node, host, port, want string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return eventually(ctx, 200*time.Millisecond, func(ctx context.Context) error {
		out, err := e.fetch(ctx, from, host, port, "/hostname")
		if err != nil {
			return err
		}
		return equal("page of "+host+":"+port, strings.TrimSpace(out), want)
	})
}

func podToPod(ctx context.Context, e *env) error {
	s := server("server")
	s.Spec.NodeName = e.node().Name
	pod, err := e.start(ctx, s)
	if err != nil {
		return err
	}
	var script, want []string
	for _, ip := range pod.Status.PodIPs {
		script = append(script, fmt.Sprintf("timeout 5 wget -q -O - http://%s/hostname; echo", net.JoinHostPort(ip.IP, "8080")))
		want = append(want, "server")
	}
	for i, n := range []*cluster.Node{e.node(), e.other()} {
		c := shell(fmt.Sprintf("client-%d", i), strings.Join(script, "\n"))
		c.Spec.NodeName = n.Name
		if err := e.prints(ctx, c, strings.Join(want, "\n")); err != nil {
			return fmt.Errorf("from %s: %w", n.Name, err)
		}
	}
	return nil
}

// expose makes a service for pods with a label.
func (e *env) expose(ctx context.Context, name string, kind core.ServiceType) (*core.Service, error) {
	return e.client.CoreV1().Services(e.ns).Create(ctx, &core.Service{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Spec: core.ServiceSpec{
			Type: kind, Selector: map[string]string{"app": name},
			Ports: []core.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}, meta.CreateOptions{})
}

func service(ctx context.Context, e *env) error {
	s, err := e.expose(ctx, "web", core.ServiceTypeClusterIP)
	if err != nil {
		return err
	}
	for i, n := range []*cluster.Node{e.node(), e.other()} {
		p := server(fmt.Sprintf("web-%d", i))
		p.Labels["app"], p.Spec.NodeName = "web", n.Name
		if err := e.create(ctx, p); err != nil {
			return err
		}
	}
	for _, name := range []string{"web-0", "web-1"} {
		if _, err := e.ready(ctx, name); err != nil {
			return err
		}
	}
	// kube-proxy picks at random: ask until both have answered.
	client := shell("client", fmt.Sprintf(`
		until [ -e /tmp/web-0 ] && [ -e /tmp/web-1 ]; do
			name=$(timeout 2 wget -q -O - http://%s/hostname) && touch /tmp/$name || sleep 0.2
		done
		echo both`, net.JoinHostPort(s.Spec.ClusterIP, "80")))
	return e.prints(ctx, client, "both")
}

func nodePort(ctx context.Context, e *env) error {
	s, err := e.expose(ctx, "web", core.ServiceTypeNodePort)
	if err != nil {
		return err
	}
	p := server("web")
	p.Spec.NodeName = e.node().Name
	if _, err := e.start(ctx, p); err != nil {
		return err
	}
	port := fmt.Sprint(s.Spec.Ports[0].NodePort)
	for _, n := range e.cluster.Nodes {
		if err := e.fetchedSoon(ctx, e.other(), n.IP, port, "web"); err != nil {
			return fmt.Errorf("port of %s: %w", n.Name, err)
		}
	}
	return nil
}

func podFromNode(ctx context.Context, e *env) error {
	p := server("server")
	p.Spec.NodeName = e.node().Name
	pod, err := e.start(ctx, p)
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range e.cluster.Nodes {
		for _, ip := range pod.Status.PodIPs {
			out, err := e.fetch(ctx, n, ip.IP, "8080", "/hostname")
			errs = append(errs, err, equal("page", out, "server"))
		}
	}
	return errors.Join(errs...)
}

// withHostPort starts a server with a port of the node.
func (e *env) withHostPort(ctx context.Context, port int32) error {
	p := server("server")
	p.Spec.NodeName = e.node().Name
	first(p).Ports = []core.ContainerPort{{ContainerPort: 8080, HostPort: port}}
	_, err := e.start(ctx, p)
	return err
}

func hostPortByNode(ctx context.Context, e *env) error {
	if err := e.withHostPort(ctx, 18081); err != nil {
		return err
	}
	if err := e.fetchedSoon(ctx, e.other(), e.node().IP, "18081", "server"); err != nil {
		return err
	}
	if err := e.delete(ctx, "server"); err != nil {
		return err
	}
	if _, err := e.gonePod(ctx, "server"); err != nil {
		return err
	}
	if out, err := e.fetch(ctx, e.other(), e.node().IP, "18081", "/hostname"); err == nil {
		return fmt.Errorf("the port still answers when the pod has gone: %s", out)
	}
	return nil
}

func hostPortByLocalhost(ctx context.Context, e *env) error {
	if err := e.withHostPort(ctx, 18082); err != nil {
		return err
	}
	return e.fetchedSoon(ctx, e.node(), "127.0.0.1", "18082", "server")
}

// ask sends a word to a UDP port from a node and returns the answer.
func (e *env) ask(ctx context.Context, from *cluster.Node, host, port, word string) (string, error) {
	script := fmt.Sprintf("exec 3<>/dev/udp/%s/%s; echo -n %s >&3; timeout 2 dd bs=1000 count=1 status=none <&3", host, port, word)
	return output(from.Command(ctx, "bash", "-ec", script), "")
}

func udp(ctx context.Context, e *env) error {
	p := server("web")
	p.Spec.NodeName = e.node().Name
	first(p).Ports = []core.ContainerPort{{ContainerPort: 8081, HostPort: 18084, Protocol: core.ProtocolUDP}}
	s, err := e.client.CoreV1().Services(e.ns).Create(ctx, &core.Service{
		ObjectMeta: meta.ObjectMeta{Name: "web"},
		Spec: core.ServiceSpec{Selector: p.Labels, Ports: []core.ServicePort{
			{Port: 53, TargetPort: intstr.FromInt32(8081), Protocol: core.ProtocolUDP},
		}},
	}, meta.CreateOptions{})
	if err != nil {
		return err
	}
	if _, err := e.start(ctx, p); err != nil {
		return err
	}
	for host, port := range map[string]string{e.node().IP: "18084", s.Spec.ClusterIP: "53"} {
		if err := eventually(ctx, 200*time.Millisecond, func(ctx context.Context) error {
			out, err := e.ask(ctx, e.other(), host, port, "hostname")
			return errors.Join(err, equal("answer of "+host, out, "web"))
		}); err != nil {
			return err
		}
	}
	return nil
}

func hostNetwork(ctx context.Context, e *env) error {
	p := server("server")
	p.Spec.NodeName, p.Spec.HostNetwork = e.node().Name, true
	first(p).Args = []string{"netexec", "--http-port=18083", "--udp-port=-1"}
	first(p).ReadinessProbe.HTTPGet.Port = intstr.FromInt32(18083)
	pod, err := e.start(ctx, p)
	if err != nil {
		return err
	}
	q := shell("inside", "readlink /proc/self/ns/net")
	q.Spec.NodeName, q.Spec.HostNetwork = e.node().Name, true
	link, err := e.onNode(ctx, e.node(), "readlink /proc/self/ns/net")
	if err != nil {
		return err
	}
	return errors.Join(
		equal("the pod's address", pod.Status.PodIP, e.node().IP),
		e.prints(ctx, q, strings.TrimSpace(link)),
		e.fetchedSoon(ctx, e.node(), "127.0.0.1", "18083", hostnameOf(pod)))
}

// hostnameOf is the host name that a pod has.
func hostnameOf(p *core.Pod) string {
	if p.Spec.HostNetwork {
		return p.Spec.NodeName
	}
	return p.Name
}

func apiAccess(ctx context.Context, e *env) error {
	role := &rbac.Role{
		ObjectMeta: meta.ObjectMeta{Name: "reader"},
		Rules:      []rbac.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get"}}},
	}
	if _, err := e.client.RbacV1().Roles(e.ns).Create(ctx, role, meta.CreateOptions{}); err != nil {
		return err
	}
	binding := &rbac.RoleBinding{
		ObjectMeta: meta.ObjectMeta{Name: "reader"},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "Role", Name: "reader"},
		Subjects:   []rbac.Subject{{Kind: rbac.ServiceAccountKind, Name: "default", Namespace: e.ns}},
	}
	if _, err := e.client.RbacV1().RoleBindings(e.ns).Create(ctx, binding, meta.CreateOptions{}); err != nil {
		return err
	}
	if err := e.configMap(ctx, "answer", map[string]string{"text": "forty-two"}); err != nil {
		return err
	}
	// The program kubectl is mounted from the node, with what the kubelet gives the pod.
	p := shell("client", `
		at=/var/run/secrets/kubernetes.io/serviceaccount
		get() {
			/kubectl --server=https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT --certificate-authority=$at/ca.crt \
				--token="$(cat $at/token)" --namespace="$(cat $at/namespace)" "$@"
		}
		get get configmap answer -o 'jsonpath={.data.text}'
		echo
		get get secrets 2>&1 | grep -o 'secrets is forbidden'`)
	p.Spec.AutomountServiceAccountToken = ptr.To(true)
	p.Spec.Containers[0].Env = []core.EnvVar{{Name: "HOME", Value: "/tmp"}}
	kubectl, err := e.onNode(ctx, e.node(), "command -v kubectl")
	if err != nil {
		return err
	}
	p.Spec.NodeName = e.node().Name
	volume(p, core.VolumeSource{HostPath: &core.HostPathVolumeSource{Path: strings.TrimSpace(kubectl)}},
		core.VolumeMount{MountPath: "/kubectl", ReadOnly: true})
	return e.prints(ctx, p, "forty-two\nsecrets is forbidden")
}
