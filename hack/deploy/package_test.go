// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// building is held while a package is built.
var building sync.Mutex

// build builds the package in a version, once for all tests, and returns its path.
func (n *node) build(version string) string {
	n.t.Helper()
	building.Lock()
	defer building.Unlock()
	dir := filepath.Join(n.lab.Dir, "package-"+version)
	if built, err := filepath.Glob(filepath.Join(dir, "*.deb")); err == nil && len(built) == 1 {
		return built[0]
	}
	c := exec.CommandContext(n.t.Context(), "../package.sh", dir)
	c.Env = append(os.Environ(), "VERSION="+version, "BUILD="+n.lab.Build)
	out, err := c.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		n.t.Fatalf("package.sh: %v: %s", err, exit.Stderr)
	}
	must(n.t, err)
	return strings.TrimSpace(string(out))
}

// files are all files that a package, or what it starts, could leave.
func (n *node) files() []string {
	n.t.Helper()
	skip := []string{
		// What dpkg, apt and systemd keep for themselves.
		"/var/lib/dpkg/*-old", "/var/lib/dpkg/triggers", "/var/lib/apt*", "/var/lib/PackageKit*", "/var/cache/*", "/var/log/*", "/var/tmp/*",
		"/var/lib/systemd/*", "/run/systemd/*", "/run/udev/*", "/run/log/*", "/run/lock/*", "/etc/ld.so.cache",
	}
	args := []string{"/etc", "/usr", "/opt", "/var", "/run", "/dev", "/root/.config"}
	args = append(args, "(")
	for i, path := range skip {
		if i > 0 {
			args = append(args, "-o")
		}
		args = append(args, "-path", path)
	}
	args = append(args, ")", "-prune", "-o", "-print")
	out, err := n.Command(n.t.Context(), "find", args...).Output()
	if err != nil && len(out) == 0 {
		n.t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// left is what is there now and was not before.
func left(before, now []string) []string {
	known := map[string]bool{}
	for _, path := range before {
		known[path] = true
	}
	return slices.DeleteFunc(slices.Clone(now), func(path string) bool { return known[path] })
}

// install installs a package that is in the machine, as a user would.
func (n *node) install(path string) {
	n.t.Helper()
	n.put(path, "/root/"+filepath.Base(path))
	n.run("apt-get", "install", "-y", "/root/"+filepath.Base(path))
}

// TestPackage goes through the life of the package on a machine: installed as the guide
// says, restarted, killed, upgraded, removed and purged while a pod runs, taken up again,
// and purged for good.
func TestPackage(t *testing.T) {
	n := newNode(t)
	n.put(filepath.Join(n.lab.Build, "cni")+"/.", "/opt/cni/bin")
	first, second := n.build("1.0.0"), n.build("1.1.0")
	before := n.files()

	n.put(first, "/root/"+filepath.Base(first))
	n.follow("install.md")
	n.checkUnits()
	web := n.runPod("web", n.importImage(), `"hostname": "web",`)
	running := n.process(web.container)
	unchanged := func(when string) {
		t.Helper()
		if now := n.process(web.container); now != running {
			t.Errorf("%s, the container that was %s is %s", when, running, now)
		}
		if got := n.run("crictl", "exec", web.container, "hostname"); got != "web" {
			t.Errorf("%s, exec prints %q", when, got)
		}
	}
	unchanged("at first")

	n.run("systemctl", "restart", "sandflowd")
	unchanged("after a restart")
	n.killed()
	unchanged("after the daemon was killed")

	config := n.run("cat", "/etc/sandflow/config.toml") + "\n# changed by hand\n"
	n.write("/etc/sandflow/config.toml", config)
	pid := n.show("sandflowd", "MainPID")
	n.install(second)
	if n.show("sandflowd", "MainPID") == pid || n.show("sandflowd", "ActiveState") != "active" {
		t.Error("the upgrade did not restart the daemon")
	}
	if got := n.run("cat", "/etc/sandflow/config.toml"); got != strings.TrimSpace(config) {
		t.Errorf("the upgrade changed the configuration into %s", got)
	}
	unchanged("after an upgrade")

	n.purgedTooEarly(web)
	n.install(first)
	n.run("systemctl", "start", "sandflowd")
	unchanged("installed again")
	n.rebooted(web)
	n.purged(before)
}

// killed kills the daemon and waits until systemd has started it again.
func (n *node) killed() {
	n.t.Helper()
	pid := n.show("sandflowd", "MainPID")
	n.run("systemctl", "kill", "--kill-who=main", "--signal=KILL", "sandflowd")
	wait(n.t, "the daemon to be restarted", func() bool {
		return n.show("sandflowd", "MainPID") != pid && n.show("sandflowd", "ActiveState") == "active"
	})
}

// purgedTooEarly purges the package while a pod runs, which must go on, with its state.
func (n *node) purgedTooEarly(p pod) {
	n.t.Helper()
	process := "/proc/" + strings.Fields(n.process(p.container))[0]
	out := n.run("sh", "-c", "apt-get purge -y sandflow 2>&1")
	if !strings.Contains(out, "pods are still running") {
		n.t.Errorf("a purge while a pod runs says %s", out)
	}
	for _, path := range []string{process, "/run/sandflow/pods/" + p.id, "/var/lib/sandflow/journal.db"} {
		if _, err := os.Stat(n.Path(path)); err != nil {
			n.t.Errorf("a purge while a pod runs: %v", err)
		}
	}
	if _, err := os.Stat(n.Path("/usr/bin/sandflowd")); err == nil {
		n.t.Error("a purge left the daemon")
	}
}

// rebooted pulls the plug. The daemon must serve before kubelet starts, and know the pod as
// one that is gone.
func (n *node) rebooted(p pod) {
	n.t.Helper()
	n.run("systemctl", "enable", "sandflowd")
	n.write("/etc/systemd/system/kubelet.service", `[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/bin/crictl version
[Install]
WantedBy=multi-user.target
`)
	n.run("systemctl", "enable", "kubelet")
	must(n.t, n.PowerOff())
	must(n.t, n.Boot(n.t.Context())) // which fails if a service does
	if got := n.show("kubelet", "ActiveState"); got != "active" {
		n.t.Errorf("what stands for kubelet is %s", got)
	}
	if got := n.run("crictl", "inspectp", "--output", "go-template", "--template", "{{.status.state}}", p.id); got != "SANDBOX_NOTREADY" {
		n.t.Errorf("after a reboot, the pod is %s", got)
	}
	n.run("crictl", "rmp", "-f", p.id)
	n.run("systemctl", "disable", "--now", "kubelet")
	n.run("rm", "/etc/systemd/system/kubelet.service")
	n.run("systemctl", "daemon-reload")
}

// purged purges the package and checks that nothing is left of it.
func (n *node) purged(before []string) {
	n.t.Helper()
	n.run("apt-get", "purge", "-y", "sandflow")
	// What the operator and the network plugins made is theirs.
	n.run("rm", "-r", "/etc/crictl.yaml", "/etc/cni", "/var/lib/cni")
	if l := left(before, n.files()); len(l) > 0 {
		n.t.Errorf("the purge left files: %s", l)
	}
	if l := left(n.files(), before); len(l) > 0 {
		n.t.Errorf("the purge took files that are not the package's: %s", l)
	}
	if out := n.run("cat", "/proc/self/mountinfo"); strings.Contains(out, "sandflow/") {
		n.t.Errorf("the purge left mounts: %s", out)
	}
	if out, err := n.Run(n.t.Context(), "pgrep", "-fl", "sandflow"); err == nil {
		n.t.Errorf("the purge left processes: %s", out)
	}
	if out := n.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "sandflow*"); out != "" {
		n.t.Errorf("the purge left units: %s", out)
	}
	wait(n.t, "the cgroups to be gone", func() bool {
		return n.run("find", "/sys/fs/cgroup", "-name", "*sandflow*") == ""
	})
}

// checkUnits looks at what systemd makes of the installed units.
func (n *node) checkUnits() {
	n.t.Helper()
	units := []string{"sandflowd.service", "sandflow.slice", "sandflow-pods.slice"}
	if out := n.run("systemd-analyze", append([]string{"--man=no", "verify"}, units...)...); out != "" {
		n.t.Errorf("systemd-analyze verify says %s", out)
	}
	for property, want := range map[string]string{
		"ActiveState": "active", "UnitFileState": "enabled", "NRestarts": "0", "Slice": "sandflow.slice",
		"KillMode": "process", "Delegate": "yes", "Restart": "always", "OOMPolicy": "continue", "TasksMax": "infinity",
	} {
		if got := n.show("sandflowd", property); got != want {
			n.t.Errorf("%s of sandflowd.service is %s, want %s", property, got, want)
		}
	}
	if got := n.show("sandflowd", "Before"); !strings.Contains(got, "kubelet.service") {
		n.t.Errorf("sandflowd.service is only before %s", got)
	}
}
