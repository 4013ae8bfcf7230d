# `make demo` and `make test` are complete on a machine with Python 3.11 or newer and a C++ compiler.
PYTHON ?= python3
# Without bytecode, every process would compile all modules again, which doubles the time of the tests that start many.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
# An editable installation lists the folders of the package: a new one needs another installation.
FOLDERS := $(wildcard elflow/*/__init__.py elflow/*/*/__init__.py)
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard elflow/kernels/csrc/*) $(FOLDERS)

.PHONY: demo demo-images reproduce test check lint docs bench sanitize clean

demo: .venv/.demo
	@mkdir -p demo
	$(BIN)/python -m elflow.datasets.example demo/cells.csv
	rm -f demo/model.elf.checkpoint
	$(BIN)/elflow fit demo/cells.csv -o demo/model.elf --seed 0
	$(BIN)/elflow score demo/model.elf demo/cells.csv -o demo/scores.parquet --anomaly
	$(BIN)/elflow sample demo/model.elf -n 1000 -o demo/new.csv --seed 0
	$(BIN)/elflow report demo/model.elf demo/cells.csv -o demo/report.html
	@echo "Open demo/report.html in a browser. Explore the model with: $(BIN)/elflow explore demo/model.elf"

demo-images: .venv/.experiments
	@mkdir -p demo
	$(BIN)/python -m elflow.datasets.example demo/digits.npz
	rm -f demo/digits.elf.checkpoint
	$(BIN)/elflow fit-images demo/digits.npz -o demo/digits.elf --preset digits --size cpu --classes --seed 0 --time-limit 2m
	$(BIN)/elflow score-images demo/digits.elf demo/digits.npz --split test -o demo/digits.csv
	$(BIN)/elflow sample-images demo/digits.elf -n 100 -o demo/digits.png --seed 0
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments bench images --set datasets=digits --set time_limit=90 -o demo/compared
	@echo "Look at demo/digits.png for new digits, and at demo/digits.csv for how likely each test image is."

reproduce: .venv/.experiments
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments paper all
	@echo "Open runs/paper/index.html in a browser."

test: .venv/.test lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3  # one thread each; on two cores, since many tests wait for other processes

# For the edit loop: less than a minute.
check: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q -m "not slow and not paper" tests  # the doctests are left to `make test`

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy

# One or more benchmarks: make bench NAME="kernels flows"; `python -m experiments list` has the names.
NAME ?= all
bench: .venv/.experiments
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments bench $(NAME)
	@echo "Open runs/bench/index.html in a browser."

# The native kernel under the sanitizers of GCC: addresses and undefined behaviour, then data races between threads.
sanitize: .venv/.test
	$(BIN)/python tests/sanitize/run.py

docs: .venv/.docs
	$(BIN)/python -m mkdocs build --strict

clean:
	rm -rf .venv build demo runs site

# One stamp per set of extras: .venv/.test holds while nothing that is installed or compiled has changed.
# `python -m pip`, because the script `pip` of a copied .venv installs into the environment that it was copied from.
.venv/.%: $(SOURCES) | .venv/.made
	@echo "Installing elflow and what '$*' needs into .venv: a minute or two the first time, most of it for PyTorch."
	$(BIN)/python -m pip install --constraint constraints.txt --editable ".[$(patsubst demo,serve,$*)]"
	@touch $@

.venv/.made:
	$(PYTHON) -m venv .venv
	@touch $@
