package deps

import (
	_ "github.com/containerd/console"
	_ "github.com/containerd/containerd/v2/plugins"
	_ "github.com/containerd/errdefs"
	_ "github.com/containerd/errdefs/pkg/errgrpc"
	_ "github.com/containerd/fifo"
	_ "github.com/containerd/log"
	_ "github.com/containerd/platforms"
	_ "github.com/containerd/plugin/registry"
	_ "github.com/containerd/ttrpc"
	_ "github.com/containerd/typeurl/v2"
	_ "github.com/go-logr/logr"
	_ "github.com/klauspost/compress/zstd"
	_ "github.com/opencontainers/go-digest"
	_ "github.com/opencontainers/image-spec/specs-go/v1"
	_ "github.com/sirupsen/logrus"
	_ "golang.org/x/time/rate"
	_ "k8s.io/utils/exec"
	_ "k8s.io/streaming/pkg/httpstream"
)
