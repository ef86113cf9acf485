// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"time"

	"github.com/sandflow-cri/sandflow/engine"
)

// Engine is the configuration of the engine's flows, by workflow and flow.
func (c *Config) Engine() map[string]map[string]engine.FlowConfig {
	out := map[string]map[string]engine.FlowConfig{}
	for _, w := range c.flows() {
		out[w.name] = map[string]engine.FlowConfig{}
		for _, f := range w.flows {
			out[w.name][f.name] = engine.FlowConfig{
				Concurrent: f.concurrent, Queue: f.queue, Failover: f.failover, Steps: f.steps,
			}
		}
	}
	return out
}

// EngineOptions are the options of the engine that the configuration sets.
func (c *Config) EngineOptions() engine.Options {
	o := engine.Options{UndoTimeout: time.Duration(c.Cleanup.UndoTimeout)}
	o.Backoff.Min, o.Backoff.Max = time.Duration(c.Cleanup.MinBackoff), time.Duration(c.Cleanup.MaxBackoff)
	return o
}

// Explain gives a refusal of the engine the file and the line that it is about,
// and leaves other errors as they are. Joined errors are explained one by one.
func (c *Config) Explain(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, one := range joined.Unwrap() {
			out = append(out, c.Explain(one))
		}
		return errors.Join(out...)
	}
	var refused *engine.ConfigError
	if !errors.As(err, &refused) {
		return err
	}
	return c.Fault(refused.Path, refused.Msg, refused.Known...)
}
