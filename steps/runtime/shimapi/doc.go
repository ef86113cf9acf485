// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package shimapi is the ttrpc service that our pod shim serves besides
// containerd's, generated from shim.proto.
package shimapi

// Protocol is the version of what shim and daemon say to each other, the frames of
// streams included. It is raised when an older daemon could not use a newer shim; a
// newer daemon uses the shims of all versions from Oldest on, since they outlive
// an upgrade. Shims that say 0 are of version 1.
const (
	Protocol = 1
	Oldest   = 1
)

//go:generate protoc -I. --go_out=. --go_opt=paths=source_relative --go-ttrpc_out=. --go-ttrpc_opt=paths=source_relative shim.proto
