"""The documentation: its Python code runs, and its links, commands, options and files exist."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from _layout import RULES

from elflow.cli import app
from elflow.tabular.fitting import _defaults
from experiments.command import main as run_experiments
from experiments.registry import GROUPS

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SLOW = {"conditional.md", "quality.md", "tables.md"}
"""Pages whose code takes about five seconds or more."""
IN_FULL = {"README.md", "index.md", "get-started.md"}
"""Pages whose densities are trained for as many steps as a reader trains them."""
MAX_STEPS = 5
"""Training steps of a density on all other pages, whose code does not depend on the quality of a fit."""
COMMANDS = {"elflow": r"^\$ (elflow [a-z].*)$", "experiments": r"(?:^|`| )(python -m experiments [a-z][^`\n]*)"}

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def find_blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def find_commands(page, program):
    """The words of each command line of a program, up to a pipe or a comment."""
    lines = re.findall(COMMANDS[program], page.read_text(), flags=re.MULTILINE)
    return [shlex.split(line.partition("|")[0], comments=True) for line in lines]


def find_anchors(page):
    """The anchors of the headings of a page, as Python-Markdown makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return [re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings]


def make_short_recipe(rows, features, max_steps=None, *, make=_defaults.default_recipe, **declared):
    """The recipe of a density, with few steps."""
    return make(rows, features, max_steps=min(max_steps or MAX_STEPS, MAX_STEPS), **declared)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page.name in SLOW else ()) for page in PAGES],
    ids=lambda page: page.name,
)
def test_code_runs(page, capsys, tmp_path, monkeypatch):
    """All Python blocks of a page in one namespace, top to bottom."""
    monkeypatch.chdir(tmp_path)
    if page.name not in IN_FULL:
        monkeypatch.setattr(_defaults, "default_recipe", make_short_recipe)
    namespace = {}
    for block in find_blocks(page, "python"):
        exec(compile(block, str(page), "exec"), namespace)
    if page.parent.name == "examples":  # its figures can be drawn, and those of the page exist
        drawn = import_module(f"experiments.examples.{page.stem.replace('-', '_')}").draw(namespace, tmp_path)
        assert drawn
        for file in drawn:
            assert (tmp_path / file).read_bytes().startswith(b"\x89PNG")
            assert f"(../images/{file})" in page.read_text()


@every_page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if not target.startswith("http"):
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            assert file.exists(), target
            assert not anchor or anchor in find_anchors(file), target


@every_page
def test_files_exist(page):
    """The paths in code font that name a file or folder of the repository."""
    pattern = r"`((?:elflow|experiments|tests|docs)/[\w./-]*)`"
    missing = [path for path in re.findall(pattern, page.read_text()) if not (ROOT / path).exists()]
    assert not missing


@every_page
def test_commands_of_elflow_exist(page):
    import typer

    commands = typer.main.get_command(app).commands
    for _, name, *words in find_commands(page, "elflow"):
        options = {option for parameter in commands[name].params for option in parameter.opts}
        unknown = [word for word in words if word.startswith("-") and word != "-" and word not in options]
        assert not unknown, (name, unknown)


@every_page
def test_commands_of_experiments_exist(page, capsys):
    for _, _, _, command, *words in find_commands(page, "experiments"):
        if command not in GROUPS:
            assert command in ("claims", "faults", "list", "soak", "table"), command
            continue
        group = GROUPS[command]
        with pytest.raises(SystemExit):
            run_experiments([command, "--help"])
        usage = capsys.readouterr().out
        names = []
        for word in words:
            if word.startswith("-"):
                break
            names.append(word)
        assert names, words
        assert set(names) <= {"NAME", "all", *group.members}, names
        assert not [word for word in words if word.startswith("-") and word not in usage], words
        settings = {words[i + 1].partition("=")[0] for i, word in enumerate(words) if word == "--set"}
        known = {option for name in names if name in group.members for option in group.load(name).options}
        assert settings <= known, settings - known


def test_the_reference_documents_public_names():
    targets = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE)
    assert len(targets) == len(set(targets))
    for target in targets:
        assert "._" not in target, target
        module, _, name = target.rpartition(".")
        try:
            found = getattr(import_module(module), name)
        except AttributeError:
            found = import_module(target)
        assert found.__doc__, target


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    paths = [page.relative_to(ROOT / "docs") for page in PAGES if page.parent != ROOT]
    assert not [path for path in paths if f": {path}\n" not in navigation]


def test_contributing_lists_every_module():
    layout = (ROOT / "CONTRIBUTING.md").read_text()
    modules = [module for module in RULES if not module.startswith("__")]
    assert not [
        module for module in modules if not re.search(rf"^\|.*`{module}(/|\.py)`.*\|", layout, flags=re.MULTILINE)
    ]
