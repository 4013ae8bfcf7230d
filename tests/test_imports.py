"""The layout of the package: imports between its modules point one way, and private names stay in their module.

A module, here, is a folder or a file at the top of `elflow/`. `RULES` lists the modules from the bottom to the top,
each with the modules that it may import.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from _layout import RULES, TABULAR_RULES

import elflow

SHARED = {"_checks", "_digest", "_files", "_forks", "_interrupts", "_json_types", "_model_file", "_sizes"}
"""Modules that start with an underscore because users should not import them, but that all others share."""

LAZY = {"cli", "__init__"}
"""Modules that may import others inside functions, to start quickly. Elsewhere that would hide a cycle."""


@dataclass(frozen=True)
class Import:
    """An import of `target`, a dotted name such as `elflow.kernels.native`, or a use of it through its module."""

    line: int
    target: str
    is_lazy: bool = False
    is_typing_only: bool = False


def find_imports(source: str, package: str) -> Iterator[Import]:
    """Find all imports of a module, lazy ones included, and what it uses of the modules of elflow that it imports."""
    tree = ast.parse(source)
    functions = _lines(tree, lambda node: isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))
    typing_only = _lines(tree, lambda node: isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    modules: dict[str, str] = {}  # the dotted names that local names stand for
    for node in ast.walk(tree):
        for local, target in _find_targets(node, package):
            modules[local] = target
            yield Import(node.lineno, target, node.lineno in functions, node.lineno in typing_only)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            first, _, rest = ast.unparse(node).partition(".")
            if modules.get(first, "").split(".")[0] == "elflow" and rest.replace(".", "").isidentifier():
                yield Import(node.lineno, f"{modules[first]}.{rest}", False, node.lineno in typing_only)


def _find_targets(node: ast.AST, package: str) -> Iterator[tuple[str, str]]:
    """The local name and the dotted name of each module or object that a node imports."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name, alias.name
            if not alias.asname and "." in alias.name:  # `import a.b` binds a
                yield alias.name.split(".")[0], alias.name.split(".")[0]
    elif isinstance(node, ast.ImportFrom):
        parents = package.split(".")
        base = parents[: len(parents) - node.level + 1] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        for alias in node.names:
            yield alias.asname or alias.name, f"{module}.{alias.name}"
    elif (
        isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__")
        and isinstance(node.args[0], ast.Constant)
    ):
        yield node.args[0].value, node.args[0].value


def _lines(tree: ast.Module, chosen) -> set[int]:
    nodes = [node for node in ast.walk(tree) if chosen(node)]
    return {line for node in nodes for line in range(node.lineno, node.end_lineno + 1)}


def find_homes(source: str) -> dict[str, str]:
    """Find the module behind each name that `elflow/__init__.py` imports on first use, such as ELF."""
    targets = [each.target.rpartition(".") for each in find_imports(source, "elflow") if each.is_typing_only]
    return {name: module for module, _, name in targets if module != "elflow"}


def check_imports(module: str, each: Import, homes: dict[str, str]) -> Iterator[str]:
    """The rules that one import in a module breaks."""
    top, *names = each.target.split(".")
    if top == "experiments":
        yield f"elflow must not import experiments, got {each.target}"
    if top != "elflow" or not names or names[0].startswith("__"):
        return
    if names[0] in homes:
        names = [*homes[names[0]].split(".")[1:], *names]
    other = names[0]
    if each.is_lazy and module not in LAZY:
        yield f"imports inside functions are for {' and '.join(sorted(LAZY))} only, got {each.target}"
    if other == module:
        return
    if other not in RULES:
        yield f"module {other!r} must be listed in RULES, got {each.target}"
    elif other not in RULES[module] and not each.is_typing_only:
        yield f"{module} may import {', '.join(sorted(RULES[module])) or 'no other module'}, got {each.target}"
    if (other.startswith("_") and other not in SHARED) or any(_is_private(name) for name in names[1:]):
        yield f"private names must stay in their module, got {each.target}"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def find_private_members(source: str) -> tuple[set[str], list[tuple[int, str]]]:
    """The private names that a module defines, and the private attributes `x._name` that it uses, with their lines."""
    defined: set[str] = set()
    used: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.Attribute) and _is_private(node.attr):
            used.append((node.lineno, ast.unparse(node)))
            if isinstance(node.ctx, ast.Store):
                defined.add(node.attr)
    return {name for name in defined if _is_private(name)}, used


