# Bare `make` lists the targets. Everything that takes long is kept under $(CACHE).
SHELL      := /bin/bash -euo pipefail
VERSION    ?= v0.1.0
IMAGE      ?= ghcr.io/weft-cni/weft:$(VERSION)
ARCH       ?= $(shell go env GOARCH)
CACHE      := $(or $(WEFT_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/weft)
COMMIT     := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
BIN        := $(if $(filter $(shell go env GOARCH),$(ARCH)),bin,bin/linux_$(ARCH))
PLUGINS    := main/bridge main/loopback ipam/host-local meta/portmap meta/bandwidth meta/tuning meta/firewall
PLUGIN_MOD := github.com/containernetworking/plugins
DEBIAN     := nftables iptables iproute2 conntrack ipset ethtool tcpdump iperf3 iputils-ping buildah debootstrap gcc libc6-dev libseccomp-dev pkg-config qemu-system-x86 busybox-static
GO_BUILD   := CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) go build -trimpath
FUZZTIME   ?= 30s
SUITE      := go run ./tests/suite

.DEFAULT_GOAL := help
.PHONY: help deps build image lint test test-unit test-netns test-reliability test-vm test-lanes soak cover fuzz netpol bench cluster cluster-down e2e e2e-upstream e2e-netpol e2e-policyapi clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/\1\t\2/' | expand -t 16

deps: ## install the Debian packages that the other targets need and this machine lacks
	@command -v dpkg-query >/dev/null || { echo "not a Debian: install these yourself: $(DEBIAN)"; exit 0; }; \
	missing=$$(for p in $(DEBIAN); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	[ -z "$$missing" ] || { echo "installing" $$missing; export DEBIAN_FRONTEND=noninteractive; \
	apt-get update -qq; apt-get install -y -qq --no-install-recommends $$missing >/dev/null; }

build: ## bin/flanneld, bin/flannel (the CNI shim) and the standard CNI plugins in bin/cni
	@mkdir -p $(BIN)/cni
	$(GO_BUILD) -ldflags '-s -w -X main.release=$(VERSION) -X main.commit=$(COMMIT)' -o $(BIN)/flanneld .
	$(GO_BUILD) -ldflags '-s -w -X main.release=$(VERSION) -X main.commit=$(COMMIT)' -o $(BIN)/flannel ./cniplugin
	$(GO_BUILD) -ldflags '-s -w -X $(PLUGIN_MOD)/pkg/utils/buildversion.BuildVersion=$(shell go list -m -f '{{.Version}}' $(PLUGIN_MOD))' \
		-o $(BIN)/cni/ $(PLUGINS:%=$(PLUGIN_MOD)/plugins/%)

image: build ## dist/image.tar, by docker where an engine answers, else by buildah on a base made of Debian's packages
	@mkdir -p dist
	@WEFT_CACHE='$(CACHE)' go run ./manifests/image -name '$(IMAGE)' -arch '$(ARCH)' -bin '$(BIN)' -version '$(VERSION)' -commit '$(COMMIT)' -out dist/image.tar

lint: ## golangci-lint; its modules are recorded in .ci/tools.mod
	@$(SUITE) lint

test: deps ## everything: house, lint, unit with the race detector, fuzz seeds, e2e in three lanes (builds what the rest needs too), namespaces, scenarios, a second kernel
	@$(MAKE) --no-print-directory image
	@$(SUITE) house lint unit modules e2e e2e-dual e2e-ipv6 netns vm-short

test-unit: ## unit tests with the race detector, fuzz seeds included; no root
	@$(SUITE) unit

test-netns: ## tests and scenarios in network namespaces; root
	@$(SUITE) netns

test-reliability: deps ## every fault with traffic on, on namespaces and on the real cluster; writes docs/reliability.md
	@$(MAKE) --no-print-directory image
	@$(SUITE) reliability

test-vm: deps ## namespace tests on Debian's kernel, in a virtual machine that is emulated
	@CGO_ENABLED=0 $(SUITE) vm

test-lanes: deps ## all tests in both families and in IPv6 alone, other backends on the real cluster, Kubernetes' own specs
	@$(MAKE) --no-print-directory image
	@$(SUITE) lanes

soak: deps ## every fault ten times, long ones too, and a random story of 1,000 steps; takes a night
	@$(MAKE) --no-print-directory image
	@$(SUITE) soak

cover: ## statements covered in subnet, backend and cniplugin; root, since namespace tests count; fails under 85 %
	@$(SUITE) -cover 85

fuzz: ## run each fuzz target for FUZZTIME (30s)
	@$(SUITE) -fuzztime $(FUZZTIME) fuzz

netpol: ## 10,000 random clusters with policies against an oracle, half of them as real packets; root
	WEFT_WORLDS=10000 go test -count=1 -timeout 60m -v -run 'TestTheRulesOfBothNodes|TestACompilerThatFollows|TestRealPackets|TestTheKernelHolds' ./backend/policy

bench: ## what things cost beside a baseline, as a table that goes into docs/performance.md; root, on a machine at rest
	WEFT_BENCH=full go test -count=1 -timeout 60m -v -run TestTheTableOfCosts ./tests/bench

cluster: deps ## a real kubeadm cluster of three nodes on this machine, with weft applied and pods talking
	@$(MAKE) --no-print-directory image
	cd tests/e2e && go run ./cmd/cluster up

cluster-down: ## remove that cluster and all it left
	cd tests/e2e && go run ./cmd/cluster down

e2e: deps ## the tests on the real cluster
	@$(MAKE) --no-print-directory image
	@$(SUITE) e2e

e2e-upstream: deps ## Kubernetes' own sig-network conformance specs on the real cluster
	@$(MAKE) --no-print-directory image
	cd tests/e2e && go run ./cmd/cluster upstream

e2e-netpol: deps ## Kubernetes' own specs of NetworkPolicy on the real cluster
	@$(MAKE) --no-print-directory image
	cd tests/e2e && go run ./cmd/cluster netpol

e2e-policyapi: deps ## the conformance suite of ClusterNetworkPolicy on the real cluster
	@$(MAKE) --no-print-directory image
	cd tests/e2e && go run ./cmd/cluster policyapi

clean: ## remove bin and dist; the cache stays
	rm -rf bin dist
