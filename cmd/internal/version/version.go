// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package version carries the version of the build to everything that reports it.
package version

// Version of this build; set with -ldflags "-X …/cmd/internal/version.Version=v1.2.3".
var Version = "0.1.0-dev"

// Commit the build was made from, if it was set.
var Commit = ""

// String is the version with the commit behind it.
func String() string {
	if Commit == "" {
		return Version
	}
	return Version + " (" + Commit + ")"
}
