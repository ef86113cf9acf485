// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
)

// step is the time between two values of a series below.
const step = time.Minute

// alertCases have for each alert series with which it must fire, and others, often nearly
// the same, with which it must not. They are in Prometheus' notation for tests: a+bxN is a,
// a+b, a+2b …, N times more.
var alertCases = map[string]struct{ fires, quiet []string }{
	"SandflowDown": {
		fires: []string{`up{job="sandflow",instance="a"} 0x60`},
		quiet: []string{`up{job="sandflow",instance="a"} 0x57 1 0 0`, `up{job="other",instance="a"} 0x60`},
	},
	"SandflowRestarts": {
		fires: []string{`process_start_time_seconds{job="sandflow",instance="a"} 1000x20 2000x10 3000x10 4000x5 5000x11`},
		quiet: []string{`process_start_time_seconds{job="sandflow",instance="a"} 1000x20 2000x39`},
	},
	"SandflowStuck": {
		fires: []string{`sandflow_stuck_oldest_seconds{workflow="sandbox"} 0+60x60`},
		quiet: []string{`sandflow_stuck_oldest_seconds{workflow="sandbox"} 0x55 0+60x5`},
	},
	"SandflowUndoFails": {
		fires: []string{`sandflow_action_duration_seconds_count{instance="a",workflow="sandbox",action="network",direction="undo",outcome="failed"} 0+1x60`},
		quiet: []string{
			`sandflow_action_duration_seconds_count{instance="a",workflow="sandbox",action="network",direction="undo",outcome="failed"} 0x57 1 2 2`,
			`sandflow_action_duration_seconds_count{instance="a",workflow="sandbox",action="network",direction="do",outcome="failed"} 0+1x60`,
		},
	},
	"SandflowPodsFail": {
		fires: []string{
			`sandflow_flow_duration_seconds_count{instance="a",workflow="sandbox",flow="create",outcome="failed"} 0+1x60`,
			`sandflow_flow_duration_seconds_count{instance="a",workflow="sandbox",flow="create",outcome="ok"} 0+3x60`,
		},
		quiet: []string{
			`sandflow_flow_duration_seconds_count{instance="a",workflow="sandbox",flow="create",outcome="failed"} 0+1x60`,
			`sandflow_flow_duration_seconds_count{instance="a",workflow="sandbox",flow="create",outcome="ok"} 0+9x60`,
		},
	},
	"SandflowContainersFail": {
		fires: []string{
			`sandflow_flow_duration_seconds_count{instance="a",workflow="container",flow="start",outcome="failed"} 0+2x60`,
			`sandflow_flow_duration_seconds_count{instance="a",workflow="container",flow="create",outcome="ok"} 0+3x60`,
		},
		quiet: []string{
			`sandflow_flow_duration_seconds_count{instance="a",workflow="container",flow="stop",outcome="failed"} 0+2x60`,
			`sandflow_flow_duration_seconds_count{instance="a",workflow="container",flow="create",outcome="ok"} 0+3x60`,
		},
	},
	"SandflowPodsSlow": {
		fires: []string{
			`sandflow_flow_duration_seconds_bucket{instance="a",workflow="sandbox",flow="create",outcome="ok",le="10"} 0+1x60`,
			`sandflow_flow_duration_seconds_bucket{instance="a",workflow="sandbox",flow="create",outcome="ok",le="30"} 0+2x60`,
			`sandflow_flow_duration_seconds_bucket{instance="a",workflow="sandbox",flow="create",outcome="ok",le="+Inf"} 0+2x60`,
		},
		quiet: []string{
			`sandflow_flow_duration_seconds_bucket{instance="a",workflow="sandbox",flow="create",outcome="ok",le="10"} 0+19x60`,
			`sandflow_flow_duration_seconds_bucket{instance="a",workflow="sandbox",flow="create",outcome="ok",le="30"} 0+20x60`,
			`sandflow_flow_duration_seconds_bucket{instance="a",workflow="sandbox",flow="create",outcome="ok",le="+Inf"} 0+20x60`,
		},
	},
	"SandflowRefuses": {
		fires: []string{`sandflow_flow_refused_total{instance="a",workflow="sandbox",flow="create"} 0x50 0+1x9`},
		quiet: []string{`sandflow_flow_refused_total{instance="a",workflow="sandbox",flow="create"} 0x20 7x39`},
	},
	"SandflowFull": {
		fires: []string{
			`sandflow_flow_in_flight{instance="a",workflow="sandbox",flow="create"} 100x60`,
			`sandflow_flow_limit{instance="a",workflow="sandbox",flow="create"} 100x60`,
		},
		quiet: []string{ // no limit, and a moment
			`sandflow_flow_in_flight{instance="a",workflow="sandbox",flow="destroy"} 100x60`,
			`sandflow_flow_limit{instance="a",workflow="sandbox",flow="destroy"} 0x60`,
			`sandflow_flow_in_flight{instance="a",workflow="sandbox",flow="create"} 10x55 100x4`,
			`sandflow_flow_limit{instance="a",workflow="sandbox",flow="create"} 100x60`,
		},
	},
	"SandflowPullsFail": {
		fires: []string{`sandflow_flow_duration_seconds_count{instance="a",workflow="image",flow="pull",outcome="failed"} 0+1x60`},
		quiet: []string{
			`sandflow_flow_duration_seconds_count{instance="a",workflow="image",flow="pull",outcome="failed"} 0+1x60`,
			`sandflow_flow_duration_seconds_count{instance="a",workflow="image",flow="pull",outcome="ok"} 0+2x60`,
		},
	},
	"SandflowErrors": {
		fires: []string{`sandflow_cri_requests_total{instance="a",method="StopContainer",code="Internal"} 0+1x60`},
		quiet: []string{
			`sandflow_cri_requests_total{instance="a",method="PullImage",code="Unknown"} 0+1x60`,
			`sandflow_cri_requests_total{instance="a",method="ContainerStatus",code="NotFound"} 0+1x60`,
		},
	},
	"SandflowFiles": {
		fires: []string{
			`process_open_fds{job="sandflow",instance="a"} 900x60`, `process_max_fds{job="sandflow",instance="a"} 1000x60`,
		},
		quiet: []string{
			`process_open_fds{job="sandflow",instance="a"} 700x60`, `process_max_fds{job="sandflow",instance="a"} 1000x60`,
		},
	},
}

