// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package shimapi is the ttrpc service that our pod shim serves besides
// containerd's, generated from shim.proto.
package shimapi

//go:generate protoc -I. --go_out=. --go_opt=paths=source_relative --go-ttrpc_out=. --go-ttrpc_opt=paths=source_relative shim.proto
