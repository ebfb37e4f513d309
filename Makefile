# Everything that is done with this repository by hand or by CI. `make help` lists it.
SHELL := /bin/sh
.DEFAULT_GOAL := help

CARGO ?= cargo
IMAGE ?= harvester-cloud-provider:dev
# Threads of the integration tests: each scenario has a cluster of its own.
TEST_THREADS ?= 2
BENCHES := decide announce handover load cloud

target_dir = $$($(CARGO) metadata --no-deps --offline --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-7s %s\n' "$$name" "$$text"; done

.PHONY: demo
demo: packages ## Show VIPs and their failover in a cluster on this machine (root); HOLD=1 leaves it up
	@$(CARGO) build --quiet --workspace --bins
	@"$(target_dir)/debug/demo" $(if $(HOLD),--hold)

.PHONY: test
test: packages ## Everything that CI checks: format, lints, all tests, documentation, benchmarks' smoke run (root)
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) test --workspace --lib --bins
	$(CARGO) test --workspace --test '*' --no-run
	"$(target_dir)/debug/lab" tools
	$(CARGO) test --workspace --test '*' -- --test-threads=$(TEST_THREADS)
	$(CARGO) test --workspace --doc
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --workspace --no-deps --document-private-items
	$(CARGO) test $(addprefix --bench ,$(BENCHES))
	$(CARGO) check --manifest-path fuzz/Cargo.toml --bins --locked --target-dir "$(target_dir)"
	@$(MAKE) --no-print-directory deny

.PHONY: deny
deny: ## Policy of dependencies (deny.toml), where cargo-deny is installed
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny check bans licenses sources; \
	else echo "make deny: skipped, because cargo-deny is not installed"; fi

.PHONY: bench
bench: packages ## Measure announcement, handover, load, decisions and the cloud controllers, with release builds (root)
	$(CARGO) bench $(addprefix --bench ,$(BENCHES))

.PHONY: lint
lint: ## Format and lints only
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

.PHONY: image
image: ## Build the container image IMAGE (docker or podman)
	@engine=$$(command -v docker || command -v podman) || { echo "make image: needs docker or podman" >&2; exit 1; }; \
	"$$engine" build --tag $(IMAGE) .

# What the lab needs of the machine, by Debian package; nothing is done when all of it is there.
.PHONY: packages
packages:
	@tests/lab/packages.sh