// sample is one value of a series.
type sample struct {
	at    int64
	value float64
}

func (s sample) ST() int64                   { return 0 }
func (s sample) T() int64                    { return s.at }
func (s sample) F() float64                  { return s.value }
func (sample) H() *histogram.Histogram       { return nil }
func (sample) FH() *histogram.FloatHistogram { return nil }
func (sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample         { return s }

// store answers Prometheus' engine from the series of a case.
func store(t *testing.T, descriptions []string) storage.Queryable {
	t.Helper()
	var all []storage.Series
	for _, d := range descriptions {
		l, values, err := language.ParseSeriesDesc(d)
		if err != nil {
			t.Fatalf("%s: %v", d, err)
		}
		var samples []chunks.Sample
		for i, v := range values {
			samples = append(samples, sample{int64(i) * step.Milliseconds(), v.Value})
		}
		all = append(all, storage.NewListSeries(l, samples))
	}
	querier := &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		return &seriesSet{SeriesSet: storage.EmptySeriesSet(), series: slices.DeleteFunc(slices.Clone(all), func(s storage.Series) bool {
			return slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Labels().Get(m.Name)) })
		})}
	}}
	return &storage.MockQueryable{MockQuerier: querier}
}

// fires tells whether a rule's expression has held for all of the rule's time, at the end of
// an hour.
func fires(t *testing.T, name string, series []string) bool {
	t.Helper()
	rule := rules(t)[name]
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, LookbackDelta: 5 * time.Minute})
	end := time.Unix(0, 0).Add(59 * step)
	for at := end.Add(-time.Duration(rule.For)); !at.After(end); at = at.Add(step) {
		q, err := engine.NewInstantQuery(t.Context(), store(t, series), nil, rule.Expr, at)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		r := q.Exec(t.Context())
		if r.Err != nil {
			t.Fatalf("%s: %v", name, r.Err)
		}
		v, err := r.Vector()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		held := len(v) > 0
		q.Close()
		if !held {
			return false
		}
	}
	return true
}

// TestAlerts shows that each alert fires when it should, and not when it should not.
func TestAlerts(t *testing.T) {
	if got, want := slices.Sorted(maps.Keys(rules(t))), slices.Sorted(maps.Keys(alertCases)); !slices.Equal(got, want) {
		t.Errorf("there are cases for %v, and alerts %v", want, got)
	}
	for name, c := range alertCases {
		if !fires(t, name, c.fires) {
			t.Errorf("%s does not fire with %v", name, c.fires)
		}
		if fires(t, name, c.quiet) {
			t.Errorf("%s fires with %v", name, c.quiet)
		}
	}
}

// seriesSet goes through a list. It has no errors and no warnings.
type seriesSet struct {
	storage.SeriesSet

	series []storage.Series
	next   int
}

func (s *seriesSet) Next() bool {
	s.next++
	return s.next <= len(s.series)
}

func (s *seriesSet) At() storage.Series { return s.series[s.next-1] }
