// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// maxProfile bounds the size of a seccomp profile in bytes; the largest in use have some 20 kB.
	maxProfile = 1 << 20
	// maxProfiles bounds how many are kept.
	maxProfiles = 64
)

// setSeccomp applies the profile. A privileged container is unconfined (CRI:
// LinuxContainerSecurityContext.privileged), but a Localhost profile that cannot
// be read fails its create all the same.
func (b *build) setSeccomp() error {
	p, err := seccompOf(b.sec, b.Config.SeccompDefault)
	if err != nil || p == nil || p.GetProfileType() == runtime.SecurityProfile_Unconfined {
		return err
	}
	explicit := b.sec.GetSeccomp() != nil || b.sec.GetSeccompProfilePath() != "" //nolint:staticcheck // older clients send the deprecated field
	if !b.host.seccomp && !b.sec.GetPrivileged() {
		if !explicit {
			return nil
		}
		return fmt.Errorf("apply seccomp profile %s: this kernel has no seccomp: %w", p.GetProfileType(), errdefs.ErrFailedPrecondition)
	}
	profile, err := b.loadSeccomp(p)
	if err != nil {
		return err
	}
	if !b.sec.GetPrivileged() {
		b.spec.Linux.Seccomp = profile
	}
	return nil
}

func (b *build) loadSeccomp(p *runtime.SecurityProfile) (*specs.LinuxSeccomp, error) {
	if p.GetProfileType() == runtime.SecurityProfile_RuntimeDefault {
		return b.host.profiles.byDefault(b.spec), nil
	}
	return b.host.profiles.load(seccompFile(p))
}

// stamp tells one state of a file from another.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

// settled is how long ago a file must have been changed for its stamp to be trusted: two
// changes within a tick of the kernel's clock can have the same one.
const settled = time.Second

// profiles caches seccomp profiles in the form of an OCI spec: files by path, as long as
// they are the same, and the default ones by the capabilities that they follow.
// What it gives out is shared and must not be changed. OCI runtimes compile it themselves,
// for each container.
type profiles struct {
	mu       sync.Mutex // guards the maps; never held while reading a file
	files    map[string]cachedProfile
	defaults map[string]*specs.LinuxSeccomp
	now      func() time.Time
}

type cachedProfile struct {
	stamp   stamp
	profile *specs.LinuxSeccomp
}

// byDefault is the default profile for a spec whose capabilities are set already.
func (c *profiles) byDefault(s *specs.Spec) *specs.LinuxSeccomp {
	key := ""
	if caps := s.Process.Capabilities; caps != nil {
		key = strings.Join(slices.Sorted(slices.Values(caps.Bounding)), " ")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.defaults[key]; ok {
		return p
	}
	if c.defaults == nil || len(c.defaults) >= maxProfiles {
		c.defaults = map[string]*specs.LinuxSeccomp{}
	}
	c.defaults[key] = seccomp.DefaultProfile(s)
	return c.defaults[key]
}

func (c *profiles) load(path string) (*specs.LinuxSeccomp, error) {
	// Not blocking: the path may name a FIFO, which is then refused.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("load seccomp profile: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	defer func() { _ = f.Close() }()
	is, err := stampOf(f)
	if err != nil {
		return nil, fmt.Errorf("load seccomp profile %s: %w: %w", path, err, errdefs.ErrInvalidArgument)
	}
	c.mu.Lock()
	known, ok := c.files[path]
	c.mu.Unlock()
	if ok && known.stamp == is {
		return known.profile, nil
	}
	trusted := c.now().Sub(time.Unix(is.ctime.Unix())) > settled
	profile, err := readProfile(f)
	if err != nil {
		return nil, fmt.Errorf("load seccomp profile %s: %w: %w", path, err, errdefs.ErrInvalidArgument)
	}
	if trusted {
		c.keep(path, cachedProfile{is, profile})
	}
	return profile, nil
}

func (c *profiles) keep(path string, p cachedProfile) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.files == nil || len(c.files) >= maxProfiles {
		c.files = map[string]cachedProfile{}
	}
	c.files[path] = p
}

func stampOf(f *os.File) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return stamp{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return stamp{}, fmt.Errorf("not a regular file")
	}
	if st.Size > maxProfile {
		return stamp{}, fmt.Errorf("%d bytes are above the limit of %d", st.Size, maxProfile)
	}
	return stamp{dev: uint64(st.Dev), ino: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}, nil //nolint:unconvert // Dev is 32 bits wide on some architectures
}

func readProfile(r io.Reader) (*specs.LinuxSeccomp, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxProfile))
	if err != nil {
		return nil, err
	}
	p := &specs.LinuxSeccomp{}
	if err := json.Unmarshal(text, p); err != nil {
		return nil, err
	}
	if p.DefaultAction == "" {
		return nil, fmt.Errorf("it has no defaultAction")
	}
	return p, nil
}
