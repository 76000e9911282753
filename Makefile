# make setup  build the virtual environment and install the project into it (editable; native code compiled)
# make run    restore the DeepSeek-V4-Pro geometry and replay a conversation, every byte checked (under two minutes)
# make test   every test, soak tests with small counts
# make soak   the soak tests with full counts, and a table of what they did
# make bench  the full benchmarks; JSON under build/bench/. TRACE=... replays that file instead of generated requests
# make lint   ruff (rules and format) and mypy
# make stub   write the stub of the native module anew
# make docs   write the generated tables of README.md and docs/ anew
# Every target does its own set-up, which costs nothing when nothing changed. PYTHON=... chooses the interpreter.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help setup run test soak bench lint stub docs clean

VENV := .venv
BIN := $(VENV)/bin
BENCH_DIR := build/bench
REPLAY_PAGES := 1000 10000 30000
TRACE ?=
PYTEST_ARGS ?=
# Without -jN, CMake's build takes this many compilers at once.
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc 2>/dev/null || echo 2)

# Directories are listed too: a source that was removed changes nothing but the time of its directory.
NATIVE_SOURCES := $(shell find sglang_umbp/native)
INSTALL := $(BIN)/python -m pip install --quiet --no-build-isolation

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

setup: $(VENV)/.installed

$(VENV)/.created:
	@python=$$(PYTHON='$(PYTHON)' sh .ci/scripts/find_python.sh) && echo "setup: $(VENV) with $$python" \
	  && "$$python" -m venv --clear $(VENV)
	@touch $@

# What pyproject.toml's [build-system] names, installed into the environment: with --no-build-isolation a rebuild
# compiles only what changed.
$(VENV)/.build-tools: pyproject.toml .ci/scripts/build_requirements.py | $(VENV)/.created
	@echo "setup: build tools"
	@$(BIN)/python .ci/scripts/build_requirements.py | xargs $(BIN)/python -m pip install --quiet
	@touch $@

$(VENV)/.installed: $(VENV)/.build-tools sglang_umbp/_version.py $(NATIVE_SOURCES)
	@echo "setup: compiling and installing sglang-umbp"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(INSTALL) --editable '.[test]'
	@touch $@

$(VENV)/.lint-tools: $(VENV)/.installed
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(INSTALL) --editable '.[lint]'
	@touch $@

run: setup
	$(BIN)/sglang-umbp bench restore --quick --verify
	$(BIN)/sglang-umbp replay --requests 300 --verify

test: setup
	$(BIN)/python -m pytest $(PYTEST_ARGS)

soak: setup
	$(BIN)/python -m pytest --soak -m soak --timeout 3600 $(PYTEST_ARGS)

bench: setup
	@mkdir -p $(BENCH_DIR)
	$(BIN)/sglang-umbp bench restore --verify --json $(BENCH_DIR)/restore.json
	for pages in $(REPLAY_PAGES); do \
	  $(BIN)/sglang-umbp replay $(if $(TRACE),--trace '$(TRACE)') --capacity-pages $$pages --verify \
	    --json $(BENCH_DIR)/replay-$$pages.json || exit 1; \
	done

lint: $(VENV)/.lint-tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

stub: setup
	$(BIN)/python .ci/scripts/make_stub.py

docs: setup
	$(BIN)/python .ci/scripts/make_docs.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .hypothesis .ruff_cache .mypy_cache
