# Everything needs only Python ≥ 3.11 and make. The first target run sets up .venv; the stamp in it
# makes sure that nothing is installed twice.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# the first interpreter that is new enough and can make an environment
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python; do \
  $$p -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
STAMP := .venv/.installed
JOBS ?= 2
# one thread a process: two test processes with two threads each fight over two cores, and on a busy machine
# the demo's small matrices spend most of their time waiting for a second thread
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

# $(call install,ENV,EXTRAS): pip's own words go to a log, a dot a package to the terminal
define install
	@test -n "$(PYTHON)" || { echo "no Python ≥ 3.11 with the venv module was found; install one, or say PYTHON=…"; exit 1; }
	@echo "setting up $(1) with $$($(PYTHON) -V) (once; a minute or two)"
	@$(PYTHON) -m venv $(1)
	@$(1)/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[$(2)]' 2>&1 | tee $(1)/install.log \
	  | while read -r word _; do if [ "$$word" = Collecting ]; then printf .; fi; done \
	  || { echo; tail -20 $(1)/install.log; echo "the set-up failed; the whole log is $(1)/install.log"; exit 1; }
	@echo " done"
	@touch $@
endef

.PHONY: help demo test lint bench docs dist clean

help:
	@echo "make demo    the whole pipeline on bundled data: a table and demo/report.html"
	@echo "make test    every test, on both cores"
	@echo "make test-ray  steps on a Ray cluster of several nodes on this machine, alone"
	@echo "make test-integrations  data frames of pandas and Polars, the Hugging Face Trainer; installs them"
	@echo "make lint    ruff and mypy --strict"
	@echo "make bench   speed against peers, side by side"
	@echo "make docs    the site, offline, into site/"
	@echo "make dist    a wheel and a source archive, into dist/"
	@echo "make clean   remove everything that these made"

$(STAMP): pyproject.toml constraints.txt
	$(call install,.venv,dev)

.venv-bench/.installed: pyproject.toml constraints.txt
	$(call install,.venv-bench,bench)

demo: $(STAMP)
	@$(ONE_THREAD) $(BIN)/calibrant demo -o demo

test: $(STAMP)
	@$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile $(ARGS)

test-ray: $(STAMP)
	@$(ONE_THREAD) $(BIN)/python -m pytest -q tests/executors/test_ray.py $(ARGS)

test-integrations: $(STAMP)
	@$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[hf,frames]'
	@$(ONE_THREAD) $(BIN)/python -m pytest -q tests/integrations tests/files/test_tables.py tests/test_first_hour.py $(ARGS)

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --strict src
	@$(BIN)/mypy --explicit-package-bases tests/gpu

# the peers get an environment of their own, so that what they ask for cannot change ours;
# BENCH names the scripts: by default the one table of what needs no data (benchmarks/README.md lists all)
BENCH ?= speed
bench: .venv-bench/.installed
	@for name in $(BENCH); do echo "== benchmarks/$$name.py"; .venv-bench/bin/python -m benchmarks.$$name $(ARGS); done

docs: $(STAMP)
	@$(BIN)/python -m docs.make_methods
	@$(BIN)/python -m docs.make_claims
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "the site is site/index.html (with its search: python3 -m http.server -d site)"

# the backend itself, so that building needs no network: pip and build would fetch setuptools again
dist: $(STAMP)
	@rm -rf dist build
	@$(BIN)/python -c "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')" > .venv/dist.log 2>&1 \
	  || { tail -20 .venv/dist.log; exit 1; }
	@ls dist/*

clean:
	rm -rf .venv .venv-bench build dist site demo .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
