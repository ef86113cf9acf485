// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"runtime/debug"
)

var errGoexit = errors.New("the goroutine was ended by runtime.Goexit")

// guard runs foreign code and turns a panic into an error.
func guard(f func() error) (err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	err = f()
	returned = true
	return err
}
