// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
)

var rotation = []check{
	{name: "Log rotation: no line is lost, and a follower stays", run: rotated},
	{name: "Ephemeral storage limit: what the container wrote has the pod evicted", run: evicted},
}

// filler is as much text as the kubelet lets a log file hold, and something more.
const filler = "head -c 11000000 /dev/zero | tr '\\0' x | fold -w 1000"

// rotated has a container write past the size at which the kubelet renames its log and has the
// runtime open another, and count all the time.
func rotated(ctx context.Context, e *env) error {
	p := shell("writer", "echo ready; until [ -e /tmp/go ]; do sleep 0.1; done; "+filler+"; echo; i=0; until [ -e /tmp/stop ]; do echo line $i; i=$((i + 1)); sleep 0.02; done; echo end $i; "+forever)
	p.Spec.NodeName = e.node().Name
	pod, err := e.start(ctx, p)
	if err != nil {
		return err
	}
	stream, err := e.following(ctx, p.Name)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	in := bufio.NewReader(stream)
	if err := begin(ctx, e, p.Name, in); err != nil {
		return err
	}
	dir := fmt.Sprintf("/var/log/pods/%s_%s_%s/%s", e.ns, p.Name, pod.UID, mainName)
	if err := eventually(ctx, 300*time.Millisecond, func(ctx context.Context) error {
		out, err := e.onNode(ctx, e.node(), "ls "+dir)
		if err == nil && len(strings.Fields(out)) < 2 {
			return fmt.Errorf("there is only %s", out)
		}
		return err
	}); err != nil {
		return err
	}
	if _, err := e.exec(ctx, p.Name, "touch /tmp/stop"); err != nil {
		return err
	}
	if err := e.heard(ctx, p.Name, mainName, func(text string) error { return contains("the new log", text, "end ") }); err != nil {
		return err
	}
	// The kubelet compresses what it has put aside.
	out, err := e.onNode(ctx, e.node(), fmt.Sprintf(
		"cd %s; for f in $(ls -v | grep -v '^0.log$') 0.log; do gzip -cdf $f; done | grep -o -e ' line [0-9]*$' -e ' end [0-9]*$'", dir))
	if err != nil {
		return err
	}
	if err := gapless(strings.Split(strings.TrimSpace(out), "\n")); err != nil {
		return err
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return fmt.Errorf("the follower did not come to the end: %w", err)
		}
		if strings.HasPrefix(line, "end ") {
			return nil
		}
	}
}

// begin waits until the follower has read all there is, and has the container go on: only then
// does kubelet look out for a rotation.
func begin(ctx context.Context, e *env, pod string, follower *bufio.Reader) error {
	line, err := follower.ReadString('\n')
	if err == nil {
		err = equal("the follower's first line", line, "ready\n")
	}
	if err != nil {
		return err
	}
	_, err = e.exec(ctx, pod, "touch /tmp/go")
	return err
}

// gapless looks whether lines count up to their end.
func gapless(lines []string) error {
	for i, l := range lines {
		words := strings.Fields(l)
		if len(words) != 2 || words[1] != strconv.Itoa(i) {
			return fmt.Errorf("line %d of %d is %q", i, len(lines), l)
		}
		if last := i == len(lines)-1; last != (words[0] == "end") {
			return fmt.Errorf("the end is missing, or too early: line %d of %d is %q", i, len(lines), l)
		}
	}
	return nil
}

func evicted(ctx context.Context, e *env) error {
	p := shell("greedy", "head -c 40000000 /dev/zero > /blob; "+forever)
	demand(first(p), nil, amounts("ephemeral-storage", "20Mi"))
	if err := e.create(ctx, p); err != nil {
		return err
	}
	last, err := e.ended(ctx, p.Name)
	if err != nil {
		return err
	}
	return errors.Join(
		equal("phase", last.Status.Phase, core.PodFailed), equal("reason", last.Status.Reason, "Evicted"),
		contains("the message", last.Status.Message, "exceeds the total limit of containers 20Mi"))
}
