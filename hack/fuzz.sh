#!/usr/bin/env bash
# Copyright The sandflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs every fuzz target of the module for FUZZTIME (default 1m each). Those that
# need root do nothing without it.
set -euo pipefail
cd "$(dirname "$0")/.."

# fuzz fuzzes one target. At the end of the time go may call its own deadline a failure, without
# an input that fails: then, and only then, the target is fuzzed again.
fuzz() {
	local log status
	log=$(mktemp)
	for _ in 1 2 3; do
		status=0
		go test -run '^$' -fuzz "^$2\$" -fuzztime "${FUZZTIME:-1m}" -fuzzminimizetime 1s "./$1" 2>&1 | tee "$log" || status=$?
		if [ "$status" = 0 ] || grep -q 'Failing input' "$log" || ! grep -qx '    context deadline exceeded' "$log"; then
			break
		fi
	done
	rm -f "$log"
	return "$status"
}

found=0
while read -r file target; do
	found=1
	dir=$(dirname "$file")
	printf '%s %s\n' "$dir" "$target"
	fuzz "$dir" "$target"
done < <(git grep -oE 'func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sed -E 's/:func / /')
[ "$found" = 1 ] || printf 'no fuzz targets\n'
