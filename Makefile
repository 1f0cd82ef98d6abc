# `make demo` shows Potash at work, `make test` runs every check; both set up what they need first.

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin

.PHONY: demo test setup format docs-page clean

demo: setup
	@$(BIN)/potash demo

test: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest

setup: $(READY)

# Made anew whenever what is to be installed changes.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Potash needs Python 3.11 or later; install it, or name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "This Python cannot make virtual environments; install its venv package (Debian: apt install python3-venv)." >&2; exit 1; }
	@echo "Setting up $(VENV) (once)…"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

format: setup
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# What there is of the standard, from the firmware's tables; and reports, from their schemas.
docs-page: setup
	$(BIN)/python -m potash_firmware.rpu.supported > docs/supported.md
	$(BIN)/python -m potash.schemas > docs/json.md

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
