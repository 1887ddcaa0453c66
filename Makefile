# trimtab's commands, each explained by `make help`. They need git, make and Python 3.11 to 3.13, and nothing else:
# everything is installed into .venv, pinned by requirements.lock. A second call finds the stamps and starts at once.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
LOCK := requirements.lock

# Rows: DATA is a path, glob, directory or URL; without it a sample of SAMPLE_ROWS rows is made once. The sample is
# small, so it is read three times; rows of one's own once.
DATA ?=
SAMPLE_ROWS ?= 1000000
SAMPLE_SEED ?= 1
SAMPLE := build/sample/criteo_$(SAMPLE_ROWS)_$(SAMPLE_SEED).parquet
EPOCHS ?= $(if $(DATA),1,3)
ARGS ?=

# Seeds of the simulation and of the chaos suite: numbers and ranges; SEED replays one.
SEEDS ?=
SEED ?=

# Bytecode of every package at once: twenty seconds now, instead of a slow first import in each process later.
COMPILE ?= --compile-bytecode

# A shell that forbids bytecode would make every TensorFlow import take four times as long, in every worker.
unexport PYTHONDONTWRITEBYTECODE
unexport PYTHONHOME
unexport PYTHONPATH
unexport VIRTUAL_ENV

# Prints the first interpreter that can make our environment. Shims of pyenv may stand on the PATH and refuse, and a
# system Python may lack venv, so each one is asked; pyenv's own versions are tried last.
define find_python
candidates=("$(PYTHON)"); \
if [ -z "$(PYTHON)" ]; then \
  candidates=(python3.12 python3.13 python3.11 python3 python); \
  if root=$$(pyenv root 2>/dev/null); then \
    for minor in 12 13 11; do candidates+=("$$root"/versions/3.$$minor.*/bin/python); done; \
  fi; \
fi; \
found=; \
for candidate in "$${candidates[@]}"; do \
  if found=$$("$$candidate" -c 'import ensurepip, sys, venv; print(sys.executable); sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null); \
  then break; fi; \
  found=; \
done; \
if [ -z "$$found" ]; then \
  echo "make: no Python 3.11, 3.12 or 3.13 with the venv module was found ($${candidates[*]});" \
    "install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; \
fi
endef

.PHONY: help
help: ## Show these targets.
	@awk -F ':.*## ' '/^[a-z_]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: train
train: $(VENV)/.kernels.stamp $(if $(DATA),,$(SAMPLE)) ## Train a DLRM on a sample (3 epochs), or on your rows (1): make train DATA=path [EPOCHS=n] [ARGS='--ps 2'].
	@$(BIN)/trimtab train --data '$(or $(DATA),$(SAMPLE))' --epochs $(EPOCHS) $(ARGS)

.PHONY: ui
ui: $(VENV)/.base.stamp ## Show past runs in MLflow's pages: make ui [ARGS='--port 5001'].
	@$(BIN)/trimtab ui $(ARGS)

.PHONY: test
test: lint ## Run lint, types and import contracts, then every test.
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

.PHONY: lint
lint: $(VENV)/.dev.stamp $(VENV)/.kernels.stamp ## Run lint, types and import contracts.
	@$(BIN)/ruff check --quiet . src/trimtab/__init__.py
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo

.PHONY: bench
bench: $(VENV)/.dev.stamp $(VENV)/.kernels.stamp ## Run every benchmark and write docs/benchmarks.md (up to an hour).
	@$(BIN)/python benchmarks/run_all.py $(ARGS)

.PHONY: simulate
simulate: $(VENV)/.dev.stamp ## Run simulated jobs from 10,000 seeds, with every fault (minutes): make simulate [SEEDS=0-9999] [SEED=n].
	@$(BIN)/python -m trimtab.core.simulator $(or $(SEED),$(SEEDS),0-9999) $(ARGS)

.PHONY: chaos
chaos: $(VENV)/.dev.stamp $(VENV)/.kernels.stamp ## Kill and cut jobs from 200 seeds, audit each (hours): make chaos [SEEDS=0-19] [SEED=n].
	@$(BIN)/python tests/integration/chaos.py $(or $(SEED),$(SEEDS),0-199) $(ARGS)

.PHONY: lock
lock: $(VENV)/.uv.stamp ## Pin the newest versions that setup.cfg allows into requirements.lock.
	@$(UV) pip compile --quiet --universal --python-version 3.11 --all-extras --upgrade \
	  --custom-compile-command 'make lock' setup.cfg -o $(LOCK)

.PHONY: clean
clean: ## Remove the environment, the sample and all caches of this checkout (not ~/.trimtab).
	@rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- The environment, in steps that are only repeated when what they rest on has changed.

$(VENV)/.uv.stamp:
	@$(find_python); echo "environment: $(VENV), from $$found" >&2; "$$found" -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(LOCK) uv
	@touch $@

$(VENV)/.base.stamp: $(VENV)/.uv.stamp $(LOCK) setup.cfg pyproject.toml
	@$(call install,.)
	@touch $@

$(VENV)/.dev.stamp: $(VENV)/.base.stamp
	@$(call install,.[dev])
	@touch $@

# The sources of the kernels are compiled once into a cache outside the checkout, so that no run waits for it.
$(VENV)/.kernels.stamp: $(VENV)/.base.stamp $(wildcard core/ps/*kernel*.py core/training/kernels.py)
	@$(BIN)/python -m trimtab.core.ps.kernel_cache >&2
	@touch $@

$(SAMPLE): | $(VENV)/.base.stamp
	@mkdir -p $(dir $@)
	@$(BIN)/trimtab data sample --rows $(SAMPLE_ROWS) --out $@ --seed $(SAMPLE_SEED) >&2

# Pins come from the lock as constraints, so that an extra installs only what it needs. The egg-info that an editable
# install leaves beside the sources makes the distribution visible twice (Airflow then loads its plug-in twice).
define install
$(UV) pip install --quiet --python $(BIN)/python $(COMPILE) --constraint $(LOCK) --editable '$(1)'; \
rm -rf src/*.egg-info
endef
