# Everything a contributor needs. Each target installs what it needs first; nothing else has to be known.
#
#   make         set up the development environment (.venv)
#   make test    run the tests          (TESTS=tests/unit  ARGS="-k name"  JOBS=1)
#   make check   format, lint, types, borders between rooms, generated code
#   make fmt     let the formatter and the safe fixes do their work
#   make bench   measure speed beside the alternatives, results in bench/results/
#   make dist    wheel, source archive and the one-file program, in dist/
#   make soak    the long and heavy runs (FUZZ_S=300)
#   make proto   generate the stubs from proto/

SHELL := /bin/sh
.DELETE_ON_ERROR:
.DEFAULT_GOAL := setup
.PHONY: setup test check fmt bench dist soak proto clean

# PYTHON only makes .venv; everything else runs inside it. The launcher knows how to find or install one.
PYTHON ?= $(shell ./k8e --find-python)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.k8e-dev
TESTS  ?= tests
FUZZ_S ?= 300
ARGS   ?=
# Test processes side by side: more than small machines have cores, because half of a test is waiting.
JOBS   ?= 4

setup: $(STAMP)

# The stamp is made last: an interrupted set-up is simply run again.
$(STAMP): pyproject.toml
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	    python="$(PYTHON)" && test -n "$$python" && \
	    echo "make: new environment in $(VENV) ($$python)" >&2 && rm -rf $(VENV) && "$$python" -m venv $(VENV); }
	@echo "make: installing k8e with its server and dev parts" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[server,otel,dev]'
	@touch $@

test: $(STAMP)
	$(BIN)/python -m tests.run --jobs $(JOBS) $(TESTS) -- $(ARGS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/generate.py --check

fmt: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python -m bench $(ARGS)

dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python packaging/onefile.py dist

# Hostile frames for a while, a crash at every single step, every program on every runtime, then everything that is marked as long.
soak: $(STAMP)
	$(BIN)/python -m tests.unit.wire.test_fuzz $(FUZZ_S)
	$(BIN)/python -m pytest --every-step tests/kernel/test_crashes.py
	$(BIN)/python -m pytest --every-program tests/contract/test_programs.py
	$(BIN)/python -m pytest -m soak --timeout=3600 $(ARGS) $(TESTS)

proto: $(STAMP)
	$(BIN)/python proto/generate.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist build
