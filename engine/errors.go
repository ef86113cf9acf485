// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrConcurrentFailed is in the error of a flow refused by its limit.
	ErrConcurrentFailed = errors.New("ConcurrentFailed: too many in flight")
	// ErrExists is in the error of a first climb of an id that has a record.
	ErrExists = errors.New("already exists")
	// ErrNotFound is in the error of a move or amendment of an id without a record.
	ErrNotFound = errors.New("not found")
	// ErrBusy is in the error of a climb of a subject that does not stand whole
	// at the station where the flow begins.
	ErrBusy = errors.New("not at the station where the flow begins")
	// ErrClosed is in the error of everything asked before Boot or after Close.
	ErrClosed = errors.New("engine is not running")
	// ErrOverflow is in the error of a subscription whose reader was too slow.
	ErrOverflow = errors.New("the reader is too slow: events were lost")
	// ErrUnset is in the error of Slot.Need for a slot without a value.
	ErrUnset = errors.New("no value was set")
	// ErrUnknownFlow is in the error for a workflow or flow that was not defined.
	ErrUnknownFlow = errors.New("unknown flow")
)

// join is errors.Join in one line of text.
func join(errs ...error) error {
	var all error
	for _, err := range errs {
		switch {
		case err == nil:
		case all == nil:
			all = err
		default:
			all = fmt.Errorf("%w; %w", all, err)
		}
	}
	return all
}

// ActionError says which action failed on which subject.
type ActionError struct {
	Workflow, ID, Action string
	Down                 bool
	Err                  error
}

func (e *ActionError) Error() string {
	verb := "do"
	if e.Down {
		verb = "undo"
	}
	return fmt.Sprintf("%s %s of %s %s: %v", verb, e.Action, e.Workflow, e.ID, e.Err)
}

func (e *ActionError) Unwrap() error { return e.Err }

// StuckError says that a descent stopped at a step that would not go. It is
// journaled and resumed by RunCleanup and by any Descend.
type StuckError struct {
	Workflow, ID string
	Err          error
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("%s %s is stuck on the way down: %v", e.Workflow, e.ID, e.Err)
}

func (e *StuckError) Unwrap() error { return e.Err }

// NameTakenError says who holds the name that was asked for.
type NameTakenError struct {
	Workflow, Name, ID string
	// Stuck is why the holder could not be taken down; empty for one that stands.
	Stuck string
}

func (e *NameTakenError) Error() string {
	s := fmt.Sprintf("name %q of %s is taken by %s", e.Name, e.Workflow, e.ID)
	if e.Stuck != "" {
		s += ", which is stuck on the way down: " + e.Stuck
	}
	return s
}

// Is makes a taken name an ErrExists.
func (e *NameTakenError) Is(target error) bool { return target == ErrExists }

// ConfigError is a refusal at start-up.
type ConfigError struct {
	// Path is the place in the configuration: workflows.sandbox.create.steps[1][0].
	Path, Msg string
	// Known are the names that would have been right, where there is such a list.
	Known []string
}

func (e *ConfigError) Error() string {
	s := e.Path + ": " + e.Msg
	if len(e.Known) > 0 {
		s += " (known: " + strings.Join(e.Known, ", ") + ")"
	}
	return s
}

// PanicError is a panic of an action or an observer, turned into an error.
type PanicError struct {
	Value any
	// Stack is for the log; it is not part of the text.
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap gives the error that was panicked with, if it was one.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
