// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command containerd-shim-sandflow-v1 is the shim of one pod. The daemon starts
// it on two inherited listeners; it runs the pod's containers with an OCI
// runtime, owns their stdio, and lives as long as the pod.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
)

// options of a shim, given by the daemon that launches it.
type options struct {
	namespace string
	id        string
	sharedPID bool
	namespaces
	cgroup string
}

// namespaces are paths of pinned namespaces that the init joins.
type namespaces struct{ net, ipc, uts, user string }

func main() {
	if len(os.Args) > 1 && os.Args[1] == initMode {
		os.Exit(initMain())
	}
	if len(os.Args) > 1 && os.Args[1] == initUserMode {
		os.Exit(initUserMain())
	}
	var o options
	flag.StringVar(&o.namespace, "namespace", "k8s.io", "containerd namespace of the containers")
	flag.StringVar(&o.id, "id", "", "ID of the pod")
	flag.BoolVar(&o.sharedPID, "shared-pid", false, "make a PID namespace with an init")
	flag.StringVar(&o.net, "net", "", "network namespace of the init")
	flag.StringVar(&o.ipc, "ipc", "", "IPC namespace of the init")
	flag.StringVar(&o.uts, "uts", "", "UTS namespace of the init")
	flag.StringVar(&o.user, "user", "", "user namespace of the init")
	flag.StringVar(&o.cgroup, "cgroup", "", "cgroup of the init")
	flag.Parse()
	if o.id == "" {
		fmt.Fprintln(os.Stderr, "containerd-shim-sandflow-v1 is started by sandflowd, not by hand")
		os.Exit(2)
	}
	// One shim per pod: keep the heap close to what is live.
	debug.SetGCPercent(50)
	if err := serve(o); err != nil {
		fmt.Fprintln(os.Stderr, "containerd-shim-sandflow-v1:", err)
		os.Exit(1)
	}
}
