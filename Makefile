# Two commands for a newcomer: `make demo` and `make test`. Each sets up what it needs.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := hf,mt,data,plot,serve,dev
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-all lint bench clean

demo: .venv/ready
	@$(BIN)/python examples/first_look.py

test: .venv/ready lint
	$(BIN)/python -m pytest -n 2 -q -m "not slow"

test-all: .venv/ready lint
	$(BIN)/python -m pytest -n 2 -q

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/pyright

# torch comes first and pinned: an unpinned torch drags in gigabytes of CUDA packages.
.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attnworks needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@echo "Setting up .venv (once; a few minutes and about 2 GB) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q -c constraints.txt torch==2.13.0
	@$(BIN)/python -m pip install -q -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis
