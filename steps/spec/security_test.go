// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// secured is the spec of a container with a security context in a pod that allows privilege.
func secured(t *testing.T, h *host, sec *runtime.LinuxContainerSecurityContext) *specs.Spec {
	t.Helper()
	return made(t, h, func(_ *input, c *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
		c.Linux.SecurityContext = sec
		p.Linux.SecurityContext.Privileged = sec.GetPrivileged()
	})
}

// Case 55: the inheritable set is empty but for ambient capabilities.
func TestCapabilities(t *testing.T) {
	have := fakeHost().caps
	slices.Sort(have)
	with := func(more ...string) []string {
		return subtract(append(slices.Clone(defaultCapabilities), more...), nil)
	}
	for _, c := range []struct {
		name               string
		add, drop, ambient []string
		set, inheritable   []string
	}{
		{"none asked", nil, nil, nil, with(), nil},
		{"add", []string{"NET_ADMIN"}, nil, nil, with("CAP_NET_ADMIN"), nil},
		{"add with prefix, lower case", []string{"cap_net_admin"}, nil, nil, with("CAP_NET_ADMIN"), nil},
		{"drop", nil, []string{"CHOWN"}, nil, subtract(with(), []string{"CAP_CHOWN"}), nil},
		{"drop ALL", nil, []string{"ALL"}, nil, nil, nil},
		{"add ALL", []string{"all"}, nil, nil, have, nil},
		{"add ALL, drop one", []string{"ALL"}, []string{"CHOWN"}, nil, subtract(have, []string{"CAP_CHOWN"}), nil},
		{"drop ALL, add one", []string{"KILL"}, []string{"ALL"}, nil, []string{"CAP_KILL"}, nil},
		{"ambient", nil, []string{"ALL"}, []string{"NET_RAW"}, []string{"CAP_NET_RAW"}, []string{"CAP_NET_RAW"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := secured(t, fakeHost(), &runtime.LinuxContainerSecurityContext{
				Capabilities: &runtime.Capability{AddCapabilities: c.add, DropCapabilities: c.drop, AddAmbientCapabilities: c.ambient},
			})
			got := s.Process.Capabilities
			if !slices.Equal(got.Bounding, c.set) || !slices.Equal(got.Effective, c.set) || !slices.Equal(got.Permitted, c.set) {
				t.Errorf("got %v, want %v", got.Bounding, c.set)
			}
			if !slices.Equal(got.Inheritable, c.inheritable) || !slices.Equal(got.Ambient, c.inheritable) {
				t.Errorf("inheritable %v, ambient %v, want %v", got.Inheritable, got.Ambient, c.inheritable)
			}
		})
	}
}

func TestCapabilitiesRefused(t *testing.T) {
	for name, want := range map[string]error{"NO_SUCH": errdefs.ErrInvalidArgument, "SYS_RESOURCE": errdefs.ErrFailedPrecondition} {
		err := refused(t, fakeHost(), func(_ *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
			c.Linux.SecurityContext.Capabilities = &runtime.Capability{AddCapabilities: []string{name}}
		})
		if !errors.Is(err, want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want %v", name, err, want)
		}
	}
}

// Case 56: empty lists mean none; privileged ignores them; without a context the usual ones.
func TestMaskedPaths(t *testing.T) {
	for _, c := range []struct {
		name             string
		sec              *runtime.LinuxContainerSecurityContext
		masked, readonly []string
	}{
		{"no context", nil, defaultMasked, defaultReadonly},
		{"empty", &runtime.LinuxContainerSecurityContext{}, nil, nil},
		{"as sent", &runtime.LinuxContainerSecurityContext{MaskedPaths: []string{"/odd"}, ReadonlyPaths: []string{"/proc/sys"}}, []string{"/odd"}, []string{"/proc/sys"}},
		{"privileged", &runtime.LinuxContainerSecurityContext{Privileged: true, MaskedPaths: []string{"/odd"}, ReadonlyPaths: []string{"/proc/sys"}}, nil, nil},
	} {
		s := secured(t, fakeHost(), c.sec)
		if !slices.Equal(s.Linux.MaskedPaths, c.masked) || !slices.Equal(s.Linux.ReadonlyPaths, c.readonly) {
			t.Errorf("%s: got %v and %v", c.name, s.Linux.MaskedPaths, s.Linux.ReadonlyPaths)
		}
	}
}

