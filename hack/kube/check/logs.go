// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var logs = []check{
	{name: "kubectl logs: both streams, and a line of 100 kB", run: logLines},
	{name: "kubectl logs --follow: lines as they come, up to the end", run: logFollow},
	{name: "kubectl logs --tail: the last lines only", run: logTail},
	{name: "kubectl logs --previous: of the container before", run: logPrevious},
	{name: "kubectl logs --timestamps and --since-time", run: logTimestamps},
}

func logLines(ctx context.Context, e *env) error {
	p := shell("writer", `
		echo to stdout
		echo to stderr >&2
		head -c 100000 /dev/zero | tr '\0' x
		echo
		printf 'no end of line'`)
	if _, err := e.run(ctx, p); err != nil {
		return err
	}
	out, err := e.kubectl(ctx, "logs", "writer")
	if err != nil {
		return err
	}
	// The two streams come through two pipes: their lines may change places.
	if err := contains("the log", out, "to stdout\n", "to stderr\n"); err != nil {
		return err
	}
	rest := strings.NewReplacer("to stdout\n", "", "to stderr\n", "").Replace(out)
	if want := strings.Repeat("x", 100000) + "\nno end of line"; strings.TrimSuffix(rest, "\n") != want {
		return fmt.Errorf("the long line came back as %d bytes: %.100q", len(rest), rest)
	}
	return nil
}

func logFollow(ctx context.Context, e *env) error {
	p := shell("writer", "echo one; until [ -e /tmp/go ]; do sleep 0.1; done; echo two")
	if _, err := e.start(ctx, p); err != nil {
		return err
	}
	cmd := e.command(ctx, "logs", "--follow", "writer")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	in := bufio.NewReader(pipe)
	one, err := in.ReadString('\n')
	if err != nil {
		return errors.Join(fmt.Errorf("no first line: %w", err), cmd.Wait())
	}
	if _, err := e.exec(ctx, "writer", "touch /tmp/go"); err != nil {
		return err
	}
	rest, err := io.ReadAll(in)
	return errors.Join(err, cmd.Wait(), equal("log", one+string(rest), "one\ntwo\n"))
}

func logTail(ctx context.Context, e *env) error {
	if _, err := e.run(ctx, shell("writer", "seq 1 1000")); err != nil {
		return err
	}
	out, err := e.kubectl(ctx, "logs", "--tail=3", "writer")
	if err != nil {
		return err
	}
	if err := equal("last lines", out, "998\n999\n1000\n"); err != nil {
		return err
	}
	whole, err := e.kubectl(ctx, "logs", "writer")
	return errors.Join(err, equal("lines", strings.Count(whole, "\n"), 1000))
}

// counting is a pod that restarts always, with a script that finds in $n which run it is.
func counting(name, script string) *core.Pod {
	p := shell(name, "echo x >> /count/runs; n=$(wc -l < /count/runs); "+script)
	p.Spec.RestartPolicy = core.RestartPolicyAlways
	volume(p, emptyDir(), core.VolumeMount{MountPath: "/count"})
	return p
}

func logPrevious(ctx context.Context, e *env) error {
	if err := e.create(ctx, counting("writer", "echo run $n; [ $n -gt 1 ] || exit 3; "+forever)); err != nil {
		return err
	}
	pod, err := e.podUntil(ctx, "writer", "restarted", func(p *core.Pod) (bool, error) {
		return status(p, mainName).RestartCount == 1 && isReady(p), nil
	})
	if err != nil {
		return err
	}
	before, err := e.kubectl(ctx, "logs", "--previous", "writer")
	if err != nil {
		return err
	}
	// Ready is a container without a probe when it has started, before it has said anything.
	if err := e.heard(ctx, "writer", mainName, func(text string) error { return equal("log after", text, "run 2") }); err != nil {
		return err
	}
	last := status(pod, mainName).LastTerminationState.Terminated
	if last == nil {
		return errors.New("the status does not tell how the first run ended")
	}
	return errors.Join(equal("log before", before, "run 1\n"), equal("exit code", last.ExitCode, 3))
}

func logTimestamps(ctx context.Context, e *env) error {
	begin := time.Now()
	if _, err := e.run(ctx, shell("writer", "echo one; sleep 1.2; echo two")); err != nil {
		return err
	}
	out, err := e.kubectl(ctx, "logs", "--timestamps", "writer")
	if err != nil {
		return err
	}
	var times []time.Time
	for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
		stamp, text, _ := strings.Cut(line, " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil {
			return err
		}
		if at.Before(begin) || at.After(time.Now()) {
			return fmt.Errorf("line at %s, written between %s and now", at, begin)
		}
		times = append(times, at)
		if i > 1 || text != []string{"one", "two"}[i] {
			return fmt.Errorf("wrong lines: %q", out)
		}
	}
	if len(times) != 2 || times[1].Sub(times[0]) < time.Second {
		return fmt.Errorf("two lines more than a second apart wanted: %s", out)
	}
	since := meta.NewTime(times[1])
	late, err := e.logs(ctx, "writer", core.PodLogOptions{SinceTime: &since})
	return errors.Join(err, equal("log since the second line's second", late, "two\n"))
}
