// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package interceptors

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandflow-cri/sandflow/engine"
)

// byError is the one table from errors to gRPC codes: the first entry that an
// error is decides. The engine's come first, since they tell what became of the
// move, whatever its cause was; then what this node has run out of, whatever was
// being done.
var byError = []struct {
	is   func(error) bool
	code codes.Code
}{
	{isA[*engine.PanicError], codes.Internal},
	{isA[*engine.StuckError], codes.Unavailable},
	{is(engine.ErrConcurrentFailed), codes.ResourceExhausted},
	{is(engine.ErrExists), codes.AlreadyExists},
	{is(engine.ErrNotFound), codes.NotFound},
	{is(engine.ErrBusy), codes.FailedPrecondition},
	{is(engine.ErrClosed), codes.Unavailable},
	{is(engine.ErrUnknownFlow), codes.Internal},
	{is(engine.ErrUnset), codes.Internal},
	{is(unix.ENOSPC), codes.ResourceExhausted},
	{is(unix.EDQUOT), codes.ResourceExhausted},
	{is(unix.EMFILE), codes.ResourceExhausted},
	{is(unix.ENFILE), codes.ResourceExhausted},
	{is(unix.ENOMEM), codes.ResourceExhausted},
}

// byClass maps the class of an error as errdefs.Resolve finds it: the
// outermost one. An error without a class is Unknown: the words of an OCI runtime,
// and a registry out of reach, whose first word kubelet reads only then
// (k8s.io/cri-api/pkg/errors).
var byClass = map[error]codes.Code{
	context.Canceled:              codes.Canceled,
	context.DeadlineExceeded:      codes.DeadlineExceeded,
	errdefs.ErrUnknown:            codes.Unknown,
	errdefs.ErrInvalidArgument:    codes.InvalidArgument,
	errdefs.ErrNotFound:           codes.NotFound,
	errdefs.ErrAlreadyExists:      codes.AlreadyExists,
	errdefs.ErrPermissionDenied:   codes.PermissionDenied,
	errdefs.ErrResourceExhausted:  codes.ResourceExhausted,
	errdefs.ErrFailedPrecondition: codes.FailedPrecondition,
	errdefs.ErrConflict:           codes.FailedPrecondition,
	errdefs.ErrNotModified:        codes.FailedPrecondition,
	errdefs.ErrAborted:            codes.Aborted,
	errdefs.ErrOutOfRange:         codes.OutOfRange,
	errdefs.ErrNotImplemented:     codes.Unimplemented,
	errdefs.ErrInternal:           codes.Internal,
	errdefs.ErrUnavailable:        codes.Unavailable,
	errdefs.ErrDataLoss:           codes.DataLoss,
	errdefs.ErrUnauthenticated:    codes.Unauthenticated,
}

// Code is the gRPC code of an error: by the table, else that of a gRPC status in its
// chain, else that of its class, else Unknown.
func Code(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	for _, e := range byError {
		if e.is(err) {
			return e.code
		}
	}
	if s, ok := status.FromError(err); ok && s.Code() != codes.Unknown {
		return s.Code()
	}
	return byClass[class(err)]
}

// class is errdefs.Resolve for any error.
func class(err error) error {
	c := errdefs.Resolve(err)
	if _, ok := byClass[c]; !ok {
		return errdefs.ErrUnknown
	}
	return c
}

// Status is err as a gRPC status with the code of Code and the whole text.
func Status(err error) error {
	if err == nil {
		return nil
	}
	code := Code(err)
	if s, ok := status.FromError(err); ok && s.Code() == code {
		return s.Err() // keeps the details of the status
	}
	return status.Error(code, err.Error())
}

// Unimplemented is the error of an RPC that is not built yet; it names the RPC.
func Unimplemented(rpc string) error {
	return fmt.Errorf("%s: %w", rpc, errdefs.ErrNotImplemented)
}

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
