# `make demo` and `make test` are complete on a machine with Python 3.11 or newer and a C++ compiler.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard elflow/kernels/csrc/*)

.PHONY: demo demo-images reproduce test lint docs bench clean

demo: .venv/.demo
	@mkdir -p demo
	$(BIN)/python -m elflow.datasets.example demo/cells.csv
	rm -f demo/model.elf.checkpoint
	$(BIN)/elflow fit demo/cells.csv -o demo/model.elf --seed 0
	$(BIN)/elflow score demo/model.elf demo/cells.csv -o demo/scores.parquet --anomaly
	$(BIN)/elflow sample demo/model.elf -n 1000 -o demo/new.csv --seed 0
	$(BIN)/elflow report demo/model.elf demo/cells.csv -o demo/report.html
	@echo "Open demo/report.html in a browser."

demo-images: .venv/.reproduce
	@mkdir -p demo
	$(BIN)/python -m elflow.datasets.example demo/digits.npz
	rm -f demo/digits.elf.checkpoint
	$(BIN)/elflow fit-images demo/digits.npz -o demo/digits.elf --preset digits --size cpu --classes --seed 0 --time-limit 2m
	$(BIN)/elflow score-images demo/digits.elf demo/digits.npz --split test -o demo/digits.csv
	$(BIN)/elflow sample-images demo/digits.elf -n 100 -o demo/digits.png --seed 0
	$(BIN)/python -m experiments.bench.images --data digits --minutes 1.5 --keep demo/compared --output demo/compared.json
	@echo "Look at demo/digits.png for new digits, and at demo/digits.csv for how likely each test image is."

reproduce: .venv/.reproduce
	OMP_NUM_THREADS=1 $(BIN)/elflow reproduce all
	@echo "Open reproduced/index.html in a browser."

test: .venv/.test lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2  # two workers, one thread each: more get into each other's way

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/.demo
	$(BIN)/python -m experiments.bench.kernels
	$(BIN)/python -m experiments.bench.exactness
	$(BIN)/python -m experiments.bench.flows
	$(BIN)/python -m experiments.bench.digits
	$(BIN)/python -m experiments.bench.toys

docs: .venv/.docs
	$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv build demo reproduced site

# One stamp per set of extras: .venv/.test holds while nothing that is installed or compiled has changed.
.venv/.%: $(SOURCES) | .venv/.made
	@echo "Installing elflow and what '$*' needs into .venv: a minute or two the first time, most of it for PyTorch."
	$(BIN)/pip install --constraint constraints.txt --editable ".$(if $(filter demo,$*),,[$*])"
	@touch $@

.venv/.made:
	$(PYTHON) -m venv .venv
	@touch $@
