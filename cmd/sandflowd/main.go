// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command sandflowd is the CRI runtime that kubelet talks to.
package main

import (
	"os"

	"github.com/sandflow-cri/sandflow/cmd/sandflowd/app"
)

func main() { os.Exit(app.Main(os.Args[1:])) }
