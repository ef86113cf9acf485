// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/cmd/internal/admin"
	"github.com/sandflow-cri/sandflow/cmd/internal/assembly"
	"github.com/sandflow-cri/sandflow/cmd/internal/config"
	"github.com/sandflow-cri/sandflow/cmd/internal/version"
	"github.com/sandflow-cri/sandflow/cri"
	"github.com/sandflow-cri/sandflow/cri/interceptors"
	"github.com/sandflow-cri/sandflow/engine"
)

const (
	// timelineSubjects is how many pods and containers the timeline remembers.
	timelineSubjects = 1000
	// drainTimeout bounds how long RPCs in flight may go on after the signal.
	drainTimeout = 10 * time.Second
	// closeTimeout bounds how long moves in flight may; the next start takes up what is cut off.
	closeTimeout = 20 * time.Second
)

// instance is one running daemon.
type instance struct {
	cfg      *config.Config
	began    time.Time
	timeline *engine.Timeline
	metrics  *metrics
	launch   *launch
	node     *node
	tasks    tasks
	// undo is run backwards when the daemon ends.
	undo []func(context.Context) error
}

// Run runs the daemon until ctx ends, and leaves pods running. It returns nil
// if it was ctx that ended it. The configuration must be valid; faults that
// show only now, such as an unknown action, are *config.Error.
func Run(ctx context.Context, cfg *config.Config) error {
	own := *cfg // the path of the shim is filled in
	i := &instance{
		cfg: &own, began: time.Now(), timeline: engine.NewTimeline(timelineSubjects), metrics: newMetrics(),
	}
	// What serves must outlive the signal until it has been drained.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	i.tasks.init(life)
	err := i.start(ctx, life)
	if err == nil {
		klog.FromContext(ctx).Info("Serving", "version", version.String(), "socket", cfg.CRI.Socket, "took", time.Since(i.began).Round(time.Millisecond))
		notify(ctx, daemon.SdNotifyReady)
		debug.FreeOSMemory() // starting took more than serving does
		err = i.tasks.wait(ctx)
		notify(ctx, daemon.SdNotifyStopping)
		klog.FromContext(ctx).Info("Stopping; pods go on running")
	} else if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil // told to stop while starting
	}
	return errors.Join(err, i.stop(life))
}

// start brings the parts up, each after those it stands on. If ctx ends on the
// way, the part that is being started is left unfinished and its error returned.
func (i *instance) start(ctx, life context.Context) error {
	for _, part := range []func(ctx, life context.Context) error{
		i.takeDirectories, i.check, i.startMetrics, i.startEngine, i.startAdmin, i.boot, i.startCRI,
	} {
		if err := part(ctx, life); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

func (i *instance) stop(life context.Context) error {
	var errs []error
	for _, f := range slices.Backward(i.undo) {
		errs = append(errs, f(life))
	}
	return errors.Join(append(errs, i.tasks.stop())...)
}

func (i *instance) onStop(f func(context.Context) error) { i.undo = append(i.undo, f) }

func (i *instance) takeDirectories(_, _ context.Context) error {
	if err := makeDirectories(i.cfg); err != nil {
		return err
	}
	for _, dir := range []string{i.cfg.State, i.cfg.Root} {
		f, err := lock(dir)
		if err != nil {
			return err
		}
		i.onStop(func(context.Context) error { return f.Close() })
	}
	return nil
}

// check refuses what is wrong before anything has been touched.
func (i *instance) check(ctx, _ context.Context) error {
	shim, err := findShim(i.cfg)
	if err != nil {
		return err
	}
	i.cfg.Runtime.Shim = shim
	return assembly.Check(ctx, i.cfg)
}

func (i *instance) startMetrics(ctx, _ context.Context) error {
	if i.cfg.Metrics.Address == "" {
		return nil
	}
	l, err := listenTCP(ctx, i.cfg.Metrics.Address)
	if err != nil {
		return i.cfg.Fault("metrics.address", err.Error())
	}
	klog.FromContext(ctx).Info("Serving metrics and pprof", "address", l.Addr().String())
	i.tasks.run("metrics", func(ctx context.Context) error { return i.metrics.serveHTTP(ctx, l) })
	return nil
}

func (i *instance) startEngine(ctx, life context.Context) error {
	journal, err := engine.OpenBolt(i.cfg.JournalPath())
	if err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	observers := []engine.Observer{i.timeline, i.metrics, logs{klog.FromContext(ctx)}}
	i.launch = &launch{cfg: i.cfg, journal: faultJournal(journal), observers: observers}
	store, err := startGraph(life, i.launch)
	if err != nil && i.launch.engine != nil {
		return errors.Join(err, i.launch.engine.Close(life)) // it owns the journal
	}
	if err != nil {
		return errors.Join(err, journal.Close())
	}
	s, e := i.launch.services, i.launch.engine
	i.onStop(func(context.Context) error { return store.Close() }) //nolint:contextcheck // it takes none
	i.onStop(func(context.Context) error {
		s.CNI.Close()
		return s.Runtime.Close()
	})
	i.onStop(func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, closeTimeout)
		defer cancel()
		return e.Close(ctx)
	})
	// Whoever makes moves or looks at processes ends before the engine does.
	i.onStop(func(context.Context) error { return i.tasks.stop() })
	i.metrics.watch(e)
	i.tasks.run("network configurations", s.CNI.Run)
	return nil
}

