# `make` lists what there is. Everything runs in .venv, which `make setup` fills.
# The first Python here that Offbeat runs on. Each is tried: a version manager's stand-in may be there and not run.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.10 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.offbeat-installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test bench reproduce protos lint clean

help:            ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

# The stamp depends on what is installed from, so that an edited pyproject.toml is
# installed anew and an unchanged one costs nothing.
$(STAMP): pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null || { echo "error: no Python 3.10 to 3.13 found$(if $(PYTHON), as '$(PYTHON)')" >&2; \
		echo "install one, with its venv module, or name yours: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt $(TORCH_INDEX_FLAG) -e '.[ps,scheduler,worker,cli,dev]'
	@touch $@

# On Linux PCs without an NVIDIA GPU: make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX_FLAG := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

setup: $(STAMP)  ## make .venv and install Offbeat into it

demo: $(STAMP)   ## train one model across three unequal devices, here (ARGS="--speeds 1,2,8")
	$(BIN)/offbeat demo $(ARGS)

lint: $(STAMP)   ## style (ruff), types (mypy), borders (import-linter)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint       ## lint, then every test that this machine can run
	$(BIN)/python -m pytest $(ARGS)

bench: $(STAMP)  ## list the benchmarks; run one with NAME=... (and ARGS)
	$(BIN)/python -m benchmarks $(NAME) $(ARGS)

reproduce: $(STAMP) ## the sources' experiments, in virtual time (QUICK=1, ONLY=a,c)
	QUICK=$(QUICK) ONLY=$(ONLY) $(BIN)/python -m benchmarks.reproduction

protos: $(STAMP) ## generate the stubs from protos/
	$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=services/core --pyi_out=services/core \
		--grpc_python_out=services/core $$(find protos -name '*.proto')

clean:           ## remove what was made here (.venv too)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build offbeat-out
	find . -name __pycache__ -prune -exec rm -rf {} +
