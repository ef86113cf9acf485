// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

// Journal keeps one record per subject.
type Journal interface {
	// Load calls f with every record.
	Load(f func(key string, data []byte) error) error
	// Write makes all changes durable, or none. It is not called concurrently.
	Write(changes []Change) error
	Close() error
}

// Change puts a record, or removes it if Data is nil.
type Change struct {
	Key  string
	Data []byte
}
