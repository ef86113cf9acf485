#!/usr/bin/env bash
# Copyright The sandflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds the Debian package from build/bin, and prints its path.
#
#   VERSION=1.2.3 hack/package.sh [DIR]     (without VERSION: from git's tags; DIR: build/package)
#
# Needs "make build" and "hack/tools.sh package" before it. BUILD is another build directory.
set -euo pipefail

cd "$(dirname "$0")/.."
root=$PWD
programs=(sandflowd sandflow containerd-shim-sandflow-v1)
build=${BUILD:-$root/build}

die() {
	printf '%s\n' "package: $*" >&2
	exit 1
}

# version is 1.2.3 of the tag v1.2.3; between tags it sorts after the last and before the next.
version() {
	local described
	if described=$(git describe --tags --match 'v[0-9]*' 2>/dev/null); then
		# v1.2.3-4-gabcdef is 1.2.3+4.gabcdef
		described=${described#v}
		printf '%s\n' "${described/-/+}" | tr - .
	else
		printf '0.1.0~dev+%s.g%s\n' "$(git rev-list --count HEAD)" "$(git rev-parse --short HEAD)"
	fi
}

# notices prints the licences of all modules that the programs are built from.
notices() {
	local module dir file
	go list -deps -f '{{with .Module}}{{if .Dir}}{{.Path}}@{{.Version}} {{.Dir}}{{end}}{{end}}' \
		./cmd/sandflowd ./cmd/sandflow ./cmd/containerd-shim-sandflow-v1 | sort -u |
		while read -r module dir; do
			[ "$dir" != "$root" ] || continue
			printf '%s\n\n' "==== ${module%@}"
			for file in "$dir"/{LICENSE,LICENCE,COPYING,NOTICE}*; do
				if [ -f "$file" ]; then
					cat "$file"
					printf '\n'
				fi
			done
		done
}

# stage lays out what nfpm takes whole: the programs, and documents in /usr/share.
stage() {
	local doc=$1/share/doc/sandflow program
	mkdir -p "$1/bin" "$doc" "$1/share/bash-completion/completions"
	for program in "${programs[@]}"; do
		[ -x "$build/bin/$program" ] || die "build/bin/$program is missing: run \"make build\""
		install -m 755 "$build/bin/$program" "$1/bin/$program"
	done
	"$build/bin/sandflow" completion bash >"$1/share/bash-completion/completions/sandflow"
	install -m 644 deploy/package/copyright "$doc/copyright"
	notices | gzip -9n >"$doc/THIRD-PARTY.gz"
	# As in the repository, so that the links between them lead somewhere.
	cp README.md ARCHITECTURE.md SECURITY.md LICENSE "$doc"
	cp -r docs deploy "$doc"
	chmod -R u=rwX,go=rX "$1"
	find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

PATH=$build/bin:$PATH
command -v nfpm >/dev/null || die 'nfpm is missing: run "hack/tools.sh package"'

PACKAGE_VERSION=${VERSION:-$(version)}
PACKAGE_VERSION=${PACKAGE_VERSION#v}
PACKAGE_ARCH=$(go env GOARCH)
PACKAGE_STAGE=$(mktemp -d)
# The same commit gives the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export PACKAGE_VERSION PACKAGE_ARCH PACKAGE_STAGE SOURCE_DATE_EPOCH
trap 'rm -rf "$PACKAGE_STAGE"' EXIT
umask 022
stage "$PACKAGE_STAGE"
mkdir -p "${1:-$build/package}"
out=${1:-$build/package}/sandflow_${PACKAGE_VERSION}_${PACKAGE_ARCH}.deb
nfpm package --config deploy/package/nfpm.yaml --packager deb --target "$out" >&2
printf '%s\n' "$out"
