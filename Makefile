# Copyright The sandflow Authors.
# SPDX-License-Identifier: Apache-2.0

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# sudo forgets where Go lies.
export PATH := $(CURDIR)/build/bin:$(PATH):/usr/local/go/bin:/usr/lib/go/bin
# Everything is static but what the race detector and runc need.
export CGO_ENABLED := 0

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
MODULE  := github.com/sandflow-cri/sandflow
LDFLAGS := -s -w -X $(MODULE)/cmd/internal/version.Commit=$(VERSION)
# A release has a version: make package RELEASE=1.2.3
ifdef RELEASE
LDFLAGS += -X $(MODULE)/cmd/internal/version.Version=$(RELEASE)
endif
GOBUILD := go build -ldflags '$(LDFLAGS)'
LAB     := $(CURDIR)/build/bin/lab
INLAB   := -exec '$(LAB) run'

.PHONY: help
help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: tools-run build images ## Run a pod with crictl, make a create fail, show that nothing is left (root)
	@$(LAB) run hack/demo.sh

.PHONY: test
test: tools build faults images lint unit fuzz-short integration crash-short chaos-short conformance node-short manifests-check package-check ## Set everything up and run all checks and tests (root)

.PHONY: build
build: ## Build the daemon, the command, the shim and the test programs into build/bin
	@mkdir -p build/bin build/cni
	$(GOBUILD) -o build/bin/ ./cmd/sandflowd ./cmd/sandflow ./cmd/containerd-shim-sandflow-v1 ./hack/harness/lab ./hack/bench
	$(GOBUILD) -o build/cni/ ./hack/failcni

.PHONY: faults
faults: ## Build the daemon that the tests can make fail (build/bin/sandflowd-faults)
	$(GOBUILD) -tags faults -o build/bin/sandflowd-faults ./cmd/sandflowd

.PHONY: clock
clock: ## Build a daemon and a shim whose wall clock tests can set (build/bin/clock)
	@mkdir -p build/bin/clock
	go run ./hack/clock build/clock /run/lab/clock
	$(GOBUILD) -overlay build/clock/overlay.json -tags faults -o build/bin/clock/sandflowd-faults ./cmd/sandflowd
	$(GOBUILD) -overlay build/clock/overlay.json -o build/bin/clock/ ./cmd/containerd-shim-sandflow-v1

.PHONY: tools
tools: ## Install Debian packages and build all tools at the versions of hack/versions.env
	@hack/tools.sh run test lint node

.PHONY: kubelab
kubelab: build
	$(GOBUILD) -o build/bin/ ./hack/kube/kubelab

.PHONY: tools-node
tools-node:
	@hack/tools.sh run node

.PHONY: tools-cluster
tools-cluster:
	@hack/tools.sh run test node cluster

.PHONY: tools-run
tools-run:
	@hack/tools.sh run

.PHONY: images
images: ## Build the images of the demo and the tests
	@mkdir -p build/bin
	@test -x $(LAB) || $(GOBUILD) -o $(LAB) ./hack/harness/lab
	@$(LAB) images

.PHONY: lint
lint: ## Run golangci-lint and shellcheck
	golangci-lint run ./...
	cd hack/manifests && golangci-lint run ./...
	shellcheck -x .ci/run deploy/package/{postinst,prerm,postrm} $$(git ls-files '*.sh')

.PHONY: unit
unit: ## Run the unit tests with the race detector, each package in a laboratory of its own (root)
	CGO_ENABLED=1 go test -race -timeout 10m $(INLAB) \
		$$(go list ./... | grep -v -e /hack/integration -e /hack/crash -e '/hack/chaos$$' -e /hack/conformance -e /hack/kube/node -e /hack/deploy)

.PHONY: old
old: ## Build an older daemon and shim, for the tests of upgrades, into build/old
	@hack/old.sh

.PHONY: integration
integration: build faults images old ## Run the integration tests in a laboratory (root)
	go test -count=1 -timeout 25m $(INLAB) ./hack/integration

.PHONY: crash
crash: tools build faults clock images ## Kill and break everything everywhere, and write the tables into docs/reliability.md (root)
	SANDFLOW_MATRIX=full SANDFLOW_MATRIX_DOC=$(CURDIR)/docs/reliability.md \
		go test -count=1 -timeout 90m $(INLAB) ./hack/crash

.PHONY: crash-short
crash-short: build faults images ## Kill and break something everywhere (root)
	go test -count=1 -timeout 15m $(INLAB) ./hack/crash

.PHONY: chaos
chaos: tools build faults images ## Play LIVES (10000) lives of SEED (1) with kills and faults, from life FIRST (0) on, WORKERS (4) at a time (root)
	LIVES=$(or $(LIVES),10000) SEED=$(or $(SEED),1) SANDFLOW_CHAOS_DOC=$(CURDIR)/docs/reliability.md \
		go test -count=1 -v -timeout 10h $(INLAB) ./hack/chaos -run TestChaos