// Case 54: /sys and the cgroups are writable for privileged containers only, and
// an unprivileged one does not spoil the pod's sysfs for them.
func TestSysIsWritableWhenPrivileged(t *testing.T) {
	s := secured(t, fakeHost(), &runtime.LinuxContainerSecurityContext{Privileged: true, ReadonlyRootfs: true})
	for _, target := range []string{"/sys", "/sys/fs/cgroup"} {
		if o := mountAt(s, target).Options; !slices.Contains(o, "rw") || slices.Contains(o, "ro") {
			t.Errorf("privileged: %s has %v", target, o)
		}
	}
	s = made(t, fakeHost(), func(_ *input, _ *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
		p.Linux.SecurityContext.Privileged = true
	})
	if o := mountAt(s, "/sys").Options; slices.Contains(o, "ro") || !slices.Contains(s.Linux.ReadonlyPaths, "/sys") {
		t.Errorf("beside privileged ones: /sys has %v, read-only paths %v", o, s.Linux.ReadonlyPaths)
	}
}

func TestPrivilegedNeedsSuchASandbox(t *testing.T) {
	err := refused(t, fakeHost(), func(_ *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
		c.Linux.SecurityContext.Privileged = true
	})
	if !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Error(err)
	}
}

const profileText = `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["sethostname"],"action":"SCMP_ACT_ERRNO"}]}`

// Case 57: the matrix of profiles.
func TestSeccomp(t *testing.T) {
	good := filepath.Join(t.TempDir(), "good.json")
	write(t, good, profileText)
	profile := func(kind runtime.SecurityProfile_ProfileType, ref string) *runtime.SecurityProfile {
		return &runtime.SecurityProfile{ProfileType: kind, LocalhostRef: ref}
	}
	for _, c := range []struct {
		name       string
		sec        *runtime.LinuxContainerSecurityContext
		byDefault  string
		privileged bool
		want       specs.LinuxSeccompAction // "" is unconfined
	}{
		{"unset", nil, "", false, ""},
		{"unset, default on", nil, "RuntimeDefault", false, "SCMP_ACT_ERRNO"},
		{"unset, default on, privileged", nil, "RuntimeDefault", true, ""},
		{"default", &runtime.LinuxContainerSecurityContext{Seccomp: profile(runtime.SecurityProfile_RuntimeDefault, "")}, "", false, "SCMP_ACT_ERRNO"},
		{"unconfined", &runtime.LinuxContainerSecurityContext{Seccomp: profile(runtime.SecurityProfile_Unconfined, "")}, "RuntimeDefault", false, ""},
		{"localhost", &runtime.LinuxContainerSecurityContext{Seccomp: profile(runtime.SecurityProfile_Localhost, good)}, "", false, "SCMP_ACT_ALLOW"},
		{"localhost with prefix", &runtime.LinuxContainerSecurityContext{Seccomp: profile(runtime.SecurityProfile_Localhost, "localhost/"+good)}, "", false, "SCMP_ACT_ALLOW"},
		{"localhost, privileged", &runtime.LinuxContainerSecurityContext{Seccomp: profile(runtime.SecurityProfile_Localhost, good)}, "", true, ""},
		{"deprecated field", &runtime.LinuxContainerSecurityContext{SeccompProfilePath: "localhost/" + good}, "", false, "SCMP_ACT_ALLOW"}, //nolint:staticcheck // older clients send it
		{"deprecated default", &runtime.LinuxContainerSecurityContext{SeccompProfilePath: "runtime/default"}, "", false, "SCMP_ACT_ERRNO"}, //nolint:staticcheck // older clients send it
	} {
		s := made(t, fakeHost(), func(in *input, r *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
			in.Config.SeccompDefault = c.byDefault
			if c.sec != nil {
				r.Linux.SecurityContext = c.sec
			}
			r.Linux.SecurityContext.Privileged, p.Linux.SecurityContext.Privileged = c.privileged, c.privileged
		})
		var got specs.LinuxSeccompAction
		if s.Linux.Seccomp != nil {
			got = s.Linux.Seccomp.DefaultAction
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestSeccompRefused(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "no-json"), "{")
	write(t, filepath.Join(dir, "no-action"), "{}")
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "large"), make([]byte, maxProfile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"relative.json", "", "missing", "no-json", "no-action", "fifo", "large"} {
		for _, privileged := range []bool{false, true} {
			path := ref
			if !strings.Contains(ref, ".") && ref != "" {
				path = filepath.Join(dir, ref)
			}
			err := refused(t, fakeHost(), func(_ *input, c *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
				c.Linux.SecurityContext.Seccomp = &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_Localhost, LocalhostRef: path}
				c.Linux.SecurityContext.Privileged, p.Linux.SecurityContext.Privileged = privileged, privileged
			})
			if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), path) {
				t.Errorf("%q: %v", ref, err)
			}
		}
	}
}

