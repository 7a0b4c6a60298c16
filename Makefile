# The contributor's index. Each target makes what it needs on a bare machine: Python 3.11 or later with venv.
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
READY := $(VENV)/.ready
PEERS := .venv-bench
TREE := src tests tools examples docs $(wildcard bench)

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: venv
venv: $(READY) ## .venv, with Clew and the development tools

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Clew needs Python 3.11 or later: make PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

.PHONY: check
check: $(READY) ## Format, lint, types, import contracts, numbers to hold
	$(BIN)/ruff format --check $(TREE)
	$(BIN)/ruff check $(TREE)
	$(BIN)/pyright
	$(BIN)/mypy
	@$(MAKE) typing
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.numbers

# The programs are checked as a user's are, without our own mypy settings; bad.py is the one that must fail.
.PHONY: typing
typing: $(READY) ## User programs in both type checkers; the planted mistakes must fail in both
	$(BIN)/pyright --pythonpath $(BIN)/python -p tests/typing
	cd tests/typing && $(BIN)/mypy --config-file= --strict --exclude 'bad\.py$$' programs
	$(BIN)/python -m tools.planted tests/typing/programs/bad.py

# T="tests/core -k rebase" runs a part. Coverage is asked of the whole suite only, and speaks only when it falls short.
.PHONY: test
test: $(READY) ## The tests, with every branch of the core; T="tests/core" for a part
ifdef T
	@$(BIN)/python -m pytest $(T)
else
	@$(BIN)/coverage run -m pytest
	@missing=$$($(BIN)/coverage report 2>&1) || { echo "$$missing"; exit 1; }
endif

.PHONY: demo
demo: $(READY) ## What Clew is for, in ten seconds: no key, no network
	@$(BIN)/clew demo

.PHONY: picture
picture: $(READY) ## docs/demo.svg, the demo as it looks on a terminal
	@$(BIN)/python -m tools.picture

.PHONY: spec
spec: $(READY) ## Each statement of docs/semantics.md: its tests, and the planted faults they catch
	@$(BIN)/python -m tools.spec $(ARGS)

.PHONY: crash
crash: $(READY) ## Real processes on real files, killed at drawn instants; ARGS="--help"
	@$(BIN)/python -m tests.crash.kill $(ARGS)

.PHONY: race
race: $(READY) ## Messages and cancels from another process at every instant around the end of a run; ARGS="--help"
	@$(BIN)/python -m tests.crash.race $(ARGS)

.PHONY: payments
payments: $(READY) ## Payments by processes that are killed and frozen, held against the book of a bank; ARGS="--help"
	@$(BIN)/python -m tests.crash.payments $(ARGS)

.PHONY: bench
bench: $(PEERS)/.ready ## Clew, the floor and a peer, interleaved; ARGS="--help"
	@$(PEERS)/bin/python -m bench.run $(ARGS)

# What the peers need has a place of its own: the development tools stay as they are.
$(PEERS)/.ready: pyproject.toml bench/requirements.txt
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -e . -r bench/requirements.txt
	@touch $@

.PHONY: docs
docs: $(VENV)/.ready-docs ## The pages of docs/ as a site, in build/site; a link that leads nowhere is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

$(VENV)/.ready-docs: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

.PHONY: format
format: $(READY) ## Format, and mend what ruff can
	$(BIN)/ruff check --fix-only --quiet $(TREE)
	$(BIN)/ruff format $(TREE)