def check_package(sources: dict[str, str]) -> list[str]:
    """Check all import rules: one line `file:line: rule, got ...` for each violation.

    Arguments:
        sources: The text of each module by its path: `elflow/kernels/native.py`.
    """
    homes = find_homes(sources["elflow/__init__.py"])
    members = {path: find_private_members(source) for path, source in sources.items()}
    owners: dict[str, set[str]] = defaultdict(set)
    for path, (defined, _) in members.items():
        for name in defined:
            owners[name].add(_module(path))

    broken: list[tuple[str, int, str]] = []
    for path, source in sources.items():
        module = _module(path)
        if module not in RULES:
            broken.append((path, 1, f"module {module!r} must be listed in RULES"))
            continue
        for each in find_imports(source, ".".join(path.split("/")[:-1])):
            broken += [(path, each.line, message) for message in check_imports(module, each, homes)]
        for line, use in members[path][1]:
            modules = owners[use.rpartition(".")[2]]
            if modules and module not in modules:
                owner = " or ".join(sorted(modules))
                broken.append((path, line, f"private members must stay in their module, got {use} of {owner}"))
    return [f"{path}:{line}: {message}" for path, line, message in sorted(set(broken))]


def check_tabular(sources: dict[str, str]) -> list[str]:
    """Check the imports between the folders and files of `elflow/tabular`; only its `__init__.py` may import all."""
    broken = []
    for path, source in sources.items():
        part = path.split("/")[2].removesuffix(".py")
        if part == "__init__":
            continue
        allowed = TABULAR_RULES.get(part, set()) | {part}
        for each in find_imports(source, ".".join(path.split("/")[:-1])):
            names = each.target.split(".")
            if names[:2] == ["elflow", "tabular"] and names[2] not in allowed and not each.is_typing_only:
                broken.append(f"{path}:{each.line}: {part} may import {', '.join(sorted(allowed))}, got {each.target}")
    return broken


def check_experiments(sources: dict[str, str]) -> list[str]:
    """Check that no folder of experiments uses private names of the package, or of another folder."""
    broken = []
    for path, source in sources.items():
        own = path.removesuffix(".py").split("/")[:2]
        for each in find_imports(source, ".".join(path.split("/")[:-1])):
            names = each.target.split(".")
            is_shared = names[0] == "elflow" and names[1:2] and names[1] in SHARED
            private = [name for name in names[2 if is_shared else 1 :] if _is_private(name)]
            if names[0] in ("elflow", "experiments") and names[:2] != own and private:
                broken.append(f"{path}:{each.line}: private names must stay in their module, got {each.target}")
    return broken


def _module(path: str) -> str:
    return path.split("/")[1].removesuffix(".py")


# --- the package ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [RULES, TABULAR_RULES], ids=["package", "tabular"])
def test_rules_point_one_way(rules):
    """Each module imports modules that are listed before it, so that no cycle is possible."""
    modules = list(rules)
    for module, allowed in rules.items():
        assert allowed <= set(modules[: modules.index(module)]), module


@pytest.mark.slow
def test_the_package_keeps_the_rules():
    package = Path(elflow.__file__).parent
    files = sorted(package.rglob("*.py"))
    broken = check_package({file.relative_to(package.parent).as_posix(): file.read_text() for file in files})
    assert not broken, f"{len(broken)} violations:\n" + "\n".join(broken)


@pytest.mark.slow
def test_tabular_keeps_the_rules():
    root = Path(elflow.__file__).parents[1]
    files = sorted((root / "elflow" / "tabular").rglob("*.py"))
    broken = check_tabular({file.relative_to(root).as_posix(): file.read_text() for file in files})
    assert not broken, f"{len(broken)} violations:\n" + "\n".join(broken)


def test_experiments_use_public_names_only():
    root = Path(elflow.__file__).parents[1]
    files = sorted((root / "experiments").rglob("*.py"))
    broken = check_experiments({file.relative_to(root).as_posix(): file.read_text() for file in files})
    assert not broken, f"{len(broken)} violations:\n" + "\n".join(broken)


ABSENT = {
    "elflow": ["torch", "pandas", "sklearn", "zuko", "lightning", "lightning_fabric", "matplotlib"],
    "elflow._checks": ["elflow.kernels", "elflow.activations"],
    "elflow.io": ["elflow.kernels", "elflow.functional", "elflow.flows", "zuko", "sklearn"],
    "elflow.serialization": ["torch._dynamo", "lightning_fabric", "matplotlib"],  # to score with a model
}
"""What each module and those before it do not load."""