func TestSeccompProfilesAreCachedUntilTheyChange(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.json")
	write(t, file, profileText)
	c := &profiles{now: func() time.Time { return time.Now().Add(time.Minute) }}
	load := func() *specs.LinuxSeccomp {
		t.Helper()
		p, err := c.load(file)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := load()
	if load() != first {
		t.Error("an unchanged profile was read again")
	}
	write(t, file+".new", strings.Replace(profileText, "ERRNO", "TRACE", 1)) // as long as before
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	if p := load(); p == first || p.Syscalls[0].Action != "SCMP_ACT_TRACE" {
		t.Errorf("a changed profile was not read again: %+v", p)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if p, err := c.load(file); err == nil {
		t.Errorf("a profile that is gone is still %+v", p)
	}
}

// Changes that follow each other within a tick of the kernel's clock may have one stamp. So
// what has just been changed is not taken from the cache.
func TestSeccompProfileThatHasJustChanged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.json")
	c := &profiles{now: time.Now}
	for i := range 200 {
		action := []string{"SCMP_ACT_ERRNO", "SCMP_ACT_TRACE"}[i%2]
		write(t, file, strings.Replace(profileText, "SCMP_ACT_ERRNO", action, 1))
		if p, err := c.load(file); err != nil || string(p.Syscalls[0].Action) != action {
			t.Fatalf("change %d is not seen: %+v, %v", i, p, err)
		}
	}
	if len(c.files) > 0 {
		t.Error("a profile was kept that has just been changed")
	}
}

// The default profile lets capabilities have their system calls, and so there is one for each
// set of them.
func TestDefaultSeccompProfilesAreCached(t *testing.T) {
	h := fakeHost()
	with := func(add ...string) *specs.LinuxSeccomp {
		return secured(t, h, &runtime.LinuxContainerSecurityContext{
			Seccomp: &runtime.SecurityProfile{}, Capabilities: &runtime.Capability{AddCapabilities: add},
		}).Linux.Seccomp
	}
	allowed := func(p *specs.LinuxSeccomp, call string) bool {
		return slices.ContainsFunc(p.Syscalls, func(s specs.LinuxSyscall) bool {
			return s.Action == specs.ActAllow && len(s.Args) == 0 && slices.Contains(s.Names, call)
		})
	}
	plain, admin := with(), with("SYS_ADMIN")
	if plain != with() || admin != with("SYS_ADMIN") {
		t.Error("a default profile was made again")
	}
	if allowed(plain, "mount") || !allowed(admin, "mount") {
		t.Errorf("mount is allowed without SYS_ADMIN: %v, with it: %v", allowed(plain, "mount"), allowed(admin, "mount"))
	}
}

// BenchmarkSpec makes and writes the specs of containers with each kind of profile.
func BenchmarkSpec(b *testing.B) {
	file := filepath.Join(b.TempDir(), "p.json")
	text, err := json.Marshal(seccomp.DefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}}))
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		b.Fatal(err)
	}
	for name, p := range map[string]*runtime.SecurityProfile{
		"unconfined": {ProfileType: runtime.SecurityProfile_Unconfined}, "default": {},
		"localhost": {ProfileType: runtime.SecurityProfile_Localhost, LocalhostRef: file},
	} {
		for _, cached := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/cached=%v", name, cached), func(b *testing.B) {
				h := fakeHost()
				h.profiles.now = func() time.Time { return time.Now().Add(time.Minute) }
				in := request(b, func(_ *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
					c.Linux.SecurityContext.Seccomp = p
				})
				for b.Loop() {
					if !cached {
						h.profiles.files, h.profiles.defaults = nil, nil
					}
					if _, err := newSpec(in, h); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func TestAppArmorWithoutSupport(t *testing.T) {
	secured(t, fakeHost(), &runtime.LinuxContainerSecurityContext{ApparmorProfile: "unconfined"}) //nolint:staticcheck // older clients send it
	err := refused(t, fakeHost(), func(_ *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
		c.Linux.SecurityContext.Apparmor = &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_Localhost, LocalhostRef: "mine"}
	})
	if !errors.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), "mine") {
		t.Error(err)
	}
}

