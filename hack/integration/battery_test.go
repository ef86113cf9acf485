// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// filling is how the fields of a request are filled.
type filling struct {
	name   string
	depth  int    // how deep messages are there at all; below, they are nil
	text   string // of every string
	number int64  // of every number and enumeration
	many   int    // how long lists and maps are
}

var fillings = []filling{
	{name: "empty", depth: 0},
	{name: "empty messages", depth: 1},
	{name: "empty messages in messages", depth: 2},
	{name: "empty messages all the way", depth: 6},
	{name: "lists of empty messages", depth: 6, many: 2},
	{name: "unknown ids", depth: 1, text: strings.Repeat("0a", 32), many: 1},
	{name: "paths out", depth: 6, text: "../../../x", many: 1},
	{name: "odd text", depth: 6, text: "a\x00b/\u202e%s", many: 2},
	{name: "negative numbers", depth: 6, text: "x", number: -1, many: 1},
	{name: "large numbers", depth: 6, text: strings.Repeat("x", 5000), number: 1 << 30, many: 3},
}

// right are the codes that a bad request may get. OK is for requests that ask for nothing
// wrong, and for those that must be idempotent.
var right = map[codes.Code]bool{
	codes.OK: true, codes.InvalidArgument: true, codes.NotFound: true, codes.Unimplemented: true,
	codes.FailedPrecondition: true, codes.AlreadyExists: true, codes.OutOfRange: true,
}

// TestBadRequests sends nil, empty and senseless fields in every request of CRI.
func TestBadRequests(t *testing.T) {
	n := newNode(t, options{})
	pid := n.daemon.PID()
	services := cri.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			m := methods.Get(j)
			t.Run(string(m.Name()), func(t *testing.T) {
				for _, f := range fillings {
					err := n.send(m, f)
					if code := status.Code(err); !right[code] {
						t.Errorf("%s: %v", f.name, err)
					}
				}
			})
		}
	}
	for _, c := range n.containers() {
		n.removeContainer(c.GetId())
	}
	for _, p := range n.pods() {
		n.remove(p.GetId())
	}
	cfg := n.pod("unharmed")
	n.remove(n.run(cfg))
	if n.daemon.PID() != pid {
		t.Error("the daemon is another one")
	}
	n.same()
}

// send calls a method, streaming or not, with a request filled in one way.
func (n *node) send(m protoreflect.MethodDescriptor, f filling) error {
	ctx, cancel := context.WithTimeout(n.t.Context(), 15*time.Second)
	defer cancel()
	in, out := dynamicpb.NewMessage(m.Input()), dynamicpb.NewMessage(m.Output())
	fill(in, f, f.depth)
	method := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	if !m.IsStreamingServer() {
		return n.client.Conn().Invoke(ctx, method, in, out)
	}
	ctx, stop := context.WithTimeout(ctx, 200*time.Millisecond) // a stream without end is right
	defer stop()
	s, err := n.client.Conn().NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err == nil {
		err = errors.Join(s.SendMsg(in), s.CloseSend())
	}
	for err == nil {
		err = s.RecvMsg(out)
	}
	if errors.Is(err, io.EOF) || status.Code(err) == codes.DeadlineExceeded {
		return nil
	}
	return err
}

// fill sets every field of a message.
func fill(m protoreflect.Message, f filling, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		d := fields.Get(i)
		switch {
		case d.IsMap():
			for k := range f.many {
				key := protoreflect.ValueOfString(fmt.Sprint(f.text, k)).MapKey()
				if d.MapKey().Kind() != protoreflect.StringKind {
					continue
				}
				v := m.Mutable(d).Map().NewValue()
				if d.MapValue().Message() == nil {
					v = scalar(d.MapValue(), f)
				}
				m.Mutable(d).Map().Set(key, v)
			}
		case d.IsList():
			for range f.many {
				list := m.Mutable(d).List()
				if d.Message() == nil {
					list.Append(scalar(d, f))
					continue
				}
				e := list.NewElement()
				if depth > 0 {
					fill(e.Message(), f, depth-1)
				}
				list.Append(e)
			}
		case d.Message() != nil:
			if depth > 0 {
				fill(m.Mutable(d).Message(), f, depth-1)
			}
		default:
			if v := scalar(d, f); v.IsValid() {
				m.Set(d, v)
			}
		}
	}
}

func scalar(d protoreflect.FieldDescriptor, f filling) protoreflect.Value {
	switch d.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(strings.ToValidUTF8(f.text, ""))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(f.text))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(f.number != 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(f.number))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(f.number))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(f.number)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(f.number))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(f.number))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(f.number))
	default:
		return protoreflect.Value{}
	}
}