.PHONY: chaos-short
chaos-short: build faults images ## Play 300 lives with kills and faults, and some twice (root)
	go test -count=1 -timeout 15m $(INLAB) ./hack/chaos

.PHONY: conformance
conformance: build images ## Run all specs of critest and print a table (root)
	@mkdir -p build/reports
	@rm -f build/reports/conformance.txt
	@status=0; go test -count=1 -timeout 20m $(INLAB) ./hack/conformance || status=$$?; \
	cat build/reports/conformance.txt; exit $$status

.PHONY: conformance-repeat
conformance-repeat: build images ## Run all specs of critest three times one by one and three times six at once (root)
	SANDFLOW_REPEAT=1 go test -count=1 -timeout 120m $(INLAB) ./hack/conformance -run TestRepeated -v

.PHONY: docs-conformance
docs-conformance: ## Write docs/conformance.md from runs against containerd and sandflow (root)
	SANDFLOW_DOCS=1 SANDFLOW_PEER=containerd go test -count=1 -timeout 20m $(INLAB) ./hack/conformance || true
	SANDFLOW_DOCS=1 go test -count=1 -timeout 20m $(INLAB) ./hack/conformance

.PHONY: package
package: tools-package build ## Build the Debian package into build/package
	@VERSION=$(RELEASE) hack/package.sh

.PHONY: tools-package
tools-package:
	@hack/tools.sh package

.PHONY: tools-machine
tools-machine:
	@hack/tools.sh run test node package machine

.PHONY: package-check
package-check: tools-machine build images ## Install, upgrade and purge the package in a machine with systemd; kubeadm's own checks (root)
	go test -count=1 -timeout 10m $(INLAB) ./hack/deploy

.PHONY: manifests-check
manifests-check: tools-run build images ## Check the files of deploy/ with the code of those that read them (root)
	cd hack/manifests && go test -count=1 $(INLAB) ./...

.PHONY: bench
bench: tools build images ## Measure sandflowd and an upstream containerd side by side (root)
	@$(LAB) run $(CURDIR)/build/bin/bench

.PHONY: node
node: tools-node kubelab images ## Run a static pod with a kubelet on its own, on sandflow (root)
	@$(LAB) run kubelab node

.PHONY: node-short
node-short: kubelab images ## The same as a test (root)
	go test -count=1 -timeout 10m $(INLAB) ./hack/kube/node

.PHONY: cluster
cluster: tools-cluster kubelab images ## Run a Kubernetes cluster of two nodes on sandflow: drain, kill, reboot (root)
	@$(LAB) run kubelab cluster

.PHONY: kube-check
kube-check: tools-cluster kubelab images ## Check on such a cluster what pods get from the runtime, feature by feature (root)
	@$(LAB) run kubelab check $(KUBE_CHECK)

.PHONY: kubernetes-images
kubernetes-images: tools-cluster kubelab images
	@hack/tools.sh machine e2e
	@$(LAB) kubernetes-images

NODE_CONFORMANCE := go test -count=1 -timeout 6h $(INLAB) ./hack/kube/conformance

.PHONY: node-conformance
node-conformance: kubernetes-images ## Run Kubernetes' node conformance tests on sandflow; takes an hour (root)
	@status=0; SANDFLOW_NODE_CONFORMANCE=1 $(NODE_CONFORMANCE) || status=$$?; \
	cat build/reports/node-conformance-embedded/table.txt; exit $$status

.PHONY: docs-node-conformance
docs-node-conformance: kubernetes-images ## Write their part of docs/conformance.md from runs on containerd and on sandflow (root)
	SANDFLOW_NODE_CONFORMANCE=1 SANDFLOW_DOCS=1 $(NODE_CONFORMANCE)
	SANDFLOW_NODE_CONFORMANCE=1 SANDFLOW_DOCS=1 SANDFLOW_PEER=containerd $(NODE_CONFORMANCE) || true

.PHONY: bench-stuck
bench-stuck: tools build images ## Measure lists and statuses of 500 containers while a shim, a runtime and a plugin are frozen (root)
	$(GOBUILD) -o build/bin/stuck ./hack/bench/stuck
	@$(LAB) run $(CURDIR)/build/bin/stuck

.PHONY: fuzz
fuzz: ## Fuzz every fuzz target for FUZZTIME (1m)
	@hack/fuzz.sh

.PHONY: fuzz-short
fuzz-short: ## Fuzz every fuzz target for three seconds
	@FUZZTIME=3s hack/fuzz.sh

.PHONY: generate
generate: ## Generate code from the .proto files
	@hack/tools.sh generate
	go generate ./...

.PHONY: clean
clean: ## Remove build/
	rm -rf build
