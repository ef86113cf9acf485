#!/usr/bin/env bash
# Copyright The sandflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs every fuzz target of the module for FUZZTIME (default 1m each). Those that
# need root do nothing without it.
set -euo pipefail
cd "$(dirname "$0")/.."

found=0
while read -r file target; do
	found=1
	dir=$(dirname "$file")
	printf '%s %s\n' "$dir" "$target"
	go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-1m}" -fuzzminimizetime 1s "./$dir"
done < <(git grep -oE 'func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sed -E 's/:func / /')
[ "$found" = 1 ] || printf 'no fuzz targets\n'
