// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package admin

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative admin.proto
