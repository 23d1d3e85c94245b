# Every target sets up .venv from pyproject.toml and constraints.txt when it has to, and
# reuses it the next time. `make PYTHON=/path/to/python <target>` chooses the interpreter.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
PY := $(VENV)/bin/python
CORE := $(VENV)/.installed-core
DEV := $(VENV)/.installed-dev
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
PYTHON ?=
WORKERS ?= 2

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(CORE) ## Train POMBU on HalfCheetah for a few minutes and see what it learned
	@$(PY) examples/demo.py

.PHONY: test
test: lint types ## Lint, types and every test that is not slow
	@$(PY) -m pytest -m "not slow" -n $(WORKERS) --dist worksteal

.PHONY: test-slow
test-slow: $(DEV) ## The tests that take minutes; writes results/slow-tests.json
	@$(PY) -m pytest -m slow -n $(WORKERS) --dist worksteal \
		--results-json results/slow-tests.json

.PHONY: lint
lint: $(DEV) ## Check style and layout with ruff
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

.PHONY: format
format: $(DEV) ## Fix style and layout with ruff
	@$(PY) -m tools.agent_types
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

.PHONY: types
types: $(DEV) ## Check types with mypy, strictly
	@$(PY) -m mypy

.PHONY: docs
docs: $(DEV) ## Build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

.PHONY: pictures
pictures: $(DEV) ## Draw the pictures of docs/ideas.md anew
	@$(PY) -m tools.pictures

.PHONY: tutorial
tutorial: $(DEV) ## Execute the tutorials in docs/tutorials anew (minutes)
	@$(PY) -m nbconvert --to notebook --execute --inplace docs/tutorials/*.ipynb

.PHONY: release
release: | $(PY) ## Build wheel and sdist, and use each outside the source tree
	@rm -rf build/release
	@PYTHON="$(abspath $(PY))" tools/release_check.sh "$(CURDIR)/build/release"

.PHONY: bench
bench: $(DEV) ## Measure speed on this machine
	@$(PY) -m pombu bench

.PHONY: learn
learn: $(DEV) ## Does it still learn? HalfCheetah for 16,000 steps (minutes)
	@$(PY) -m benchmarks.learn

.PHONY: reliability
reliability: $(DEV) ## Kill, damage and misuse runs; writes results/reliability.md
	@$(PY) -m benchmarks.reliability

.PHONY: test-lowest
test-lowest: | $(PY) ## Tests with the lowest versions that pyproject.toml admits
	@PYTHON="$(abspath $(PY))" tools/test_lowest.sh build/lowest

.PHONY: clean
clean: ## Remove .venv, caches and built files; runs/ and results/ stay
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An interpreter on the PATH may be a shim that cannot run, so each is asked its version.
$(PY):
	@for python in $(if $(PYTHON),"$(PYTHON)",python3 python3.13 python3.12 python3.11); do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "Creating $(VENV) with $$("$$python" --version)."; \
			"$$python" -m venv --clear $(VENV) && exit 0; \
			echo "Could not create $(VENV): install the venv module (on Debian and Ubuntu:" \
				"apt-get install python3-venv) and run make again." >&2; \
			exit 1; \
		fi; \
	done; \
	echo "pombu needs Python 3.11 or newer and found none" \
		"$(if $(PYTHON),at $(PYTHON),on the PATH): install it (python.org, or on Debian and" \
		"Ubuntu: apt-get install python3 python3-venv) or name one with" \
		"make PYTHON=/path/to/python." >&2; \
	exit 1

$(CORE): pyproject.toml | $(PY)
	@echo "Installing pombu into $(VENV) (once; a minute or two)."
	@$(PIP) --editable .
	@touch $@

# Another package index may not carry the constrained builds; any torch will do then.
$(DEV): pyproject.toml constraints.txt | $(PY)
	@echo "Installing pombu and its development tools into $(VENV) (once; some minutes)."
	@$(PIP) --editable ".[dev,all]" --constraint constraints.txt || { \
		echo "constraints.txt cannot be met here: installing without it." >&2; \
		$(PIP) --editable ".[dev,all]"; }
	@touch $@ $(CORE)
