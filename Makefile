# The two commands are `make demo` and `make test`; everything else is a part of them.
# Downloads and build results are kept outside the repository, in $(CACHE).

CACHE ?= $(or $(FANOUT_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fanout-operator)
export FANOUT_CACHE := $(CACHE)
export CARGO_TARGET_DIR := $(CACHE)/target

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo demo-down
demo: ## run the whole system on a real cluster and check every event (FAULT=lose|swap|rollback, FANOUT_CONTEXT=NAME)
	@FAULT="$(FAULT)" FANOUT_CONTEXT="$(FANOUT_CONTEXT)" bash tests/demo/demo.sh
demo-down: ## remove everything the demo made
	@FANOUT_CONTEXT="$(FANOUT_CONTEXT)" bash tests/demo/down.sh

.PHONY: test fmt lint unit it cluster soak
test: ## every check and test, in the order of their cost
	@bash tests/run.sh
fmt: ## format check
	@bash tests/run.sh format
lint: ## clippy and documentation, warnings denied
	@bash tests/run.sh lint
unit: ## tests that need nothing but the code
	@bash tests/run.sh unit
it: ## tests against real PostgreSQL, Kafka and API server
	@bash tests/run.sh integration faults
cluster: ## the test on a real cluster
	@bash tests/run.sh cluster
soak: ## the long forms of the tests, one after the other
	@bash tests/run.sh build soak

.PHONY: cluster-up cluster-down kubeconfig
cluster-up: ## start the local single-node Kubernetes
	@bash tests/cluster/up.sh
cluster-down: ## stop it and undo what it changed on this machine
	@bash tests/cluster/down.sh
kubeconfig: ## print the path of its kubeconfig
	@bash tests/cluster/kubeconfig.sh

.PHONY: chaos
KILLS ?= 1000
EVENTS ?= 1000000
SEED ?= 1
chaos: ## kill relays a thousand times under load and every other fault, and print what was lost: KILLS=, EVENTS=, SEED=
	cargo build --quiet --release --workspace --bins
	cargo bench --quiet --workspace --bench chaos -- $(KILLS) $(EVENTS) $(SEED)

.PHONY: bench
bench: ## measure, and print a table (BENCH=relay, BENCH=objects, BENCH='objects 5000')
	cargo build --quiet --release --workspace --bins
	cargo bench --quiet --workspace --bench bench -- $(BENCH)

.PHONY: generate
generate: ## write the files that are made from code: CRDs, chart copies, manifests, reference documentation
	@bash crds/generate.sh
