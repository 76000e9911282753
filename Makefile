# make setup  build the virtual environment and install the project into it (editable; native code compiled)
# make setup-sglang  build a second one with SGLang (CPU, pinned, 2.8 GB) and the project's wheel, for tests/hicache
# make run    restore the DeepSeek-V4-Pro geometry and replay a conversation, every byte checked (under two minutes)
# make test   every test, soak tests with small counts
# make test-sglang  the tests with SGLang alone (tests/hicache; part of make test)
# make test-gpu  on a machine with a GPU: builds the wheel, runs the tests marked gpu on it, measures, one table last
# make soak   the soak tests with full counts, and a table of what they did
# make bench  the full benchmarks; JSON under build/bench/. TRACE=... replays that file instead of generated requests
# make lint   ruff (rules and format) and mypy
# make stub   write the stub of the native module anew
# make docs   write the generated tables of README.md and docs/ anew
# Every target does its own set-up, which costs nothing when nothing changed. PYTHON=... chooses the interpreter.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help setup setup-sglang run test test-sglang test-gpu soak bench lint stub docs clean

VENV := .venv
BIN := $(VENV)/bin
SGLANG_VENV := .venv-sglang
SGLANG_BIN := $(SGLANG_VENV)/bin
SGLANG_TESTS := tests/hicache
WHEEL_DIR := build/wheel
BENCH_DIR := build/bench
REPLAY_PAGES := 1000 10000 30000
TRACE ?=
PYTEST_ARGS ?=
# Without -jN, CMake's build takes this many compilers at once.
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc 2>/dev/null || echo 2)

# Directories are listed too: a source that was removed changes nothing but the time of its directory.
NATIVE_SOURCES := $(shell find sglang_umbp/native)
PYTHON_SOURCES := $(shell find sglang_umbp -not -name '*.pyc' -not -name __pycache__)
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

setup-sglang: $(SGLANG_VENV)/.installed

$(SGLANG_VENV)/.created:
	@python=$$(PYTHON='$(PYTHON)' sh .ci/scripts/find_python.sh) && echo "setup: $(SGLANG_VENV) with $$python" \
	  && "$$python" -m venv --clear $(SGLANG_VENV)
	@touch $@

# --no-deps: the list is complete, and what SGLang itself asks for is gigabytes of CUDA packages.
$(SGLANG_VENV)/.packages: $(SGLANG_TESTS)/requirements.txt $(SGLANG_TESTS)/torchvision_on_cpu.py | $(SGLANG_VENV)/.created
	@echo "setup: SGLang for the CPU"
	@$(SGLANG_BIN)/python -m pip install --quiet --no-deps -r $(SGLANG_TESTS)/requirements.txt
	@site=$$($(SGLANG_BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])') \
	  && cp $(SGLANG_TESTS)/torchvision_on_cpu.py "$$site" && echo 'import torchvision_on_cpu' > "$$site/torchvision_on_cpu.pth"
	@touch $@

# The wheel, as a user has it beside SGLang; the first environment's build tools and build folder make it.
$(SGLANG_VENV)/.installed: $(SGLANG_VENV)/.packages $(VENV)/.installed $(PYTHON_SOURCES)
	@echo "setup: installing the wheel of sglang-umbp beside SGLang"
	@rm -rf $(WHEEL_DIR)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps -w $(WHEEL_DIR) .
	@$(SGLANG_BIN)/python -m pip install --quiet --no-deps --force-reinstall $(WHEEL_DIR)/*.whl
	@touch $@

run: setup
	$(BIN)/sglang-umbp bench restore --quick --verify
	$(BIN)/sglang-umbp replay --requests 300 --verify

test: setup
	$(BIN)/python -m pytest --ignore $(SGLANG_TESTS) $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory test-sglang

# pytest by its script: `python -m pytest` would find the package of the source tree before the wheel.
test-sglang: setup-sglang
	$(SGLANG_BIN)/pytest $(SGLANG_TESTS) $(PYTEST_ARGS)

# Not in $(VENV): the wheel is built by and for the interpreter that has torch there.
test-gpu:
	PYTHON='$(PYTHON)' sh .ci/scripts/gpu.sh

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
	rm -rf $(VENV) $(SGLANG_VENV) build dist .pytest_cache .hypothesis .ruff_cache .mypy_cache
