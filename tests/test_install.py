"""What a user gets whose machine has no compiler."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built where every compiler fails."""
    folder = tmp_path_factory.mktemp("wheel")
    build = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT],
        env={
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "CC": "/bin/false",
            "CXX": "/bin/false",
            "SKBUILD_BUILD_DIR": str(folder / "build"),
        },
        capture_output=True,
        text=True,
    )
    assert build.returncode == 0, build.stdout + build.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_wheel_without_a_compiler(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "elflow/functional.py" in names
    assert "elflow/py.typed" in names
    assert not [n for n in names if "_native." in n or "csrc" in n]


@pytest.mark.slow
def test_works_and_says_so_once(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = """
import warnings, torch, elflow
assert elflow.__file__.startswith(FOLDER), elflow.__file__
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        print(elflow.functional.lipschitz(torch.ones(2), torch.zeros(2), torch.ones(2)).item())
(said,) = caught
print(said.category.__name__, said.message)
try:
    with elflow.kernels.backend("native"):
        elflow.functional.lipschitz(torch.ones(2), torch.zeros(2), torch.ones(2))
except ValueError as error:
    print(error)
"""
    # -S keeps out the hooks of an editable installation; the packages of the environment are added by hand.
    packages = [p for p in sys.path if p.endswith("site-packages")]
    program = f"import sys; sys.path[:0] = {[str(tmp_path), *packages]!r}; FOLDER = {str(tmp_path)!r}" + program
    run = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    reason = "it was not compiled: install a C++ compiler, then reinstall elflow (pip install -v shows why)"
    assert run.stdout.splitlines() == [
        "2.0",
        "2.0",
        "2.0",
        "RuntimeWarning elflow's native kernel is not available, so plain torch is used, which is many times slower: "
        f"{reason}",
        f"backend 'native' does not support this input: {reason}. Use backend 'auto' or 'reference'",
    ]
