// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package interceptors

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// Verbosity at which things are logged.
const (
	levelChange = 2 // RPCs that change something
	levelRead   = 4 // RPCs that only look, which kubelet makes all the time
	levelBody   = 6 // requests and replies
)

// maxBody is how much of a message is logged, in bytes.
const maxBody = 16 << 10

// mark stands in a logged message for what must not be seen.
const mark = "[redacted]"

// secret fields beside those that the CRI marks with debug_redact.
var secret = []protoreflect.FullName{
	"runtime.v1.AuthConfig.username",
	"runtime.v1.KeyValue.value", // environment
}

// fields are the IDs that a message carries, as key and value for the log.
func fields(msg any) []any {
	var kv []any
	add := func(key, value string) {
		if value != "" {
			kv = append(kv, key, value)
		}
	}
	if m, ok := msg.(interface{ GetPodSandboxId() string }); ok {
		add("sandbox", m.GetPodSandboxId())
	}
	if m, ok := msg.(interface{ GetContainerId() string }); ok {
		add("container", m.GetContainerId())
	}
	if m, ok := msg.(interface{ GetImage() *runtime.ImageSpec }); ok {
		add("image", m.GetImage().GetImage())
	}
	switch m := msg.(type) {
	case *runtime.RunPodSandboxRequest:
		add("namespace", m.GetConfig().GetMetadata().GetNamespace())
		add("pod", m.GetConfig().GetMetadata().GetName())
		add("handler", m.GetRuntimeHandler())
	case *runtime.CreateContainerRequest:
		add("name", m.GetConfig().GetMetadata().GetName())
	case *runtime.PullImageResponse:
		add("imageRef", m.GetImageRef())
	}
	return kv
}

// isRead says whether a method only looks.
func isRead(method string) bool {
	switch method {
	case "Version", "Status", "RuntimeConfig", "ImageFsInfo", "ExecSync", "GetContainerEvents":
		return true
	}
	return strings.HasPrefix(method, "List") || strings.HasPrefix(method, "Stream") ||
		strings.HasSuffix(method, "Status") || strings.HasSuffix(method, "Stats")
}

// record logs the end of an RPC.
func record(logger klog.Logger, method string, reply any, err error, took time.Duration) {
	code := Code(err)
	level := levelChange
	if isRead(method) {
		level = levelRead
	}
	kv := []any{"duration", took.String(), "code", code.String()}
	if err == nil {
		if l := logger.V(level); l.Enabled() {
			l.Info("RPC done", append(kv, fields(reply)...)...)
		}
		return
	}
	// Asking for what has just gone is kubelet's daily business, as is hanging up.
	expected := isRead(method) && (code == codes.NotFound || code == codes.Canceled) || code == codes.Unimplemented
	if !expected {
		level = 0
	}
	logger.V(level).Info("RPC failed", append(kv, "err", err.Error())...)
}

// body is a message as text, without its secrets.
func body(msg any) string {
	m, ok := msg.(proto.Message)
	if !ok {
		return ""
	}
	m = proto.Clone(m)
	redact(m.ProtoReflect())
	text := prototext.MarshalOptions{}.Format(m)
	if len(text) > maxBody {
		return fmt.Sprintf("%s… (%d bytes)", text[:maxBody], len(text))
	}
	return text
}

// redact replaces the secrets in a message and the messages in it.
func redact(m protoreflect.Message) {
	type field struct {
		d protoreflect.FieldDescriptor
		v protoreflect.Value
	}
	var set []field // a message must not change while it is ranged over
	m.Range(func(d protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		set = append(set, field{d, v})
		return true
	})
	for _, f := range set {
		switch {
		case isSecret(f.d):
			conceal(m, f.d)
		case f.d.IsMap():
			if f.d.MapValue().Message() != nil {
				f.v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					redact(v.Message())
					return true
				})
			}
		case f.d.Message() == nil:
		case f.d.IsList():
			for i := range f.v.List().Len() {
				redact(f.v.List().Get(i).Message())
			}
		default:
			redact(f.v.Message())
		}
	}
}

func isSecret(d protoreflect.FieldDescriptor) bool {
	o, ok := d.Options().(*descriptorpb.FieldOptions)
	return ok && o.GetDebugRedact() || slices.Contains(secret, d.FullName())
}

func conceal(m protoreflect.Message, d protoreflect.FieldDescriptor) {
	switch {
	case d.IsList(), d.IsMap():
		m.Clear(d)
	case d.Kind() == protoreflect.StringKind:
		m.Set(d, protoreflect.ValueOfString(mark))
	case d.Kind() == protoreflect.BytesKind:
		m.Set(d, protoreflect.ValueOfBytes([]byte(mark)))
	default:
		m.Clear(d)
	}
}
