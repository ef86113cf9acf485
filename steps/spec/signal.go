// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/signal"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const defaultSignal = "SIGTERM"

// ParseSignal reads a signal: a number, or a name with or without SIG in any
// case, real-time ones with an offset (RTMIN+3, SIGRTMAX-1).
// Anything else is errdefs.ErrInvalidArgument.
func ParseSignal(s string) (syscall.Signal, error) {
	text := strings.ToUpper(strings.TrimSpace(s))
	if n, err := strconv.Atoi(text); err == nil {
		if !signal.ValidSignalForPlatform(syscall.Signal(n)) {
			return 0, fmt.Errorf("signal %q is not one of this system: %w", s, errdefs.ErrInvalidArgument)
		}
		return syscall.Signal(n), nil
	}
	if n, ok := signal.SignalMap[strings.TrimPrefix(text, "SIG")]; ok {
		return n, nil
	}
	return 0, fmt.Errorf("signal %q is unknown: %w", s, errdefs.ErrInvalidArgument)
}

// StopSignal is the name (SIGTERM, SIGRTMIN+3) of the signal that stops a
// container: that of the request, else that of the image, else SIGTERM. A signal
// of the image that does not exist is errdefs.ErrInvalidArgument, so that it shows
// when the container is created and not when it is to be stopped.
func StopSignal(image string, request runtime.Signal) (string, error) {
	if request != runtime.Signal_SIGNAL_RUNTIME_DEFAULT {
		name := requestSignal(request)
		if _, err := ParseSignal(name); err != nil {
			return "", fmt.Errorf("stop_signal: %w", err)
		}
		return name, nil
	}
	if strings.TrimSpace(image) == "" {
		return defaultSignal, nil
	}
	n, err := ParseSignal(image)
	if err != nil {
		return "", fmt.Errorf("stop signal of the image: %w", err)
	}
	return signalNames()[n], nil
}

// SignalOf is the value of the CRI for a signal's name or number, for
// ContainerStatus; SIGNAL_RUNTIME_DEFAULT if it has none.
func SignalOf(s string) runtime.Signal {
	n, err := ParseSignal(s)
	if err != nil {
		return runtime.Signal_SIGNAL_RUNTIME_DEFAULT
	}
	name := strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(signalNames()[n])
	return runtime.Signal(runtime.Signal_value["SIGNAL_"+name])
}

// requestSignal turns SIGNAL_SIGRTMINPLUS3 into SIGRTMIN+3.
func requestSignal(s runtime.Signal) string {
	name := strings.TrimPrefix(s.String(), "SIGNAL_")
	if !strings.HasPrefix(name, "SIGRT") {
		return name
	}
	return strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(name)
}

// signalNames has one name for each number: the usual one where there are aliases.
var signalNames = sync.OnceValue(func() map[syscall.Signal]string {
	names := map[syscall.Signal]string{}
	aliases := []string{"CLD", "IOT", "POLL"}
	for _, name := range slices.Sorted(maps.Keys(signal.SignalMap)) {
		n := signal.SignalMap[name]
		if _, taken := names[n]; !taken && !slices.Contains(aliases, name) {
			names[n] = "SIG" + name
		}
	}
	return names
})
