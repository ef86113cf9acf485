// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"
)

// newPod gives the node a pod with its own network.
func newPod(t *testing.T, n *node) ns.NetNS {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making a network namespace takes root")
	}
	var file *os.File
	var err error
	made := make(chan struct{})
	go func() {
		defer close(made)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			file, err = os.Open("/proc/thread-self/ns/net")
		}
	}()
	<-made
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	path := fmt.Sprintf("/proc/self/fd/%d", file.Fd())
	netns, err := ns.GetNS(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netns.Close() })
	err = netns.Do(func(ns.NetNS) error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	if err != nil {
		t.Fatal(err)
	}
	n.netns["pod"] = path
	return netns
}

// listen serves connections at an address in the namespace, nil being ours; it returns the port.
func listen(t *testing.T, netns ns.NetNS, network, addr string, handle func(*net.TCPConn)) uint16 {
	t.Helper()
	var l net.Listener
	open := func(ns.NetNS) (err error) {
		l, err = net.Listen(network, addr)
		return err
	}
	var err error
	if netns == nil {
		err = open(nil)
	} else {
		err = netns.Do(open)
	}
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				handle(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// sessionDialers are the clients that exist for port-forward.
var sessionDialers = map[string]func(u *url.URL) (httpstream.Dialer, error){
	"SPDY": func(u *url.URL) (httpstream.Dialer, error) {
		transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
		if err != nil {
			return nil, err
		}
		return spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, u), nil
	},
	"WebSocket": func(u *url.URL) (httpstream.Dialer, error) {
		return portforward.NewSPDYOverWebsocketDialerForStreaming(u, &rest.Config{})
	},
}

// overEach runs a test with each of the clients.
func overEach(t *testing.T, test func(t *testing.T, transport string)) {
	for transport := range sessionDialers {
		t.Run(transport, func(t *testing.T) { test(t, transport) })
	}
}

func dialer(t *testing.T, s *Server, transport, pod string) httpstream.Dialer {
	t.Helper()
	reply, err := s.GetPortForward(&cri.PortForwardRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(reply.GetUrl())
	if err != nil {
		t.Fatal(err)
	}
	d, err := sessionDialers[transport](u)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// forward opens a session with the real client; it returns the local address of each port.
func forward(t *testing.T, s *Server, transport, pod string, ports ...uint16) []string {
	t.Helper()
	specs := make([]string, 0, len(ports))
	for _, p := range ports {
		specs = append(specs, fmt.Sprintf("0:%d", p))
	}
	stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	f, err := portforward.NewOnAddressesForStreaming(dialer(t, s, transport, pod), []string{"127.0.0.1"}, specs, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	go func() { ended <- f.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(stop)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	forwarded, err := f.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	local := make([]string, 0, len(ports))
	for _, p := range forwarded {
		local = append(local, net.JoinHostPort("127.0.0.1", strconv.Itoa(int(p.Local))))
	}
	return local
}

// ask sends a question, ends its output, and reads the whole answer.
func ask(addr, question string) (string, error) {
	c, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, question); err != nil {
		return "", err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	return string(answer), err
}

// echo answers with the question, once it is complete.
func echo(name string) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		question, err := io.ReadAll(c)
		if err == nil {
			_, _ = io.WriteString(c, name+":"+string(question))
		}
	}
}

// Case 36: all kinds of listeners answer, inside the pod and on the node's network.
func TestPortForwardAddresses(t *testing.T) { overEach(t, testPortForwardAddresses) }

func testPortForwardAddresses(t *testing.T, transport string) {
	s, n := serve(t, Config{})
	pod := newPod(t, n)
	for _, where := range []struct {
		pod   string
		netns ns.NetNS
	}{{"pod", pod}, {"host", nil}} {
		t.Run(where.pod, func(t *testing.T) {
			local := forward(t, s, transport, where.pod,
				listen(t, where.netns, "tcp4", "127.0.0.1:0", echo("a")), listen(t, where.netns, "tcp6", "[::1]:0", echo("b")),
				listen(t, where.netns, "tcp4", "0.0.0.0:0", echo("c")), listen(t, where.netns, "tcp6", "[::]:0", echo("d")))
			for i, addr := range local {
				name := string(rune('a' + i))
				if got, err := ask(addr, "hello"); err != nil || got != name+":hello" {
					t.Errorf("listener %s: %q, %v", name, got, err)
				}
			}
		})
	}
}

// raw opens one connection of a session as a client does; it gives the data and error streams.
func raw(t *testing.T, session httpstream.Connection, id int, port uint16) (data, errs httpstream.Stream) {
	t.Helper()
	h := http.Header{}
	h.Set("port", strconv.Itoa(int(port)))
	h.Set("requestID", strconv.Itoa(id))
	h.Set("streamType", "error")
	errs, err := session.CreateStream(h)
	if err != nil {
		t.Fatal(err)
	}
	h.Set("streamType", "data")
	data, err = session.CreateStream(h)
	if err != nil {
		t.Fatal(err)
	}
	return data, errs
}

// Case 36: a refused port is an error on its connection, and on no other.
func TestPortForwardRefused(t *testing.T) { overEach(t, testPortForwardRefused) }

func testPortForwardRefused(t *testing.T, transport string) {
	s, n := serve(t, Config{})
	pod := newPod(t, n)
	port := listen(t, pod, "tcp4", "127.0.0.1:0", echo("a"))
	session, _, err := dialer(t, s, transport, "pod").Dial("portforward.k8s.io")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close() }()
	// Often: the refusal can be as fast as the answer that the streams exist.
	for id := range 200 {
		_, errs := raw(t, session, id, 1)
		message, err := io.ReadAll(errs)
		if err != nil || !strings.Contains(string(message), "connection refused") || !strings.Contains(string(message), "[::1]:1") {
			t.Fatalf("the error is %q, %v", message, err)
		}
	}
	data, errs := raw(t, session, 200, port)
	if _, err := io.WriteString(data, "hello"); err != nil {
		t.Fatal(err)
	}
	_ = data.Close()
	answer, err := io.ReadAll(data)
	if err != nil || string(answer) != "a:hello" {
		t.Errorf("the answer is %q, %v", answer, err)
	}
	if message, err := io.ReadAll(errs); err != nil || len(message) > 0 {
		t.Errorf("the good connection has the error %q, %v", message, err)
	}
}

// Case 37: connections that are reset or cut end alone, a half-closed one gets
// all of its answer, and nothing is left.
func TestPortForwardBadConnections(t *testing.T) { overEach(t, testPortForwardBadConnections) }

func testPortForwardBadConnections(t *testing.T, transport string) {
	s, n := serve(t, Config{})
	pod := newPod(t, n)
	big := bytes.Repeat([]byte("0123456789abcdef"), 5<<20/16)
	resets := listen(t, pod, "tcp4", "127.0.0.1:0", func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 1))
		_ = c.SetLinger(0)
	})
	answers := listen(t, pod, "tcp4", "127.0.0.1:0", func(c *net.TCPConn) {
		if _, err := io.Copy(io.Discard, c); err == nil {
			_, _ = c.Write(big)
		}
	})
	before := count(t)
	t.Run("session", func(t *testing.T) {
		local := forward(t, s, transport, "pod", resets, answers)
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				switch i % 3 {
				case 0: // the server resets it
					_, _ = ask(local[0], strings.Repeat("x", 1<<20))
				case 1: // the client cuts it
					c, err := net.Dial("tcp", local[1])
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = io.WriteString(c, "x")
					_ = c.(*net.TCPConn).SetLinger(0)
					_ = c.Close()
				default:
					if got, err := ask(local[1], "question"); err != nil || got != string(big) {
						t.Errorf("connection %d: %d bytes of the answer, %v", i, len(got), err)
					}
				}
			})
		}
		wg.Wait()
		if got, err := ask(local[1], "question"); err != nil || got != string(big) {
			t.Errorf("the session is not usable: %d bytes of the answer, %v", len(got), err)
		}
	})
	settle(t, before)
}

// Sessions cut by their client end the connections that never end by themselves.
func TestPortForwardDoesNotLeak(t *testing.T) { overEach(t, testPortForwardDoesNotLeak) }

func testPortForwardDoesNotLeak(t *testing.T, transport string) {
	s, n := serve(t, Config{})
	pod := newPod(t, n)
	port := listen(t, pod, "tcp4", "127.0.0.1:0", func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "x")
		for { // deaf to the end of its input: it ends when the connection does
			time.Sleep(10 * time.Millisecond)
			if _, err := io.WriteString(c, "x"); err != nil {
				return
			}
		}
	})
	before := count(t)
	for i := range 200 {
		session, _, err := dialer(t, s, transport, "pod").Dial("portforward.k8s.io")
		if err != nil {
			t.Fatal(err)
		}
		data, _ := raw(t, session, i, port)
		if _, err := io.ReadFull(data, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		_ = session.Close()
	}
	settle(t, before)
}
