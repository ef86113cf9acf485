// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manifests checks the files of deploy/ with the code of the programs that read
// them: Prometheus, Grafana, kubelet, kind and Docker's builder.
package manifests

import (
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

const (
	alertsFile    = "../../deploy/monitoring/alerts.yaml"
	dashboardFile = "../../deploy/monitoring/dashboard.json"
)

var language = parser.NewParser(parser.Options{})

// rules are the alert rules, checked by Prometheus.
func rules(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile(alertsFile, false, model.UTF8Validation, language, slog.Default())
	for _, err := range errs {
		t.Error(err)
	}
	all := map[string]rulefmt.Rule{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			if _, twice := all[r.Alert]; twice || r.Alert == "" {
				t.Errorf("alert %q is there twice, or has no name", r.Alert)
			}
			all[r.Alert] = r
		}
	}
	if len(all) == 0 {
		t.Fatal("there is no rule")
	}
	return all
}

func TestRules(t *testing.T) {
	for name, r := range rules(t) {
		if s := r.Labels["severity"]; s != "warning" && s != "critical" {
			t.Errorf("%s has severity %q", name, s)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || r.Expr == "" {
			t.Errorf("%s lacks words, or an expression", name)
		}
	}
}

// panel is of a panel's JSON what the tests look at; the rest is checked by Grafana's types.
type panel struct {
	ID      int
	Type    string
	Title   string
	Desc    string `json:"description"`
	GridPos struct{ X, Y, W, H int }
	Targets []struct{ Expr, LegendFormat string }
}

// dashboardPanels reads the dashboard, strictly as Grafana's type.
func dashboardPanels(t *testing.T) []panel {
	t.Helper()
	raw, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	plugins.RegisterDefaultPlugins() // of panels and queries
	var strict dashboard.Dashboard   //nolint:staticcheck // the form that all Grafanas import; the new one is of 12 and later
	err = strict.UnmarshalJSONStrict(raw)
	var faults cog.BuildErrors // may be an empty list
	if err != nil && !errors.As(err, &faults) || len(faults) > 0 {
		t.Fatalf("Grafana would not know the dashboard: %v", err)
	}
	if err := strict.Validate(); err != nil {
		t.Errorf("Grafana would refuse the dashboard: %v", err)
	}
	var d struct{ Panels []panel }
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	return d.Panels
}

func TestDashboard(t *testing.T) {
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range dashboardPanels(t) {
		if ids[p.ID] || p.ID == 0 {
			t.Errorf("panel %q has the ID %d of another", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Title == "" || p.Type != "row" && (len(p.Targets) == 0 || p.Desc == "") {
			t.Errorf("panel %d (%q) lacks a title, a query or words", p.ID, p.Title)
		}
		if p.GridPos.X < 0 || p.GridPos.W <= 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q does not fit: %+v", p.Title, p.GridPos)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" {
					t.Fatalf("panels %q and %q lie over each other", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
	}
}

// dashboardExpressions are the queries of the dashboard with values for Grafana's variables.
func dashboardExpressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, p := range dashboardPanels(t) {
		for i, target := range p.Targets {
			all[p.Title+string(rune('A'+i))] = strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*").Replace(target.Expr)
		}
	}
	return all
}

// expressions are all that the rules and the dashboard ask Prometheus.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := dashboardExpressions(t)
	for name, r := range rules(t) {
		all[name] = r.Expr
	}
	return all
}

// of the job, not of the daemon: what Prometheus itself adds to each series.
var ofTheJob = []string{"job", "instance"}

// TestMetricsExist runs the daemon, and looks for every metric and label that the rules and
// the dashboard use in what it serves.
func TestMetricsExist(t *testing.T) {
	served := scrape(t)
	for name, text := range expressions(t) {
		e, err := language.ParseExpr(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
			if s, ok := n.(*parser.VectorSelector); ok && s.Name != "up" {
				checkSelector(t, name, s, served)
			}
			return nil
		})
	}
}

func checkSelector(t *testing.T, where string, s *parser.VectorSelector, served []labels.Labels) {
	t.Helper()
	names, values := map[string]bool{}, map[string]map[string]bool{}
	for _, series := range served {
		if series.Get(model.MetricNameLabel) != s.Name {
			continue
		}
		series.Range(func(l labels.Label) {
			names[l.Name] = true
			if values[l.Name] == nil {
				values[l.Name] = map[string]bool{}
			}
			values[l.Name][l.Value] = true
		})
	}
	if len(names) == 0 {
		t.Errorf("%s: sandflowd serves no %s", where, s.Name)
		return
	}
	for _, m := range s.LabelMatchers {
		switch {
		case m.Name == model.MetricNameLabel || slices.Contains(ofTheJob, m.Name):
		case !names[m.Name]:
			t.Errorf("%s: %s has no label %q, only %v", where, s.Name, m.Name, slices.Sorted(maps.Keys(names)))
		// What did not fail while the test looked is not there: failures are looked for by
		// labels whose values are words of the code, which TestAlerts would not catch.
		case m.Name == "workflow" || m.Name == "flow" || m.Name == "direction" || m.Name == "phase":
			if !slices.ContainsFunc(slices.Collect(maps.Keys(values[m.Name])), m.Matches) {
				t.Errorf("%s: no %s has a label that matches %s, only %v", where, s.Name, m, slices.Sorted(maps.Keys(values[m.Name])))
			}
		}
	}
}
