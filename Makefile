# `make demo` shows Potash at work, `make test` runs every check; both set up what they need first.

PYTHON ?= python3
# The oldest that is supported. mypy cannot be set to it: packages for newer ones have stubs that it takes for errors.
OLDEST := 3.11
VENV := .venv
READY := $(VENV)/.ready
DEVELOPED := $(VENV)/.ready-dev
BIN := $(VENV)/bin
# On a terminal pip shows what it downloads, which takes minutes.
PIP_SHOWS = $$([ -t 1 ] || echo --quiet)

# An example of examples/, and a device to run it on: /dev/nvme0n1, or vfio-user:SOCKET.
EXAMPLE ?= add
NVME_DEVICE ?=
EXAMPLE_BUILD := build/examples/$(EXAMPLE)

# Tests start hundreds of processes, each of which would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test tested types lint collected compiled booted setup format docs docs-page example/build example/load clean

demo: $(READY)
	@$(BIN)/potash demo

# Two workers would compile the VTA's engine twice, and wait for each other while the guest is
# downloaded and booted; so both are done before, beside what is installed for tests. And each would
# compile all of the tests' modules.
# A quarter of the tests' time is spent in waiting: there is a worker more than processors. Tests of
# a file share a guest or a device, so that no two workers have tests of one.
test: $(READY)
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target booted compiled collected lint
	@$(MAKE) --no-print-directory --jobs=2 types tested

# `make` in a test has nothing to do with this one.
tested: setup
	MAKEFLAGS= $(BIN)/pytest -n $$(($$(nproc) + 1)) --dist loadfile --no-loadscope-reorder

types: setup
	$(BIN)/mypy

# On the oldest Python itself, mypy finds what is newer.
lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python --version | grep -qF ' $(OLDEST).' \
	  || $(BIN)/vermin --quiet --violations --no-tips --target=$(OLDEST)- device docs examples firmware host
	$(BIN)/lint-imports
	$(BIN)/python docs/site/generate.py --check

collected: setup
	@$(BIN)/pytest --collect-only -qq >/dev/null || true  # the tests themselves say why

compiled: $(READY)
	@cd tests && ../$(BIN)/python -m support.compiled

booted: $(READY)
	@cd tests && ../$(BIN)/python -m support.booted

setup: $(DEVELOPED)

# Made anew whenever what is to be installed changes. Python compiles what is used.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Potash needs Python 3.11 or later; install it, or name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "This Python cannot make virtual environments; install its venv package (Debian: apt install python3-venv)." >&2; exit 1; }
	@echo "Setting up $(VENV) (once)…"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/pip install --no-compile $(PIP_SHOWS) --disable-pip-version-check --editable .
	@touch $@

# The rest of what tests and checks need; a demo does not wait for it. The pip that comes with older
# Pythons takes twice as long to choose it.
$(DEVELOPED): $(READY)
	@$(BIN)/pip install --no-compile $(PIP_SHOWS) --disable-pip-version-check 'pip>=25'
	@$(BIN)/pip install --no-compile $(PIP_SHOWS) --disable-pip-version-check --editable '.[dev]'
	@touch $@

format: setup
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# The program of an example, compiled, with its input and what must come of it.
example/build: setup
	@$(BIN)/potash demo write $(EXAMPLE) $(EXAMPLE_BUILD)

# The same, run on a drive that is there.
example/load: example/build
	@test -n "$(NVME_DEVICE)" \
	  || { echo "Say which device: EXAMPLE=$(EXAMPLE) NVME_DEVICE=/dev/nvme0n1 make example/load" >&2; exit 2; }
	@$(BIN)/potash run $(NVME_DEVICE) $(EXAMPLE_BUILD)/program.o $(EXAMPLE_BUILD)/input.bin \
	  $(EXAMPLE_BUILD)/output.bin $$(cat $(EXAMPLE_BUILD)/arguments)
	@cmp $(EXAMPLE_BUILD)/output.bin $(EXAMPLE_BUILD)/expected.bin && echo equal

# The documentation as a site, in build/site.
docs: $(VENV)/.ready-docs
	$(BIN)/mkdocs build --strict

$(VENV)/.ready-docs: $(DEVELOPED)
	@$(BIN)/pip install $(PIP_SHOWS) --disable-pip-version-check --editable '.[docs]'
	@touch $@

# Pages and drawings that are generated from the code.
docs-page: setup
	$(BIN)/python docs/site/generate.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
