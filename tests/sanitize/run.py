"""Build the native module with the sanitizers of GCC, and run it: `make sanitize`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nanobind

ROOT = Path(__file__).parent.parent.parent
SANITIZERS = {"address,undefined": ["libasan.so", "libubsan.so"], "thread": ["libtsan.so"]}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:strict_string_checks=1",  # Python itself keeps memory until it ends
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


def build(sanitizer: str) -> Path:
    """Compile the module, and return its path."""
    folder = ROOT / "build" / f"sanitize-{sanitizer.replace(',', '-')}"
    tools = Path(sys.executable).parent
    configure = [
        tools / "cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_CXX_COMPILER=g++",
        f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dnanobind_DIR={nanobind.cmake_dir()}", f"-DELFLOW_SANITIZE={sanitizer}",
    ]  # fmt: skip
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([tools / "cmake", "--build", folder], check=True, stdout=subprocess.DEVNULL)
    (module,) = folder.glob("_native*.so")
    return module


def find_library(name: str) -> str:
    """Path of a library of GCC."""
    found = subprocess.run(
        ["g++", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    if not os.path.isabs(found):
        raise SystemExit(f"make sanitize needs GCC with {name}")
    return found


def main() -> None:
    """Build and run with each sanitizer."""
    if shutil.which("g++") is None:
        raise SystemExit("make sanitize needs GCC")
    # The sanitizer of data races does not work with all random layouts of memory.
    fixed = ["setarch", "-R"] if shutil.which("setarch") else []
    for sanitizer, libraries in SANITIZERS.items():
        module = build(sanitizer)
        # Python is not instrumented: the libraries must be loaded before everything else.
        preload = " ".join(find_library(name) for name in [*libraries, "libstdc++.so.6"])
        command = [*fixed, sys.executable, Path(__file__).with_name("drive.py"), module]
        print(f"{sanitizer}:", flush=True)
        subprocess.run(command, check=True, env=os.environ | OPTIONS | {"LD_PRELOAD": preload, "OMP_NUM_THREADS": "1"})
    print("no errors")


if __name__ == "__main__":
    main()
