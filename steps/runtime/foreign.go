// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime
type foreign struct { m *Manager }
func newForeign(m *Manager) *foreign { return &foreign{m: m} }
func (f *foreign) close() {}
func (f *foreign) alive(p Pod) <-chan struct{} { return make(chan struct{}) }
type foreignTasks struct { foreign *foreign; pod Pod; handler Handler; Tasks }