@pytest.mark.slow
def test_import_does_not_load():
    code = f"""
import sys
from importlib import import_module
for module, absent in {ABSENT}.items():
    import_module(module)
    print([f"{{module}} loads {{name}}" for name in absent if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]"] * len(ABSENT)


# --- the checker itself -----------------------------------------------------------------------------------------------

TOP = "if TYPE_CHECKING:\n    from elflow import kernels\n    from elflow.flows import ELF\n"
TABULAR = "class Estimator:\n    def _rows(self): ...\n"


def check_one(path, source):
    return check_package({"elflow/__init__.py": TOP, "elflow/tabular/estimator.py": TABULAR} | {path: source})


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        # upwards
        ("functional.py", "import math\n\nfrom elflow import flows", "3: functional may import .*, got elflow.flows"),
        ("functional.py", "import elflow.flows.elf", "1: functional may import .*, got elflow.flows.elf"),
        ("functional.py", "import elflow.flows as f", "1: functional may import .*, got elflow.flows"),
        ("functional.py", "from elflow.flows import ELF", "1: functional may import .*, got elflow.flows.ELF"),
        ("functional.py", "from .flows import ELF", "1: functional may import .*, got elflow.flows.ELF"),
        ("nn/mlp.py", "from ..flows import ELF", "1: nn may import .*, got elflow.flows.ELF"),
        ("nn/mlp.py", "from .. import flows", "1: nn may import .*, got elflow.flows"),
        ("nn/mlp.py", "from elflow import ELF", "1: nn may import .*, got elflow.ELF"),
        ("nn/mlp.py", "import elflow\n\nx = elflow.ELF(3)", "3: nn may import .*, got elflow.ELF"),
        ("nn/mlp.py", "import elflow\n\nx = elflow.flows.y.z", "3: nn may import .*, got elflow.flows.y.z"),
        ("nn/mlp.py", "import_module('elflow.flows')", "1: nn may import .*, got elflow.flows"),
        ("_checks.py", "from elflow import kernels", "1: _checks may import no other module, got elflow.kernels"),
        ("__init__.py", "from elflow import kernels", "1: __init__ may import no other module, got elflow.kernels"),
        # inside functions
        ("nn/mlp.py", "def f():\n    from elflow import transforms", "2: imports inside functions .*transforms"),
        ("nn/mlp.py", "def f():\n    from elflow.nn import start", "2: imports inside functions .*nn.start"),
        ("cli/_fit.py", "def f():\n    from elflow.io._csv import x", "2: private names .*, got elflow.io._csv.x"),
        # private names
        ("training/loop.py", "from elflow.kernels import _x", "1: private names .*, got elflow.kernels._x"),
        ("training/loop.py", "from elflow.kernels._x import y", "1: private names .*, got elflow.kernels._x.y"),
        ("flows/elf.py", "from elflow.nn.mlp import _y as y", "1: private names .*, got elflow.nn.mlp._y"),
        ("flows/elf.py", "from elflow import nn\nnn.mlp._y()", "2: private names .*, got elflow.nn.mlp._y"),
        ("io/images.py", "from elflow._checks import _y", "1: private names .*, got elflow._checks._y"),
        ("report/_pit.py", "est._rows(x)", "1: private members .*, got est._rows of tabular"),
        (
            "flows/elf.py",
            "if typing.TYPE_CHECKING:\n    from elflow.cli._fit import fit",
            "2: private names .*, got elflow.cli._fit.fit",
        ),
        # outside of the package, and modules without a rule
        ("cli/_fit.py", "import experiments.paper", "1: elflow must not import experiments, got experiments.*"),
        ("cli/_fit.py", "from experiments import paper", "1: elflow must not import experiments, got experiments.*"),
        ("cli/_fit.py", "import_module('experiments.a')", "1: elflow must not import experiments, got experiments.a"),
        ("attic/a.py", "", "1: module 'attic' must be listed in RULES"),
        ("cli/_fit.py", "from elflow.attic import a", "1: module 'attic' must be listed in RULES, got elflow.attic.a"),
    ],
)
def test_the_checker_reports(path, source, message):
    broken = check_one(f"elflow/{path}", source)
    assert broken
    for line in broken:
        assert re.fullmatch(f"elflow/{re.escape(path)}:{message}", line), line


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("flows/elf.py", "from elflow import functional, nn\nfrom elflow.flows._noise import _x\nimport elflow.nn.mlp"),
        ("flows/elf.py", "import torch\nfrom zuko import _x\ntorch._C._y()\nself._rules = 0\nother._rules"),
        ("flows/elf.py", "from elflow import nn, __version__\nnn.mlp.__name__"),
        ("nn/mlp.py", "if TYPE_CHECKING:\n    from elflow.flows import ELF"),
        ("cli/_fit.py", "def f():\n    import elflow\n    from elflow._checks import check_count\n    elflow.ELF(3)"),
        ("nn/mlp.py", "def f():\n    import matplotlib"),
        ("__init__.py", "if TYPE_CHECKING:\n    from elflow.flows import ELF\nimport_module(name)"),
        ("_checks.py", '"""\n>>> from elflow import cli\n"""'),
    ],
)
def test_the_checker_accepts(path, source):
    assert check_one(f"elflow/{path}", source) == []


def test_the_checker_of_tabular():
    source = "from elflow.tabular._arrays import a\nfrom elflow.tabular.queries._given import b\nfrom . import _kinds"
    path = "elflow/tabular/columns/b.py"
    (line,) = check_tabular({path: source})
    assert line.startswith(f"{path}:2: columns may import _arrays, _text, columns, got elflow.tabular.queries._given.b")


def test_the_checker_of_experiments():
    source = "from elflow._checks import a\n\nfrom experiments.data import _b\nfrom elflow.io import _c"
    path = "experiments/data/b.py"
    assert check_experiments({path: source}) == [f"{path}:4: private names must stay in their module, got elflow.io._c"]
    path = "experiments/paper/b.py"
    assert [line.split(":")[1] for line in check_experiments({path: source})] == ["3", "4"]
