// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package snapshot is sandflow's one way to containerd: it runs containerd inside
// this process or connects to one that is there, shows its images the way kubelet
// counts them, and prepares the snapshots of containers.
package snapshot