// startAdmin comes before boot, so that an operator can see what recovery is busy with.
func (i *instance) startAdmin(ctx, _ context.Context) error {
	about := admin.About{
		Version: version.String(), Root: i.cfg.Root, State: i.cfg.State, ConfigFile: i.cfg.File(), Started: i.began,
	}
	g := grpc.NewServer()
	i.node = &node{cfg: i.cfg, launch: i.launch}
	admin.RegisterAdminServer(g, admin.NewServer(i.launch.engine, i.timeline, i.node, about))
	return i.serve(ctx, "admin", i.cfg.Admin.Socket, g)
}

func (i *instance) boot(ctx, _ context.Context) error {
	start := time.Now()
	if err := i.launch.engine.Boot(ctx); err != nil {
		return fmt.Errorf("take up what the last run left: %w", err)
	}
	e := i.launch.engine
	klog.FromContext(ctx).Info("Recovered", "took", time.Since(start).Round(time.Millisecond), "journal", i.cfg.JournalPath())
	i.tasks.run("cleanup", func(ctx context.Context) error {
		e.RunCleanup(ctx)
		return nil
	})
	return nil
}

func (i *instance) startCRI(ctx, _ context.Context) error {
	server, err := cri.New(cri.Dependencies{
		Engine: i.launch.engine, Services: i.launch.services, Stream: assembly.Streaming(i.cfg),
		Version: version.Version, Config: i.cfg,
	})
	if err != nil {
		return fmt.Errorf("make the CRI server: %w", err)
	}
	status := server.Status
	i.node.status.Store(&status)
	options, err := interceptors.ServerOptions(interceptors.Options{Logger: klog.FromContext(ctx), Registerer: i.metrics.registry})
	if err != nil {
		return fmt.Errorf("make the CRI server: %w", err)
	}
	limit := int(i.cfg.CRI.MaxMessage)
	g := grpc.NewServer(append(options, grpc.MaxRecvMsgSize(limit), grpc.MaxSendMsgSize(limit))...)
	server.Register(g)
	// After recovery, and before anybody can make something: plugins see what stands.
	if err := i.launch.services.NRI.Start(ctx, server.Plugins()); err != nil {
		return i.cfg.Fault("nri", err.Error())
	}
	i.onStop(func(context.Context) error {
		i.launch.services.NRI.Stop()
		return nil
	})
	if err := server.Start(ctx); err != nil {
		return i.cfg.Fault("cri.stream_address", err.Error())
	}
	i.tasks.run("cri", server.Run)
	if err := i.serve(ctx, "cri", i.cfg.CRI.Socket, g); err != nil {
		return err
	}
	i.onStop(func(context.Context) error { // before the RPCs in flight are waited for
		server.Drain()
		return nil
	})
	return nil
}

// serve serves g on a unix socket until the daemon stops; then RPCs in flight
// may end, within a bound.
func (i *instance) serve(ctx context.Context, name, socket string, g *grpc.Server) error {
	l, err := listenUnix(ctx, socket)
	if err != nil {
		return i.cfg.Fault(name+".socket", err.Error())
	}
	i.tasks.run(name+" socket", func(context.Context) error {
		if err := g.Serve(l); !errors.Is(err, grpc.ErrServerStopped) { // told to stop before it served
			return err
		}
		return nil
	})
	i.onStop(func(context.Context) error {
		t := time.AfterFunc(drainTimeout, g.Stop)
		defer t.Stop()
		g.GracefulStop()
		return nil
	})
	return nil
}

// notify tells systemd, if it is systemd that started the daemon.
func notify(ctx context.Context, state string) {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return
	}
	if _, err := daemon.SdNotify(false, state); err != nil {
		klog.FromContext(ctx).Error(err, "Could not notify systemd", "state", state)
	}
}
