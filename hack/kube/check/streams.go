// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	core "k8s.io/api/core/v1"
)

var streams = []check{
	{name: "kubectl exec: the exit code, both streams apart", run: execCode},
	{name: "kubectl exec -i: standard input up to its end", run: execStdin},
	{name: "kubectl exec -it: a terminal with the size of the user's", run: execTTY},
	{name: "kubectl exec -i: 20 MB each way", run: execBulk},
	{name: "kubectl attach -i: talks to the running process", run: attach},
	{name: "kubectl run -i --rm: runs once, tells the exit code, removes the pod", run: runOnce},
	{name: "kubectl port-forward: 1 MB through it", run: portForward},
	{name: "kubectl cp: to the pod and back", run: cp},
	{name: "kubectl debug --target: sees the processes of the container", run: debug},
}

// sleeper is a pod that only sleeps.
func (e *env) sleeper(ctx context.Context) error {
	_, err := e.start(ctx, shell("sleeper", forever))
	return err
}

// exitCode is the exit code in the error of a command; -1 if there is none.
func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}

func execCode(ctx context.Context, e *env) error {
	if err := e.sleeper(ctx); err != nil {
		return err
	}
	cmd := e.command(ctx, "exec", "sleeper", "--", "sh", "-c", "echo out; echo err >&2; exit 42")
	var out, errout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errout
	err := cmd.Run()
	if err := equal("exit code", exitCode(err), 42); err != nil {
		return err
	}
	if err := errors.Join(equal("stdout", out.String(), "out\n"), contains("stderr", errout.String(), "err\n")); err != nil {
		return err
	}
	_, err = output(e.command(ctx, "exec", "sleeper", "--", "/no/such/program"), "")
	if err == nil {
		return errors.New("a program that is not there could be run")
	}
	return contains("what kubectl said", err.Error(), "no such file or directory")
}

func execStdin(ctx context.Context, e *env) error {
	if err := e.sleeper(ctx); err != nil {
		return err
	}
	out, err := output(e.command(ctx, "exec", "-i", "sleeper", "--", "sh", "-c", "wc -c; echo end"), strings.Repeat("x", 70000))
	return errors.Join(err, equal("bytes that arrived", strings.Join(strings.Fields(out), " "), "70000 end"))
}

func execTTY(ctx context.Context, e *env) error {
	if err := e.sleeper(ctx); err != nil {
		return err
	}
	script := `i=0; until stty size | grep -q '^33 117$'; do i=$((i + 1)); [ $i -lt 50 ] || exit 9; sleep 0.1; done; stty size; tty; echo $TERM; exit 5`
	out, err := inTerminal(e.command(ctx, "exec", "-it", "sleeper", "--", "sh", "-c", script), 33, 117)
	if err := equal("exit code", exitCode(err), 5); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return contains("what it printed", out, "33 117\r\n", "/dev/pts/0\r\n", "xterm\r\n")
}

func execBulk(ctx context.Context, e *env) error {
	if err := e.sleeper(ctx); err != nil {
		return err
	}
	const size = 20 << 20
	sent, got := sha256.New(), sha256.New()
	cmd := e.command(ctx, "exec", "-i", "sleeper", "--", "cat")
	var errout bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = io.TeeReader(io.LimitReader(rand.Reader, size), sent), got, &errout
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, errout.String())
	}
	return equal("checksum of what came back", fmt.Sprintf("%x", got.Sum(nil)), fmt.Sprintf("%x", sent.Sum(nil)))
}

func attach(ctx context.Context, e *env) error {
	p := shell("parrot", "echo ready; while read line; do echo got $line; done; echo end")
	first(p).Stdin, first(p).StdinOnce = true, true
	if _, err := e.start(ctx, p); err != nil {
		return err
	}
	cmd := e.command(ctx, "attach", "-i", "parrot")
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	out := bufio.NewReader(pipe)
	for _, word := range []string{"hello", "world"} {
		if _, err := fmt.Fprintln(in, word); err != nil {
			return err
		}
		line, err := out.ReadString('\n')
		if err := errors.Join(err, equal("answer", line, "got "+word+"\n")); err != nil {
			return err
		}
	}
	if err := in.Close(); err != nil {
		return err
	}
	rest, err := io.ReadAll(out)
	if err := errors.Join(err, cmd.Wait(), equal("after the input's end", string(rest), "end\n")); err != nil {
		return err
	}
	if _, err := e.ended(ctx, "parrot"); err != nil {
		return err
	}
	log, err := e.logs(ctx, "parrot", core.PodLogOptions{})
	return errors.Join(err, equal("log", log, "ready\ngot hello\ngot world\nend\n"))
}

