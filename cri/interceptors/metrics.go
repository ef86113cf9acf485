// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package interceptors

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

// metrics of the RPCs.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
}

// newMetrics makes the metrics and registers them; a nil registerer keeps them
// to themselves.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandflow_cri_requests_total",
			Help: "RPCs answered, by method and gRPC code.",
		}, []string{"method", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sandflow_cri_request_duration_seconds",
			Help:    "How long RPCs took, by method.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 14), // 0.5 ms to 75 s
		}, []string{"method"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sandflow_cri_requests_in_flight",
			Help: "RPCs being served, by method.",
		}, []string{"method"}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.duration, m.inFlight} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register the metrics of RPCs: %w", err)
		}
	}
	return m, nil
}

// begin counts an RPC in; the result counts it out.
func (m *metrics) begin(method string) (end func(codes.Code)) {
	start := time.Now()
	m.inFlight.WithLabelValues(method).Inc()
	return func(code codes.Code) {
		m.inFlight.WithLabelValues(method).Dec()
		m.duration.WithLabelValues(method).Observe(time.Since(start).Seconds())
		m.requests.WithLabelValues(method, code.String()).Inc()
	}
}