func TestAppArmorProfileIsLookedUp(t *testing.T) {
	list := filepath.Join(t.TempDir(), "profiles")
	write(t, list, "mine (enforce)\n/usr/bin/man (complain)\n")
	if err := checkLoaded(list, "mine"); err != nil {
		t.Error(err)
	}
	if err := checkLoaded(list, "min"); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Error(err)
	}
}

// On a node with AppArmor what names no profile gets the default one, which is loaded first.
func TestAppArmor(t *testing.T) {
	list := filepath.Join(t.TempDir(), "profiles")
	write(t, list, "mine (enforce)\n")
	profile := func(kind runtime.SecurityProfile_ProfileType, ref string) *runtime.SecurityProfile {
		return &runtime.SecurityProfile{ProfileType: kind, LocalhostRef: ref}
	}
	for _, c := range []struct {
		what       string
		sec        *runtime.LinuxContainerSecurityContext
		want       string // profile; "!" is refused
		loaded     bool
		privileged bool
	}{
		{"unset", &runtime.LinuxContainerSecurityContext{}, appArmorDefault, true, false},
		{"unset", &runtime.LinuxContainerSecurityContext{}, "", false, true},
		{"default", &runtime.LinuxContainerSecurityContext{Apparmor: profile(runtime.SecurityProfile_RuntimeDefault, "")}, appArmorDefault, true, false},
		{"default", &runtime.LinuxContainerSecurityContext{Apparmor: profile(runtime.SecurityProfile_RuntimeDefault, "")}, "", false, true},
		{"unconfined", &runtime.LinuxContainerSecurityContext{Apparmor: profile(runtime.SecurityProfile_Unconfined, "")}, "", false, false},
		{"localhost", &runtime.LinuxContainerSecurityContext{Apparmor: profile(runtime.SecurityProfile_Localhost, "mine")}, "mine", false, false},
		{"localhost", &runtime.LinuxContainerSecurityContext{Apparmor: profile(runtime.SecurityProfile_Localhost, "localhost/mine")}, "mine", false, true},
		{"not loaded", &runtime.LinuxContainerSecurityContext{Apparmor: profile(runtime.SecurityProfile_Localhost, "other")}, "!", false, false},
		{"not loaded", &runtime.LinuxContainerSecurityContext{Apparmor: profile(runtime.SecurityProfile_Localhost, "other")}, "!", false, true},
		{"old field", &runtime.LinuxContainerSecurityContext{ApparmorProfile: "localhost/mine"}, "mine", false, false},                                                      //nolint:staticcheck // older clients send it
		{"old default", &runtime.LinuxContainerSecurityContext{ApparmorProfile: "runtime/default"}, appArmorDefault, true, false},                                           //nolint:staticcheck // older clients send it
		{"both", &runtime.LinuxContainerSecurityContext{ApparmorProfile: "unconfined", Apparmor: profile(runtime.SecurityProfile_Localhost, "mine")}, "mine", false, false}, //nolint:staticcheck // older clients send it
	} {
		h, loaded := fakeHost(), ""
		h.apparmor, h.appArmorProfiles = true, list
		h.loadAppArmor = func(name string) error { loaded = name; return nil }
		b, err := newSpec(request(t, func(_ *input, r *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
			r.Linux.SecurityContext = c.sec
			c.sec.Privileged, p.Linux.SecurityContext.Privileged = c.privileged, c.privileged
		}), h)
		switch {
		case c.want == "!":
			if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "other") {
				t.Errorf("%s, privileged %v: %v", c.what, c.privileged, err)
			}
		case err != nil || b.spec.Process.ApparmorProfile != c.want || (loaded == appArmorDefault) != c.loaded:
			t.Errorf("%s, privileged %v: %v, loaded %q", c.what, c.privileged, err, loaded)
		}
	}
	h := fakeHost()
	h.apparmor, h.loadAppArmor = true, func(string) error { return errors.New("no parser") }
	if err := refused(t, h, nil); !strings.Contains(err.Error(), "no parser") {
		t.Errorf("a profile that cannot be loaded: %v", err)
	}
}

