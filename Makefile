# Two commands are enough on a fresh machine: `make run` and `make test`.
# Everything is installed into .venv and BELLJAR_HOME; as root, `make test` also installs and starts
# what the engines need (tests/engines_up.sh), and makes (and removes) a system user, to run the tests
# once more without privileges.

SHELL := /bin/bash
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do \
	"$$p" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { "$$p" -c 'import sys; print(sys.executable)'; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Where built environments are, so that tests of them need not build them once more.
ENVIRONMENTS_HOME := $(or $(BELLJAR_HOME),$(or $(XDG_DATA_HOME),$(HOME)/.local/share)/belljar)

.PHONY: help run demo test test-all test-pythons setup check environments test-user test-machines bench compat soak prove clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

run: setup  ## run sample code in a sandbox and show the result
	$(BIN)/belljar run examples/hello.py --output .sample-output

demo: setup  ## a data analyst at work: a table of 1 GB in a sandbox, questions, pictures, branches
	$(BIN)/python examples/data_analyst --output .demo-output

TESTS := not slow
test-all: TESTS :=
test-all: test  ## as test, with the tests that take long

test: setup environments  ## all checks, and tests as this user and (if root) as an ordinary user too
	$(MAKE) --no-print-directory check
	@engines="$$(mktemp -d)"; trap 'tests/engines_up.sh down "$$engines"' EXIT; \
	started="$$(tests/engines_up.sh up "$$engines")" && eval "$$started" && \
	BELLJAR_TEST_HOME=$(ENVIRONMENTS_HOME) TESTS="$(TESTS)" tests/run.sh
	@if [ "$$(id -u)" = 0 ]; then $(MAKE) --no-print-directory test-user; fi

test-pythons: setup  ## the jail's tests on Python 3.11 to 3.14, each that can be had (SELECTION=short: some)
	$(BIN)/nox -- $(SELECTION)

setup: $(STAMP)  ## make .venv with the belljar command in it

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Belljar needs Python 3.11 or newer with venv (Debian: apt-get install python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(BIN)/python -m compileall -q src
	touch $(STAMP)

environments: setup  ## build the environments the tests use (numpy and friends, Node, Go)
	$(BIN)/belljar env build data node go

check: setup  ## format, lint, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-user: setup
	bash tests/as_ordinary_user.sh

GUESTS :=
CELLS :=
SELECTION :=
test-machines: setup  ## in QEMU guests of Debian and Ubuntu; part of it: GUESTS=trixie CELLS=root,user
	$(BIN)/python -m tests.machines run --guests "$(GUESTS)" --cells "$(CELLS)" --selection $(or $(SELECTION),full)

bench: setup environments  ## Belljar beside the alternatives, in one run
	@engines="$$(mktemp -d)"; trap 'tests/engines_up.sh down "$$engines"' EXIT; \
	started="$$(tests/engines_up.sh up "$$engines")" && eval "$$started" && $(BIN)/python -m bench

compat: setup environments  ## public test suites inside a sandbox beside the bare host
	$(BIN)/python -m compat

HOURS ?= 0.1
SEED ?=
WORKERS ?=
RATE ?=
FAULTS ?= all
DOCKER ?=
soak: setup environments  ## a server under load and faults, judged: HOURS=1 SEED=7 FAULTS=full-disk (docs/soak.md)
	$(BIN)/python -m soak --hours $(HOURS) --faults $(FAULTS) $(if $(SEED),--seed $(SEED)) \
		$(if $(WORKERS),--workers $(WORKERS)) $(if $(RATE),--rate $(RATE)) $(if $(DOCKER),--docker)

prove: setup  ## run the containment probes on this machine
	$(BIN)/belljar prove

clean:  ## remove what make made here
	rm -rf $(VENV) .nox .test-home .sample-output .demo-output
