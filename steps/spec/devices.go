// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
)

const allAccess = "rwm"

// basicDevices are those that the OCI runtime makes in every container
// (config-linux.md, default devices): name → major, minor. They need rules of
// their own for runtimes that do not add them.
var basicDevices = [][2]int64{{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, {5, 0}, {5, 2}}

// ptyMajor is the major number of pseudo terminals (devices.txt of Linux).
const ptyMajor = 136

// setDevices gives the container its devices and the rules for them. A request
// for a device at a place of its own holds for privileged containers as well.
func (b *build) setDevices() error {
	l := b.spec.Linux
	l.Resources.Devices = b.basicRules()
	if b.sec.GetPrivileged() && !b.Config.PrivilegedWithoutHostDevices {
		devices, err := b.host.devices()
		if err != nil {
			return fmt.Errorf("list the node's devices: %w", err)
		}
		l.Devices = slices.Clone(devices)
	}
	for i, d := range b.config.GetDevices() {
		devices, err := requestDevices(d)
		if err != nil {
			return fmt.Errorf("devices[%d]: %w", i, err)
		}
		access := cmp.Or(d.GetPermissions(), allAccess)
		for _, dev := range devices {
			l.Devices = replaceDevice(l.Devices, dev)
			l.Resources.Devices = append(l.Resources.Devices, specs.LinuxDeviceCgroup{
				Allow: true, Type: dev.Type, Major: &dev.Major, Minor: &dev.Minor, Access: access,
			})
		}
	}
	return nil
}

// basicRules allow everything to privileged containers that have the node's
// devices, else the basic ones only.
func (b *build) basicRules() []specs.LinuxDeviceCgroup {
	if b.sec.GetPrivileged() && !b.Config.PrivilegedWithoutHostDevices {
		return []specs.LinuxDeviceCgroup{{Allow: true, Access: allAccess}}
	}
	rules := []specs.LinuxDeviceCgroup{{Allow: false, Access: allAccess}}
	for _, d := range basicDevices {
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &d[0], Minor: &d[1], Access: allAccess})
	}
	pty := int64(ptyMajor)
	return append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &pty, Access: allAccess})
}

func replaceDevice(devices []specs.LinuxDevice, d specs.LinuxDevice) []specs.LinuxDevice {
	devices = slices.DeleteFunc(devices, func(o specs.LinuxDevice) bool { return o.Path == d.Path })
	return append(devices, d)
}

// requestDevices are the devices that one entry of the request names: one, or all
// below a directory. A link is followed.
func requestDevices(d *runtime.Device) ([]specs.LinuxDevice, error) {
	resolved, err := filepath.EvalSymlinks(d.GetHostPath())
	if err != nil {
		return nil, fmt.Errorf("find device: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	target := inside(cmp.Or(d.GetContainerPath(), d.GetHostPath()))
	info, err := os.Stat(resolved)
	if err != nil {
		return nil, fmt.Errorf("find device: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if !info.IsDir() {
		dev, err := oci.DeviceFromPath(resolved)
		if err != nil {
			return nil, fmt.Errorf("find device %s: %w: %w", d.GetHostPath(), err, errdefs.ErrInvalidArgument)
		}
		dev.Path = target
		return []specs.LinuxDevice{*dev}, nil
	}
	devices, err := devicesBelow(resolved, nil)
	if err != nil {
		return nil, fmt.Errorf("find devices: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	for i := range devices {
		devices[i].Path = filepath.Join(target, strings.TrimPrefix(devices[i].Path, resolved))
	}
	return devices, nil
}

// notDevices are the parts of /dev that a container has of its own, or that are no devices.
var notDevices = []string{"pts", "shm", "fd", "mqueue", "hugepages", ".lxc", ".lxd-mounts", ".udev", "console", "ptmx"}

// hostDevices are all devices of the node.
func hostDevices() ([]specs.LinuxDevice, error) { return devicesBelow(devDir, notDevices) }

// devicesBelow walks a directory. What vanishes meanwhile is left out, as are
// links, FIFOs and sockets.
func devicesBelow(root string, skip []string) ([]specs.LinuxDevice, error) {
	var out []specs.LinuxDevice
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && p != root {
			return nil
		}
		if err != nil {
			return err
		}
		if rel, _ := filepath.Rel(root, p); slices.Contains(skip, rel) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if e.Type()&fs.ModeDevice == 0 {
			return nil
		}
		d, err := oci.DeviceFromPath(p)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, oci.ErrNotADevice) {
			return nil
		}
		if err != nil {
			return err
		}
		out = append(out, *d)
		return nil
	})
	return out, err
}

// injectCDI applies the CDI devices that the request names in its field and in
// annotations under cdi.k8s.io/, each once. It must come after everything that
// sets a whole field of the spec: devices may bring mounts, hooks, variables, groups.
func (b *build) injectCDI() error {
	names, err := cdiNames(b.config)
	if err != nil || len(names) == 0 {
		return err
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(b.Config.CDISpecDirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("read CDI specifications: %w", err)
	}
	if missing, err := cache.InjectDevices(b.spec, names...); err != nil {
		if len(missing) > 0 {
			return fmt.Errorf("CDI devices %s are not in %s: %w", strings.Join(missing, ", "), strings.Join(b.Config.CDISpecDirs, ", "), errdefs.ErrInvalidArgument)
		}
		return fmt.Errorf("inject CDI devices: %w", err)
	}
	parentsFirst(b.spec.Mounts)
	return nil
}

func cdiNames(c *runtime.ContainerConfig) ([]string, error) {
	var names []string
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for i, d := range c.GetCDIDevices() {
		if !parser.IsQualifiedName(d.GetName()) {
			return nil, invalid(fmt.Sprintf("CDI_devices[%d].name", i), "%q is not of the form vendor/class=name", d.GetName())
		}
		add(d.GetName())
	}
	_, annotated, err := cdi.ParseAnnotations(c.GetAnnotations())
	if err != nil {
		return nil, invalid("annotations", "%v", err)
	}
	for _, name := range annotated {
		add(name)
	}
	return names, nil
}

func validateDevice(field string, d *runtime.Device) error {
	if !filepath.IsAbs(d.GetHostPath()) {
		return invalid(field+".host_path", "%q is not absolute", d.GetHostPath())
	}
	if d.GetContainerPath() != "" && inside(d.GetContainerPath()) == "/" {
		return invalid(field+".container_path", "%q is the root of the container", d.GetContainerPath())
	}
	if strings.Trim(d.GetPermissions(), allAccess) != "" {
		return invalid(field+".permissions", "%q is not made of r, w and m", d.GetPermissions())
	}
	return nil
}
