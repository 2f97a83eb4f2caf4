# Everything needs only python3 (with venv and pip); the rest is installed into .venv from the pins in constraints.txt.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo patterns robot test test-gpu lint bench soak install clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 10

demo: .venv/base  ## watch a brain learn on all cores, and get a report
	$(BIN)/neuraxis demo

patterns: .venv/base  ## see every communication pattern run between four processes
	$(BIN)/neuraxis patterns -n 4 --html patterns.html
	@echo "The same as a page to keep open: patterns.html"

robot: .venv/base  ## a robot of four regions: one is killed and comes back, a sensor is added
	$(BIN)/python examples/robot_brain/tour.py

test: lint  ## everything that must pass before a change lands
	$(BIN)/python -m pytest -n 2 -m "not alone"
	$(BIN)/python -m pytest -m alone $$(grep -rlE 'mark\.alone' tests --include='test_*.py')

test-gpu: .venv/cuda  ## the tests of CUDA, on a machine with an NVIDIA GPU
	$(BIN)/python -m pytest tests/gpu tests/engine/cuda
	$(BIN)/python -m pytest -m gpu tests/brain tests/execution tests/mesh tests/training
	$(BIN)/python -m pytest tests/test_examples.py -k cuda

lint: .venv/dev  ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/dev  ## measure the collectives beside gloo and Open MPI
	$(BIN)/neuraxis bench collectives --plot benchmark.png

soak: .venv/dev  ## ten minutes of nodes at 1 kHz, one killed and brought back every ten seconds
	$(BIN)/python benchmarks/soak.py --minutes 10

install: .venv/all  ## everything, every extra included

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/base: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

.venv/dev: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[dev]'
	@touch $@ .venv/base

.venv/cuda: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[dev,cuda]'
	@touch $@ .venv/dev .venv/base

.venv/all: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[all,dev]'
	@touch $@ .venv/dev .venv/base

clean:  ## remove the environment and what tools left
	rm -rf .venv build dist patterns.html neuraxis-demo.html benchmark.png .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
