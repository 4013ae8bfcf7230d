from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Generator

HAS_GPU = torch.cuda.is_available()
# Without a GPU the tests of the Triton kernels run in its interpreter, which is chosen when these modules are imported.
# The commands that tests start do not need it.
with pytest.MonkeyPatch.context() as patch:
    if not HAS_GPU:
        patch.setenv("TRITON_INTERPRET", "1")
    kernels = import_module("elflow.kernels")
    native = import_module("elflow.kernels.native")
    import_module("experiments.bench._gpu_kernels")

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


@pytest.fixture(
    params=[pytest.param("cpu", marks=pytest.mark.interpreter), pytest.param("cuda", marks=pytest.mark.gpu)],
    ids=["interpreter", "gpu"],
)
def triton_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """Run a test with the Triton kernels, on a GPU or in the interpreter, whichever this machine has."""
    if request.param == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")  # Triton also reads it when it first runs a kernel
    with kernels.backend("triton"):
        yield torch.device(request.param)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that this machine cannot run: those on a GPU, or those in Triton's interpreter."""
    impossible = "interpreter" if HAS_GPU else "gpu"
    left_out = [item for item in items if item.get_closest_marker(impossible)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker(impossible)]


@pytest.fixture
def generator() -> Generator:
    return Generator().manual_seed(0)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write text, bytes, or a table as CSV, to a file."""

    def write(content: Any, name: str = "data.csv") -> Path:
        path = tmp_path / name
        text = content.to_csv(index=False) if isinstance(content, pd.DataFrame) else content
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write
