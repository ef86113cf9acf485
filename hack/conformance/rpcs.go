// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// callTime bounds a call. A stream that stays open that long is one that is served.
const callTime = 2 * time.Second

// RPC is one call of the CRI and what became of it.
type RPC struct {
	Service, Name string
	// Answered is false if the runtime does not know the call.
	Answered bool
	// Said is the code and message of the answer to an empty request.
	Said string
}

// CallAll calls every RPC of the CRI with an empty request. The runtime must have no pods.
func CallAll(ctx context.Context, conn grpc.ClientConnInterface) ([]RPC, error) {
	var out []RPC
	for _, service := range []*grpc.ServiceDesc{&cri.RuntimeService_ServiceDesc, &cri.ImageService_ServiceDesc} {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service.ServiceName))
		if err != nil {
			return nil, fmt.Errorf("could not find service %s: %w", service.ServiceName, err)
		}
		methods := d.(protoreflect.ServiceDescriptor).Methods() //nolint:forcetypeassert // the name is a service's
		for i := range methods.Len() {
			m := methods.Get(i)
			said, err := call(ctx, conn, m)
			if err != nil {
				return nil, fmt.Errorf("could not call %s: %w", m.FullName(), err)
			}
			out = append(out, RPC{
				Service: string(d.Name()), Name: string(m.Name()), Answered: said.Code() != codes.Unimplemented,
				Said: fmt.Sprintf("%s: %s", said.Code(), oneLine(said.Message())),
			})
		}
	}
	return out, nil
}

// call gives the answer's status; the error is of what prevented the call.
func call(ctx context.Context, conn grpc.ClientConnInterface, m protoreflect.MethodDescriptor) (*status.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	in, err := empty(m.Input())
	if err != nil {
		return nil, err
	}
	out, err := empty(m.Output())
	if err != nil {
		return nil, err
	}
	path := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	if !m.IsStreamingServer() {
		return status.Convert(conn.Invoke(ctx, path, in, out)), nil
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, path)
	if err == nil {
		err = errors.Join(s.SendMsg(in), s.CloseSend())
	}
	if err != nil {
		return nil, err
	}
	err = s.RecvMsg(out)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return status.Convert(err), nil
}

func empty(d protoreflect.MessageDescriptor) (proto.Message, error) {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		return nil, err
	}
	return t.New().Interface(), nil
}
