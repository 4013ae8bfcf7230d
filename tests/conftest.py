from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator

from elflow import kernels
from elflow.kernels import native

assert native.extension is not None, "the suite tests the native kernel: install elflow where there is a C++ compiler"

# All implementations: the reference, and the native kernel on each instruction set that this machine has.
IMPLEMENTATIONS = ["reference", *(f"native-{isa}" for isa in native.extension.instruction_sets())]


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test once per implementation, with this implementation forced."""
    name, _, isa = request.param.partition("-")
    before = native.extension.instruction_set()
    if isa:
        native.extension.choose_instruction_set(isa)
    with kernels.backend(name):
        yield request.param
    native.extension.choose_instruction_set(before)


@pytest.fixture
def generator() -> Generator:
    return Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write text, or a table as CSV, to a file."""

    def write(content: Any, name: str = "data.csv") -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else content.to_csv(index=False))
        return path

    return write
