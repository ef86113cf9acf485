// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lint holds tests of the source tree that no linter has: the direction of
// imports, licence headers, and words that must not be in it.
package lint
