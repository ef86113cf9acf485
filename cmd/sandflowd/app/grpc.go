// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/cmd/internal/config"
)

func criOptions(c *config.Config, _ klog.Logger, _ prometheus.Registerer) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(int(c.CRI.MaxMessage)), grpc.MaxSendMsgSize(int(c.CRI.MaxMessage)),
	}
}
