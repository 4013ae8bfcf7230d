"""The runner of the worked examples: full settings, outputs and figures of a page."""

import pytest

from experiments import GROUPS, Plan, run
from experiments.examples import page
from experiments.framework.figure import draw_figure

TEXT = """# A page

```python
n = 2  # in full: 3
values = []
for i in range(n):
    last = i  # in full: -1
    values.append(last)
```

Text.

```python
print(n, values)
```

```text
old
```

```python
print("not shown")
```

![A line](../images/tiny.png)
"""


def draw(namespace, folder):
    with draw_figure(folder / "tiny.png", figsize=(1, 1)) as (_, axes):
        axes[0, 0].plot(namespace["values"])
    return {"tiny.png": "A line."}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "docs" / "examples"
    folder.mkdir(parents=True)
    (tmp_path / "docs" / "images").mkdir()
    (folder / "tiny.md").write_text(TEXT)
    monkeypatch.setattr(page, "FOLDER", folder)
    return folder


@pytest.mark.parametrize(
    ("effort", "output", "writes"), [(1.0, "3 [-1, -1, -1]", ["no", "yes"]), (0.1, "2 [0, 1]", ["no"])]
)
def test_a_page_runs_and_is_updated(folder, tmp_path, effort, output, writes):
    each = page.build_experiment("tiny", "Tiny", draw)
    for write in writes:
        plan = Plan(effort=effort, options={"write": write})
        report = run(each, plan, tmp_path / write, log=lambda line: None, group=GROUPS["examples"])["tiny"]
        assert report.tables[0].rows == [["2", f"`{output}`"], ["3", "`not shown`"]]
        assert (tmp_path / write / "tiny" / "tiny.png").read_bytes().startswith(b"\x89PNG")
        is_written = write == "yes"
        assert (folder.parent / "images" / "tiny.png").exists() == is_written
        assert (folder / "tiny.md").read_text() == (TEXT.replace("old", output) if is_written else TEXT)


def test_every_page_has_an_experiment():
    assert {path.stem for path in page.FOLDER.glob("*.md")} == set(GROUPS["examples"].members)
    for name in GROUPS["examples"].members:
        text = (page.FOLDER / f"{name}.md").read_text()
        assert "# in full:" in text
        assert f"python -m experiments examples {name}" in text


def test_a_wrong_option():
    with pytest.raises(ValueError, match="write must be yes or no, got 'maybe'"):
        Plan(options={"write": "maybe"}).for_experiment(page.build_experiment("tiny", "Tiny", draw))


def test_quick_outputs_are_not_written(folder, tmp_path):
    each = page.build_experiment("tiny", "Tiny", draw)
    with pytest.raises(ValueError, match=r"write must be no with an effort below 1, got an effort of 0\.1"):
        run(each, Plan(effort=0.1, options={"write": "yes"}), tmp_path, log=lambda line: None, group=GROUPS["examples"])
    assert (folder / "tiny.md").read_text() == TEXT
