#!/usr/bin/env bash
# Copyright The sandflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds the daemon and the shim of an older sandflow (SANDFLOW_OLD of hack/versions.env) into
# build/old, for the tests of upgrades. A shallow clone asks its origin for that commit; if it
# cannot be had nothing is built, and those tests say so.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=hack/versions.env
. hack/versions.env
out=$PWD/build/old
if [ "$(cat "$out/commit" 2>/dev/null)" = "$SANDFLOW_OLD" ]; then
	exit
fi
rm -rf "$out"
has_old() { git cat-file -e "$SANDFLOW_OLD^{commit}" 2>/dev/null; }
if ! has_old; then
	git fetch -q --depth=1 origin "$SANDFLOW_OLD" || true
fi
if ! has_old; then
	echo "The history does not have $SANDFLOW_OLD: no tests of upgrades." >&2
	exit
fi
src=$(mktemp -d)
trap 'rm -rf "$src"' EXIT
git archive "$SANDFLOW_OLD" | tar -x -C "$src"
(cd "$src" && CGO_ENABLED=0 go build -ldflags '-s -w' -o "$out/" ./cmd/sandflowd ./cmd/containerd-shim-sandflow-v1)
echo "$SANDFLOW_OLD" >"$out/commit"
