# Every target sets up what it needs. PYTHON names the interpreter for .venv (3.11 or newer).

PYTHON ?= python3
# The other Pythons, where they are found: the core, the corpus and the runtime are tested on them, but not on other
# stores than SQLite and memory, since what a server answers does not depend on the interpreter.
OTHER_PYTHONS ?= 3.11 3.12 3.13

# Leaves out what needs a server.
NO_SERVERS := $(shell printf 'not %s and ' postgres redis mongodb dynamodb nats rabbitmq)not kafka

# Many tests wait for processes and servers, so a few files of tests at once cost little.
AT_ONCE ?= -n 4 --dist loadfile --no-loadscope-reorder

VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin
PIP_FLAGS := --quiet --quiet --disable-pip-version-check --constraint constraints.txt
# Output of tools that run side by side is kept apart, where make can.
GROUPED := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
SUBMAKE := $(MAKE) --no-print-directory

# Tests write and sync very many small files. Where memory can hold them, and has room, they live there.
SCRATCH := $(shell test -w /dev/shm && df -Pk /dev/shm | awk 'END { print ($$4 > 4000000) ? "/dev/shm" : "/tmp" }' || echo /tmp)

export PYTHONHASHSEED ?= random
# Tests start hundreds of processes, each of which would compile the package anew.
export PYTHONDONTWRITEBYTECODE :=
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-cluster check test bench format clean tools quick-tools \
	run-format run-lint run-mypy run-pyright run-layers run-core other-pythons

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## run the demonstration
	@$(BIN)/python examples/demo.py

demo-cluster: $(READY) ## the same on PostgreSQL and Redis: 2,000 orders, three workers, one of them killed
	@$(BIN)/python examples/demo_cluster.py

check: $(READY) ## format, lint, types, layers and the tests of the core: seconds
	@$(SUBMAKE) -j2 --keep-going $(GROUPED) quick-tools run-core

test: $(READY) ## everything: the tools, all tests, then what depends on the interpreter on every other Python found
	@$(SUBMAKE) -j2 --keep-going $(GROUPED) tools
	@echo "== pytest, $$($(BIN)/python --version)"
	@$(call run_pytest,$(VENV),$(AT_ONCE))
	@$(SUBMAKE) other-pythons

bench: $(READY) ## measure
	@$(BIN)/python -m bench

format: $(READY) ## format the code and repair what ruff can
	@$(BIN)/ruff check --fix --quiet --exit-zero .
	@$(BIN)/ruff format .

clean: ## remove environments, caches and builds
	rm -rf $(VENV) $(VENV)-* build dist .coverage* htmlcov \
		.hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find src tests examples bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# --- the tools, one target each; the slow ones first -----------------------------------------------------------------

# mypy remembers what has not changed; pyright does not, and takes as long as all the rest of `check`.
tools: run-pyright quick-tools
quick-tools: run-mypy run-format run-lint run-layers

run-mypy:
	@echo "== mypy"; $(BIN)/mypy
run-pyright:
	@echo "== pyright"; $(BIN)/pyright --project pyproject.toml
run-format:
	@echo "== ruff format"; $(BIN)/ruff format --check .
run-lint:
	@echo "== ruff check"; $(BIN)/ruff check .
run-layers:
	@echo "== import-linter"; $(BIN)/lint-imports --no-logo
run-core:
	@echo "== pytest tests/core"; $(BIN)/python -m pytest -n 2 tests/core src/perdure/core

# $(call run_pytest,folder,arguments): with a place for files that is removed again.
define run_pytest
	scratch=$$(mktemp -d $(SCRATCH)/perdure.XXXXXX); chmod 755 $$scratch; trap "rm -rf $$scratch" EXIT; \
	TMPDIR=$$scratch $(1)/bin/python -m pytest $(2)
endef

# --- environments ----------------------------------------------------------------------------------------------------

# $(call set_up,folder,interpreter,extra): safe to repeat after an interruption; the .ready file comes last.
define set_up
	echo "Setting up $(1) …"; \
	test -x $(1)/bin/python || $(2) -m venv $(1); \
	$(1)/bin/python -m pip install $(PIP_FLAGS) hatchling editables; \
	$(1)/bin/python -m pip install $(PIP_FLAGS) --no-build-isolation --editable '.[$(3)]'; \
	touch $(1)/.ready
endef

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Perdure needs Python 3.11 or newer; try: make PYTHON=python3.12 …" >&2; exit 1; }
	@set -e; $(call set_up,$(VENV),$(PYTHON),dev)

# An interpreter that is found may be a shim of a version that is not active: only one that runs counts.
$(VENV)-%/.ready: pyproject.toml constraints.txt
	@set -e; \
	for python in python$* "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$*.*/bin/python; do \
		if "$$python" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "$*")' 2>/dev/null; then \
			$(call set_up,$(VENV)-$*,"$$python",test); exit 0; \
		fi; \
	done; \
	echo "Python $* not found: skipped"

other-pythons:
	@set -e; main=$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	for version in $(OTHER_PYTHONS); do \
		test $$version != $$main || continue; \
		$(SUBMAKE) $(VENV)-$$version/.ready; \
		test -e $(VENV)-$$version/.ready || continue; \
		echo "== pytest tests/core tests/corpus tests/runtime, $$($(VENV)-$$version/bin/python --version)"; \
		( $(call run_pytest,$(VENV)-$$version,-p no:cacheprovider $(AT_ONCE) -k '$(NO_SERVERS)' \
			tests/core tests/corpus tests/runtime src/perdure/core src/perdure/flows) ); \
	done
