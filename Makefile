# `make demo` and `make test` are complete on a machine with Python 3.11 or newer and a C++ compiler.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard elflow/kernels/csrc/*)

.PHONY: demo test lint docs bench clean

demo: .venv/.demo
	$(BIN)/python -m elflow.reproduce.networks --output demo/networks.png
	$(BIN)/python -m elflow.reproduce.toys eight-gaussians --steps 2000 --output demo

test: .venv/.test lint
	$(BIN)/python -m pytest -n 2

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/.demo
	$(BIN)/python -m benchmarks.kernels
	$(BIN)/python -m benchmarks.exactness
	$(BIN)/python -m benchmarks.flows
	$(BIN)/python -m benchmarks.digits
	$(BIN)/python -m benchmarks.toys

docs: .venv/.docs
	$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv build demo site

# One stamp per set of extras: .venv/.test holds while nothing that is installed or compiled has changed.
.venv/.%: $(SOURCES) | .venv/.made
	@echo "Installing elflow and what '$*' needs into .venv: a minute or two the first time, most of it for PyTorch."
	$(BIN)/pip install --constraint constraints.txt --editable ".$(if $(filter demo,$*),,[$*])"
	@touch $@

.venv/.made:
	$(PYTHON) -m venv .venv
	@touch $@