// On a node with SELinux process and mounts are labelled as the container asks, else as its pod,
// with one level for all of a pod; what is privileged is not.
func TestSELinux(t *testing.T) {
	h := fakeHost()
	h.selinux = true
	h.labels = func(options []string) (string, string, error) {
		if slices.Contains(options, "type:bad") {
			return "", "", errors.New("no such type")
		}
		text := strings.Join(options, " ")
		return "process " + text, "mount " + text, nil
	}
	labels := func(own, pod *runtime.SELinuxOption, privileged bool) *specs.Spec {
		return made(t, h, func(_ *input, c *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
			c.Linux.SecurityContext.SelinuxOptions, p.Linux.SecurityContext.SelinuxOptions = own, pod
			c.Linux.SecurityContext.Privileged, p.Linux.SecurityContext.Privileged = privileged, privileged
		})
	}
	level := "level:" + podLevel("p0d")
	for want, s := range map[string]*specs.Spec{
		level:                               labels(nil, nil, false),
		"type:own_t level:s0:c1,c2":         labels(&runtime.SELinuxOption{Type: "own_t", Level: "s0:c1,c2"}, &runtime.SELinuxOption{Type: "pod_t"}, false),
		"user:u role:r type:pod_t " + level: labels(nil, &runtime.SELinuxOption{User: "u", Role: "r", Type: "pod_t"}, false),
	} {
		if s.Process.SelinuxLabel != "process "+want || s.Linux.MountLabel != "mount "+want {
			t.Errorf("labels %q and %q, want %q", s.Process.SelinuxLabel, s.Linux.MountLabel, want)
		}
	}
	if s := labels(&runtime.SELinuxOption{Type: "own_t"}, nil, true); s.Process.SelinuxLabel+s.Linux.MountLabel != "" {
		t.Errorf("privileged: %q", s.Process.SelinuxLabel)
	}
	err := refused(t, h, func(_ *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
		c.Linux.SecurityContext.SelinuxOptions = &runtime.SELinuxOption{Type: "bad"}
	})
	if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "no such type") {
		t.Error(err)
	}
}

func TestSELinuxOptions(t *testing.T) {
	got := labelOptions(&runtime.SELinuxOption{Type: "t", Level: "s0:c1,c2"}, "pod")
	if !slices.Equal(got, []string{"type:t", "level:s0:c1,c2"}) {
		t.Error(got)
	}
	if a, b := podLevel("a"), podLevel("a"); a != b || !strings.HasPrefix(a, "s0:c") {
		t.Errorf("levels of one pod: %s and %s", a, b)
	}
}
