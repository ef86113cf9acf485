// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/sandflow-cri/sandflow/hack/kube/cluster"
)

// label marks the namespaces of the checks.
const label = "sandflow.example/check"

// suite is what all checks share.
type suite struct {
	cluster *cluster.Cluster
	client  kubernetes.Interface

	mu   sync.Mutex
	next int
}

func newSuite(c *cluster.Cluster) (*suite, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("could not read %s: %w", c.Kubeconfig, err)
	}
	// Many checks watch side by side; the server can bear it.
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &suite{cluster: c, client: client}, nil
}

// env is what a check works with.
type env struct {
	*suite
	// ns is the namespace of the check.
	ns string
	// dir is a directory of the check, outside of the cluster.
	dir string
	// undo are removals of what is not in the namespace, in the order of their making.
	undo []func(ctx context.Context) error
}

// open makes a namespace in which pods can be made.
func (s *suite) open(ctx context.Context, name string) (*env, error) {
	s.mu.Lock()
	s.next++
	e := &env{suite: s, ns: fmt.Sprintf("check-%02d-%s", s.next, slug(name))}
	s.mu.Unlock()
	ns := &core.Namespace{ObjectMeta: meta.ObjectMeta{
		Name:   e.ns,
		Labels: map[string]string{label: "yes"},
	}}
	var err error
	if e.dir, err = os.MkdirTemp("", e.ns+"-"); err != nil {
		return nil, err
	}
	if _, err := s.client.CoreV1().Namespaces().Create(ctx, ns, meta.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("could not make namespace %s: %w", e.ns, err)
	}
	// Pods are refused until their namespace has its account.
	_, err = until(ctx, e.watch("serviceaccounts", "default"), &core.ServiceAccount{},
		func(*core.ServiceAccount) (bool, error) { return true, nil })
	return e, err
}

// slug makes a part of a namespace's name from a check's name.
func slug(name string) string {
	const most = 40
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	text := strings.Join(words, "-")
	return strings.Trim(text[:min(len(text), most)], "-")
}

// later has something removed when the check has ended; the latest goes first.
func (e *env) later(undo func(ctx context.Context) error) { e.undo = append(e.undo, undo) }

// close removes the pods of the check, waits until they have gone, and has the namespace removed.
func (e *env) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var errs []error
	slices.Reverse(e.undo)
	for _, undo := range e.undo {
		errs = append(errs, undo(ctx))
	}
	err := e.client.CoreV1().Namespaces().Delete(ctx, e.ns, meta.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, os.RemoveAll(e.dir))...)
}

// gone waits until the cluster has no namespace of the checks.
func (s *suite) gone(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	selector := meta.ListOptions{LabelSelector: label}
	return eventually(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		list, err := s.client.CoreV1().Namespaces().List(ctx, selector)
		if err != nil {
			return err
		}
		var left []string
		for i := range list.Items {
			left = append(left, fmt.Sprintf("%s: %s", list.Items[i].Name, remaining(&list.Items[i])))
		}
		if len(left) > 0 {
			return fmt.Errorf("namespaces left:\n%s", strings.Join(left, "\n"))
		}
		return nil
	})
}

// remaining is what keeps a namespace.
func remaining(ns *core.Namespace) string {
	for _, c := range ns.Status.Conditions {
		if c.Type == core.NamespaceContentRemaining {
			return c.Message
		}
	}
	return string(ns.Status.Phase)
}

// node is the node on which checks place what must be on a certain one; other is another one,
// if the cluster has two.
func (s *suite) node() *cluster.Node  { return s.cluster.Nodes[0] }
func (s *suite) other() *cluster.Node { return s.cluster.Nodes[len(s.cluster.Nodes)-1] }

// onNode runs a shell script on a node and returns what it printed.
func (e *env) onNode(ctx context.Context, n *cluster.Node, script string) (string, error) {
	return output(n.Command(ctx, "sh", "-ec", script), "")
}

// kubectl runs kubectl in the namespace of the check and returns what it printed.
func (e *env) kubectl(ctx context.Context, args ...string) (string, error) {
	return output(e.command(ctx, args...), "")
}

// command is kubectl in the namespace of the check.
func (e *env) command(ctx context.Context, args ...string) *exec.Cmd {
	args = append([]string{"--kubeconfig", e.cluster.Kubeconfig, "--namespace", e.ns}, args...)
	cmd := exec.CommandContext(ctx, "kubectl", args...)
	cmd.Env = append(os.Environ(), "KUBECACHEDIR="+filepath.Join(e.dir, "cache"))
	return cmd
}

// exec runs a shell script in the first container of a pod and returns what it printed.
func (e *env) exec(ctx context.Context, pod, script string) (string, error) {
	return e.kubectl(ctx, "exec", pod, "--", "sh", "-ec", script)
}

// output runs a command with a text at its standard input and returns what it printed.
func output(cmd *exec.Cmd, stdin string) (string, error) {
	var out, errout bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errout
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, out.String(), errout.String())
	}
	return out.String(), nil
}

// eventually tries until there is no error, for what cannot be watched. Within ctx.
func eventually(ctx context.Context, every time.Duration, try func(ctx context.Context) error) error {
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("in vain (%w): %w", ctx.Err(), err)
		case <-time.After(every):
		}
	}
}

// story tells what happened to the pods of a check that failed.
func (e *env) story(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	events, err := e.client.CoreV1().Events(e.ns).List(ctx, meta.ListOptions{Limit: 200})
	if err != nil {
		return err
	}
	var lines []string
	for i := range events.Items {
		ev := &events.Items[i]
		if ev.Reason != "Scheduled" {
			lines = append(lines, fmt.Sprintf("event %s %s: %s", ev.InvolvedObject.Name, ev.Reason, ev.Message))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	const most = 15
	return errors.New(strings.Join(lines[max(0, len(lines)-most):], "\n"))
}

// now is a grace period of no length worth waiting for.
var now = meta.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}

var getOptions = meta.GetOptions{}
