// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/cni/cnitest"
)

// realNetwork is a bridge network with both families and host ports, made by the real plugins.
func realNetwork(t *testing.T) (*cni.Network, string) {
	t.Helper()
	bin := cnitest.Plugins(t, "bridge", "host-local", "portmap")
	l := newLab(t, func(c *cni.Config) { c.BinDirs = []string{bin} })
	leases := t.TempDir()
	l.write("10-real.conflist", fmt.Sprintf(`{"cniVersion":"1.0.0","name":"real","plugins":[
		{"type":"bridge","bridge":"cnireal0","isGateway":true,"ipMasq":true,"hairpinMode":true,
		 "ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.88.7.0/24"}],[{"subnet":"fd88:7::/64"}]]}},
		{"type":"portmap","capabilities":{"portMappings":true}}]}`, leases))
	return l.net(), leases
}

// world leaves out what host-local keeps for the whole network.
func world(t *testing.T, leases string) []string {
	t.Helper()
	all := cnitest.World(t, leases)
	kept := []string{filepath.Join(leases, "real"), filepath.Join(leases, "real", "lock")}
	all = slices.DeleteFunc(all, func(s string) bool {
		return slices.Contains(kept, s) || filepath.Base(s) == "last_reserved_ip.0" || filepath.Base(s) == "last_reserved_ip.1"
	})
	slices.Sort(all)
	return all
}

// inside runs f on a thread in the network namespace.
func inside(t *testing.T, netns string, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		file, err := os.Open(netns)
		if err != nil {
			done <- err
			return
		}
		err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
		done <- errors.Join(err, file.Close(), f())
	}()
	return <-done
}

// serve answers each TCP connection and each UDP datagram at port with who, in both families.
func serve(t *testing.T, netns, who string, port int) {
	t.Helper()
	for _, family := range []string{"4", "6"} {
		var tcp net.Listener
		var udp net.PacketConn
		err := inside(t, netns, func() (err error) {
			if tcp, err = net.Listen("tcp"+family, fmt.Sprintf(":%d", port)); err != nil {
				return err
			}
			udp, err = net.ListenPacket("udp"+family, fmt.Sprintf(":%d", port))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = tcp.Close(), udp.Close() })
		go answerTCP(tcp, who)
		go answerUDP(udp, who)
	}
}

func answerTCP(l net.Listener, who string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = c.Write([]byte(who))
		_ = c.Close()
	}
}

func answerUDP(c net.PacketConn, who string) {
	buf := make([]byte, 64)
	for {
		_, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = c.WriteTo([]byte(who), from)
	}
}

// ask asks until it is answered: a new address of IPv6 takes a moment to become usable.
func ask(network, address string) (got string, err error) {
	for range 20 {
		if got, err = askOnce(network, address); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	return got, err
}

func askOnce(network, address string) (string, error) {
	c, err := net.DialTimeout(network, address, 2*time.Second)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	if _, err := c.Write([]byte("who?")); err != nil {
		return "", err
	}
	buf := make([]byte, 64)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

// flow is a UDP client that never changes its port, so that all its datagrams
// are one flow to the node's connection tracking.
func flow(t *testing.T, address string) func(want string) {
	t.Helper()
	c, err := net.Dial("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return func(want string) {
		t.Helper()
		var got string
		for range 50 {
			_, _ = c.Write([]byte("who?"))
			if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 64)
			n, err := c.Read(buf)
			if got = string(buf[:n]); err == nil && got == want {
				return
			}
		}
		t.Errorf("the old UDP flow is answered by %q, not by %q", got, want)
	}
}

// TestRealPlugins is CASES 79 and 80 with bridge, host-local and portmap: the
// same host ports are used again and again, TCP and UDP.
func TestRealPlugins(t *testing.T) {
	n, leases := realNetwork(t)
	before := world(t, leases)
	var still func(want string)
	for round := range 5 {
		netns := cnitest.NetNS(t)
		id := fmt.Sprintf("pod%d", round)
		at := cni.Attachment{ID: id, NetNS: netns, PodName: id, PodNamespace: "default", PortMappings: []cni.PortMapping{
			{HostPort: 18080, ContainerPort: 80, Protocol: "tcp"},
			{HostPort: 18080, ContainerPort: 80, Protocol: "udp"},
			{HostPort: 18081, ContainerPort: 80, Protocol: "sctp", HostIP: "127.0.0.1"},
		}}
		res, err := n.Attach(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		if len(res.IPs) != 2 || net.ParseIP(res.IPs[0]).To4() == nil || net.ParseIP(res.IPs[1]).To4() != nil {
			t.Fatalf("addresses %v, want v4 and v6", res.IPs)
		}
		serve(t, netns, id, 80)
		for _, network := range []string{"tcp", "udp"} {
			for _, address := range []string{net.JoinHostPort(res.IPs[0], "80"), net.JoinHostPort(res.IPs[1], "80"), "10.88.7.1:18080", "127.0.0.1:18080"} {
				if got, err := ask(network, address); err != nil || got != id {
					t.Errorf("%s %s answers %q, %v; want %q", network, address, got, err, id)
				}
			}
		}
		if still == nil {
			still = flow(t, "10.88.7.1:18080")
		}
		still(id)
		if slices.Equal(before, world(t, leases)) {
			t.Fatal("nothing to see of the attachment: the test proves nothing")
		}
		for range 2 {
			if err := n.Detach(t.Context(), cni.Attachment{ID: id, Saved: res.Saved}); err != nil {
				t.Fatal(err)
			}
		}
		if now := world(t, leases); !slices.Equal(before, now) {
			t.Fatalf("left behind:\nbefore %q\nnow    %q", before, now)
		}
	}
}

// TestRealPluginsAfterReboot is CASES 8: DEL with an empty netns frees the leases.
func TestRealPluginsAfterReboot(t *testing.T) {
	n, leases := realNetwork(t)
	netns := cnitest.NetNS(t)
	res, err := n.Attach(t.Context(), cni.Attachment{ID: "p1", NetNS: netns, PodName: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(netns, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := n.Detach(t.Context(), cni.Attachment{ID: "p1", Saved: res.Saved}); err != nil {
		t.Fatal(err)
	}
	for _, l := range cnitest.Tree(t, leases) {
		if net.ParseIP(filepath.Base(l)) != nil {
			t.Errorf("the lease %s is not freed", l)
		}
	}
}
