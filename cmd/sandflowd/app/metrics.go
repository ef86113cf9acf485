// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sandflow-cri/sandflow/cmd/internal/version"
	"github.com/sandflow-cri/sandflow/engine"
)

// counters is what metrics ask of the engine at each scrape.
type counters interface {
	Flows() []engine.FlowStatus
	List(workflow string) []*engine.View
}

// metrics is an observer that measures, and a collector of the engine's own counters.
type metrics struct {
	registry *prometheus.Registry
	flows    *prometheus.HistogramVec
	actions  *prometheus.HistogramVec
	engine   atomic.Pointer[counters]
	now      func() time.Time
}

// Buckets reach from a netns to a slow CNI plugin.
var buckets = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		flows: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sandflow_flow_duration_seconds", Help: "Duration of flows.", Buckets: buckets,
		}, []string{"workflow", "flow", "outcome"}),
		actions: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sandflow_action_duration_seconds", Help: "Duration of actions; direction is do, undo or rollback.", Buckets: buckets,
		}, []string{"workflow", "action", "direction", "outcome"}),
		now: time.Now,
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "sandflow_build_info", Help: "The version of the daemon; always 1.", ConstLabels: prometheus.Labels{"version": version.Version},
	})
	info.Set(1)
	m.registry.MustRegister(m.flows, m.actions, m, info)
	return m
}

// Around implements engine.Observer.
func (m *metrics) Around(ctx context.Context, s engine.Span, next func(context.Context) error) error {
	if s.Skipped {
		return next(ctx)
	}
	start := time.Now()
	err := next(ctx)
	took := time.Since(start).Seconds()
	if s.Action == "" {
		m.flows.WithLabelValues(s.Workflow, s.Flow, outcome(err)).Observe(took)
		return err
	}
	direction := "do"
	switch {
	case s.Rollback:
		direction = "rollback"
	case s.Down:
		direction = "undo"
	}
	m.actions.WithLabelValues(s.Workflow, s.Action, direction, outcome(err)).Observe(took)
	return err
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sandflow_"+name, help, labels, nil)
}

var (
	descInFlight = desc("flow_in_flight", "Flows in flight now.", "workflow", "flow")
	descWaiting  = desc("flow_waiting", "Callers waiting for a place now.", "workflow", "flow")
	descLimit    = desc("flow_limit", "How many may be in flight; 0 is unlimited.", "workflow", "flow")
	descPeak     = desc("flow_peak", "The most that were in flight at once since the start.", "workflow", "flow")
	descRefused  = desc("flow_refused_total", "Flows refused by the limit since the start.", "workflow", "flow")
	descSubjects = desc("subjects", "Pods and containers by what they are doing.", "workflow", "phase")
	descOldest   = desc("stuck_oldest_seconds", "How long the oldest stuck pod or container has been stuck.", "workflow")
)

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descInFlight, descWaiting, descLimit, descPeak, descRefused, descSubjects, descOldest} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	e := m.engine.Load()
	if e == nil {
		return
	}
	workflows := map[string]bool{}
	for _, f := range (*e).Flows() {
		workflows[f.Workflow] = true
		for d, v := range map[*prometheus.Desc]int{descInFlight: f.InFlight, descWaiting: f.Waiting, descLimit: f.Limit, descPeak: f.Peak} {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), f.Workflow, f.Flow)
		}
		ch <- prometheus.MustNewConstMetric(descRefused, prometheus.CounterValue, float64(f.Refused), f.Workflow, f.Flow)
	}
	for w := range workflows {
		m.collectSubjects(ch, w, (*e).List(w))
	}
}

func (m *metrics) collectSubjects(ch chan<- prometheus.Metric, workflow string, all []*engine.View) {
	phases := map[engine.Phase]int{engine.Standing: 0, engine.Climbing: 0, engine.Descending: 0, engine.Stuck: 0}
	oldest := time.Duration(0)
	for _, v := range all {
		phases[v.Phase]++
		if v.Phase == engine.Stuck {
			oldest = max(oldest, m.now().Sub(v.Since))
		}
	}
	for phase, n := range phases {
		ch <- prometheus.MustNewConstMetric(descSubjects, prometheus.GaugeValue, float64(n), workflow, string(phase))
	}
	ch <- prometheus.MustNewConstMetric(descOldest, prometheus.GaugeValue, oldest.Seconds(), workflow)
}

func (m *metrics) watch(e counters) { m.engine.Store(&e) }

// handler serves our metrics with those that libraries put into the default
// registry, and pprof.
func (m *metrics) handler() http.Handler {
	mux := http.NewServeMux()
	all := prometheus.Gatherers{m.registry, prometheus.DefaultGatherer}
	mux.Handle("/metrics", promhttp.HandlerFor(all, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

const headerTimeout = 10 * time.Second

// serveHTTP serves metrics on l until ctx ends.
func (m *metrics) serveHTTP(ctx context.Context, l net.Listener) error {
	s := &http.Server{Handler: m.handler(), ReadHeaderTimeout: headerTimeout}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
