// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// bus is a D-Bus on a socket of its own, with a systemd that only notes what it is asked.
type bus struct {
	result  string // of jobs; empty: they never end
	refuse  *dbus.Error
	mu      sync.Mutex
	conns   []*dbus.Conn
	started []unit
}

// unit is a transient unit that was asked for.
type unit struct {
	name, mode string
	properties map[string]any
}

// property is one as it is on the wire.
type property struct {
	Name  string
	Value dbus.Variant
}

// auxiliary are further units, of which there are none.
type auxiliary struct {
	Name       string
	Properties []property
}

// newBus serves a bus at which this process finds systemd.
func newBus(t *testing.T, b *bus) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bus")
	l, err := net.Listen("unix", path)
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
			if err := b.serve(c); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
		for _, c := range b.conns {
			_ = c.Close()
		}
	})
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+path)
}

// serve lets a client in, and answers it.
func (b *bus) serve(c net.Conn) error {
	in := bufio.NewReader(c)
	for begun := false; !begun; {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		answer := ""
		switch word, how, _ := strings.Cut(strings.Trim(line, "\x00\r\n"), " "); {
		case word == "AUTH" && how == "":
			answer = "REJECTED EXTERNAL\r\n"
		case word == "AUTH":
			answer = "OK 0123456789abcdef0123456789abcdef\r\n"
		case word == "BEGIN":
			begun = true
		default:
			answer = "ERROR\r\n"
		}
		if _, err := io.WriteString(c, answer); err != nil {
			return err
		}
	}
	conn, err := dbus.NewConn(&admitted{Reader: in, Conn: c})
	if err == nil {
		err = errors.Join(
			conn.ExportMethodTable(map[string]any{
				"Hello":    func() (string, *dbus.Error) { return ":1.1", nil },
				"AddMatch": func(string) *dbus.Error { return nil },
			}, "/org/freedesktop/DBus", "org.freedesktop.DBus"),
			conn.ExportMethodTable(map[string]any{"StartTransientUnit": b.start}, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"),
			conn.Auth([]dbus.Auth{dbus.AuthAnonymous()}),
		)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns = append(b.conns, conn)
	return err
}

func (b *bus) start(name, mode string, properties []property, _ []auxiliary) (dbus.ObjectPath, *dbus.Error) {
	if b.refuse != nil {
		return "", b.refuse
	}
	u := unit{name, mode, map[string]any{}}
	for _, p := range properties {
		u.properties[p.Name] = p.Value.Value()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.started = append(b.started, u)
	const job = dbus.ObjectPath("/org/freedesktop/systemd1/job/7")
	if b.result != "" {
		for _, c := range b.conns {
			_ = c.Emit("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager.JobRemoved", uint32(7), job, name, b.result)
		}
	}
	return job, nil
}

// asked are the units that were asked for.
func (b *bus) asked() []unit {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.started)
}

// admitted is a connection whose client has been let in: the server's end, made by a library
// for clients, believes to be let in itself.
type admitted struct {
	io.Reader
	net.Conn
	said  bytes.Buffer
	begun bool
}

func (a *admitted) Read(p []byte) (int, error) {
	if a.said.Len() > 0 {
		return a.said.Read(p)
	}
	return a.Reader.Read(p)
}

func (a *admitted) Write(p []byte) (int, error) {
	if a.begun {
		return a.Conn.Write(p)
	}
	switch {
	case bytes.Contains(p, []byte("BEGIN")):
		a.begun = true
	case bytes.Contains(p, []byte("AUTH ANONYMOUS")):
		a.said.WriteString("OK 0\r\n")
	case bytes.Contains(p, []byte("AUTH")):
		a.said.WriteString("REJECTED ANONYMOUS\r\n")
	}
	return len(p), nil
}

// The init of a pod gets a scope in the pod's slice.
func TestJoinScope(t *testing.T) {
	b := &bus{result: "done"}
	newBus(t, b)
	if err := joinScope(t.Context(), "kubepods-podx.slice:sandflow:c0ffee", 4711); err != nil {
		t.Fatal(err)
	}
	asked := b.asked()
	if len(asked) != 1 || asked[0].name != "sandflow-c0ffee.scope" || asked[0].mode != "replace" {
		t.Fatalf("systemd was asked for %+v", asked)
	}
	p := asked[0].properties
	pids, _ := p["PIDs"].([]uint32)
	if p["Slice"] != "kubepods-podx.slice" || len(pids) != 1 || pids[0] != 4711 || p["DefaultDependencies"] != false {
		t.Errorf("the scope has %v", p)
	}
}

// What systemd cannot do is an error that says so, and one that never answers holds up nothing.
func TestJoinScopeFails(t *testing.T) {
	t.Run("job", func(t *testing.T) {
		newBus(t, &bus{result: "failed"})
		if err := joinScope(t.Context(), "a.slice:sandflow:x", 1); err == nil || !strings.Contains(err.Error(), `"failed"`) {
			t.Error(err)
		}
	})
	t.Run("refused", func(t *testing.T) {
		newBus(t, &bus{refuse: dbus.NewError("org.freedesktop.systemd1.UnitExists", []any{"it is there"})})
		if err := joinScope(t.Context(), "a.slice:sandflow:x", 1); err == nil || !strings.Contains(err.Error(), "it is there") {
			t.Error(err)
		}
	})
	t.Run("hangs", func(t *testing.T) {
		newBus(t, &bus{})
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := joinScope(ctx, "a.slice:sandflow:x", 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	t.Run("no bus", func(t *testing.T) {
		t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "none"))
		if err := joinScope(t.Context(), "a.slice:sandflow:x", 1); err == nil || !strings.Contains(err.Error(), "systemd") {
			t.Error(err)
		}
	})
}
