// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

// daemon is a sandflowd in the laboratory.
type daemon struct {
	t        *testing.T
	dir, bin string
	log      bytes.Buffer
}

const daemonConfig = `root = "%[1]s/root"
state = "%[1]s/s"
[containerd]
config_path = ""
[cni]
conf_dir = "%[1]s/net.d"
bin_dirs = ["%[2]s/cni"]
[metrics]
address = "127.0.0.1:9420"
[runtime]
default_cgroup_parent = "%[3]s"
`

// startDaemon starts the daemon of the build directory; it ends with the test.
func startDaemon(t *testing.T) *daemon {
	t.Helper()
	lab, build := os.Getenv("SANDFLOW_LAB"), os.Getenv("SANDFLOW_BUILD")
	if lab == "" {
		t.Skip("not in a laboratory: run \"make manifests-check\"")
	}
	d := &daemon{t: t, dir: filepath.Join(lab, "m"), bin: filepath.Join(build, "bin")}
	if err := os.Mkdir(d.dir, 0o711); err != nil { //nolint:gosec // users of the pods go through it
		t.Fatal(err)
	}
	d.write("config.toml", fmt.Sprintf(daemonConfig, d.dir, build, os.Getenv("SANDFLOW_LAB_CGROUP")))
	c := exec.CommandContext(t.Context(), filepath.Join(d.bin, "sandflowd"), "--config", filepath.Join(d.dir, "config.toml"))
	c.Stderr = &d.log
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		<-ended
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", d.log.String())
		}
	})
	for deadline := time.Now().Add(20 * time.Second); d.crictl("version") != nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the daemon does not answer")
		}
	}
	return d
}

func (d *daemon) write(name, text string) string {
	d.t.Helper()
	path := filepath.Join(d.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
	return path
}

func (d *daemon) command(name string, args ...string) *exec.Cmd {
	return exec.CommandContext(d.t.Context(), filepath.Join(d.bin, name), args...)
}

func (d *daemon) crictl(args ...string) error {
	c := d.command("crictl", append([]string{"--runtime-endpoint", "unix://" + d.dir + "/s/sandflow.sock"}, args...)...)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("crictl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// scrape runs a pod with a container and takes it down again, and then reads the metrics of
// the daemon as Prometheus would.
func scrape(t *testing.T) []labels.Labels {
	t.Helper()
	d := startDaemon(t)
	archive, err := d.command("lab", "archive").Output()
	if err != nil {
		t.Fatal(err)
	}
	ctr := d.command("ctr", "-a", d.dir+"/s/containerd.sock", "-n", "k8s.io", "images", "import", strings.TrimSpace(string(archive)))
	if out, err := ctr.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pod := d.write("pod.json", `{"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "linux": {"security_context": {"namespace_options": {"network": 2}}}}`)
	container := d.write("container.json", `{"metadata": {"name": "c"}, "image": {"image": "sandflow.example/demo:1"}, "command": ["sleep", "1000"], "linux": {}}`)
	if err := d.crictl("run", "--no-pull", container, pod); err != nil {
		t.Fatal(err)
	}
	if err := d.crictl("rmp", "-a", "-f"); err != nil {
		t.Fatal(err)
	}
	if err := d.crictl("pull", "localhost:1/nothing"); err == nil {
		t.Fatal("a pull from nowhere succeeded")
	}
	return readMetrics(t, "http://127.0.0.1:9420/metrics")
}

// readMetrics reads metrics into the series that Prometheus would make of them.
func readMetrics(t *testing.T, url string) []labels.Labels {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	reader := expfmt.SampleDecoder{
		Dec:  expfmt.NewDecoder(bytes.NewReader(raw), expfmt.ResponseFormat(response.Header)),
		Opts: &expfmt.DecodeOptions{Timestamp: model.Now()},
	}
	var all []labels.Labels
	for {
		var samples model.Vector
		err := reader.Decode(&samples)
		if err == io.EOF { //nolint:errorlint // the decoder's documentation has it so
			return all
		}
		if err != nil {
			t.Fatalf("%s serves what is no metric: %v", url, err)
		}
		for _, s := range samples {
			l := map[string]string{}
			for name, value := range s.Metric {
				l[string(name)] = string(value)
			}
			all = append(all, labels.FromMap(l))
		}
	}
}