func runOnce(ctx context.Context, e *env) error {
	cmd := e.command(ctx, "run", "once", "-i", "--rm", "--quiet", "--restart=Never", "--image="+busybox, "--image-pull-policy=IfNotPresent",
		"--pod-running-timeout=1m", "--", "sh", "-c", "read line; echo got $line; exit 7")
	out, err := output(cmd, "hello\n")
	if err := errors.Join(equal("exit code", exitCode(err), 7), contains("what it printed", out, "got hello\n")); err != nil {
		return err
	}
	_, err = e.kubectl(ctx, "wait", "--for=delete", "pod/once", "--timeout=30s")
	return err
}

func portForward(ctx context.Context, e *env) error {
	p := shell("web", "mkdir /tmp/www; head -c 1000000 /dev/urandom > /tmp/www/blob; sha256sum /tmp/www/blob; exec httpd -f -p 8080 -h /tmp/www")
	first(p).ReadinessProbe = httpProbe("/blob")
	if _, err := e.start(ctx, p); err != nil {
		return err
	}
	log, err := e.logs(ctx, "web", core.PodLogOptions{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	cmd := e.command(ctx, "port-forward", "web", ":8080")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		cancel()
		return err
	}
	if err := cmd.Start(); err != nil {
		cancel()
		return err
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // it was killed
	}()
	line, err := bufio.NewReader(pipe).ReadString('\n')
	if err != nil {
		return err
	}
	// Forwarding from 127.0.0.1:PORT -> 8080
	words := strings.Fields(line)
	if len(words) < 3 {
		return fmt.Errorf("kubectl said %q", line)
	}
	sum, err := sumOf(ctx, "http://"+words[2]+"/blob")
	if err != nil {
		return err
	}
	return contains("the checksum in the pod", log, sum)
}

// sumOf is the checksum of a page.
func sumOf(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(h, answer.Body)
	return fmt.Sprintf("%x", h.Sum(nil)), errors.Join(err, answer.Body.Close())
}

func cp(ctx context.Context, e *env) error {
	if err := e.sleeper(ctx); err != nil {
		return err
	}
	local, back := filepath.Join(e.dir, "there"), filepath.Join(e.dir, "back")
	text := strings.Repeat("a line to be copied\n", 50000)
	if err := os.WriteFile(local, []byte(text), 0o640); err != nil {
		return err
	}
	if _, err := e.kubectl(ctx, "cp", local, "sleeper:/tmp/there"); err != nil {
		return err
	}
	mode, err := e.exec(ctx, "sleeper", "stat -c '%a %s' /tmp/there")
	if err := errors.Join(err, equal("mode and size", mode, fmt.Sprintf("640 %d\n", len(text)))); err != nil {
		return err
	}
	if _, err := e.kubectl(ctx, "cp", "sleeper:/tmp/there", back); err != nil {
		return err
	}
	raw, err := os.ReadFile(back)
	if err != nil {
		return err
	}
	if string(raw) != text {
		return fmt.Errorf("%d bytes came back, not the %d that went", len(raw), len(text))
	}
	return nil
}

func debug(ctx context.Context, e *env) error {
	if _, err := e.start(ctx, shell("patient", "echo secret > /tmp/mark; exec sleep 12345")); err != nil {
		return err
	}
	script := `tr '\0' ' ' < /proc/1/cmdline; echo; cat /proc/1/root/tmp/mark; cat /proc/self/uid_map | wc -l; exit 4`
	if _, err := e.kubectl(ctx, "debug", "patient", "--image="+busybox, "--image-pull-policy=IfNotPresent", "--target="+mainName,
		"--container=doctor", "--profile=general", "--quiet", "--", "sh", "-c", script); err != nil {
		return err
	}
	pod, err := e.podUntil(ctx, "patient", "debugged", func(p *core.Pod) (bool, error) {
		return terminated(p, "doctor").ExitCode != -1, nil
	})
	if err != nil {
		return err
	}
	out, err := e.logs(ctx, "patient", core.PodLogOptions{Container: "doctor"})
	return errors.Join(err,
		equal("exit code", terminated(pod, "doctor").ExitCode, 4),
		equal("what the debugger saw", out, "sleep 12345 \nsecret\n1\n"),
		equal("restarts of the patient", status(pod, mainName).RestartCount, 0))
}
