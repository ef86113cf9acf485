// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command lab builds the test images and runs commands in a laboratory (see package harness).
//
//	lab images          build the images under build/images
//	lab kubernetes-images   build those of Kubernetes' tests under build/images-kubernetes
//	lab run COMMAND…    run a command in a laboratory; its exit code is the command's
//	lab archive         print the path of the demo's image archive
//	lab count FILE …    write what is on the node to a file
//	lab same FILE …     tell whether the node is as it was then; ends with 1 if not
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/images"
)

func main() {
	harness.InitIfAsked()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:])
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	build := filepath.Dir(filepath.Dir(self)) // the program is build/bin/lab
	switch {
	case len(args) == 1 && args[0] == "images":
		return 0, images.Build(ctx, filepath.Join(build, "images"))
	case len(args) == 1 && args[0] == "kubernetes-images":
		return 0, images.BuildKubernetes(ctx, filepath.Join(build, "images-kubernetes"), filepath.Join(build, "bin"))
	case len(args) == 1 && args[0] == "archive":
		fmt.Println(images.DemoArchive(filepath.Join(build, "images")))
		return 0, nil
	case len(args) > 0 && (args[0] == "count" || args[0] == "same"):
		return count(ctx, args)
	case len(args) > 1 && args[0] == "run":
		return harness.Run(ctx, build, args[1:])
	default:
		return 2, errors.New("usage: lab images | kubernetes-images | archive | count FILE | same FILE | run COMMAND…")
	}
}
