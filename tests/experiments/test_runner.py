"""What runs the experiments, the page about them, and the command."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import _tiny_experiment
import pytest
import typer
from _command import fails, run, succeeds

import experiments
from elflow.cli import app
from experiments import Plan
from experiments.framework import page as _page


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    _tiny_experiment.register(monkeypatch.setattr)


@pytest.fixture
def output(tmp_path):
    return tmp_path / "output"


def reproduced(output, plan=None, processes=1):
    """What a run tells."""
    lines = []
    experiments.run(["tiny"], plan or Plan(), output, processes, lines.append)
    return lines


def calls(output):
    """The jobs that were begun, in their order."""
    return "".join(line[0] for line in (output / "tiny" / "jobs" / "calls").read_text().splitlines())


def result(output):
    """What was found, but the times."""
    found = json.loads((output / "tiny" / "result.json").read_text())
    for record in found["records"].values():
        assert record.pop("seconds") >= 0
        assert record.pop("cpu") >= 0
    del found["machine"]["when"]
    return found


def switch(output, name):
    path = output / "tiny" / "jobs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def page(output):
    return (output / "index.html").read_text()


def test_records_are_kept(output):
    told = reproduced(output)
    assert calls(output) == "abcd"
    assert re.fullmatch(r"\[2/4, \d+ s\] tiny: b, 0 s", told[1])
    first = result(output)
    assert list(first["records"]) == ["a", "b", "c", "d"]
    assert all(record["threads"] == 1 for record in first["records"].values())
    assert reproduced(output) == ["4 of 4 jobs were done before", "writing the reports"]
    assert calls(output) == "abcd"
    assert result(output) == first
    (output / "tiny" / "jobs" / "c" / "record.json").write_text("{")
    assert reproduced(output)[0] == "3 of 4 jobs were done before"
    assert calls(output) == "abcdc"
    assert result(output) == first


@pytest.mark.parametrize("changed", [{"seed": 1}, {"effort": 2.0}, {"scale": "paper"}])
def test_what_another_plan_has_found_is_not_replaced(output, changed):
    reproduced(output)
    before = result(output)
    name = r"output must be another folder than that of --scale cpu --seed 0 --effort 1\.0, got .*output"
    with pytest.raises(ValueError, match=name):
        reproduced(output, Plan(**changed))
    assert result(output) == before
    reproduced(other := output.with_name("other"), Plan(**changed))
    assert (result(other)["tables"] == before["tables"]) == ("seed" not in changed)


def test_other_settings_of_a_job_begin_anew(output, monkeypatch):
    reproduced(output)
    monkeypatch.setattr(Plan, "steps", lambda self, count: 7)
    reproduced(output)
    assert calls(output) == "abcdabcd"
    assert (output / "tiny" / "jobs" / "a" / "steps").read_text() == "7 "  # those of before are gone


def test_an_experiment_of_ones_own(output):
    mine = replace(_tiny_experiment.EXPERIMENTS["tiny"], name="mine", title="My own")
    reports = experiments.run(mine, Plan(), str(output), tell=lambda line: None)
    assert list(reports) == ["mine"]
    assert "My own" in (output / "index.html").read_text()


def test_less_effort_is_said_first(output):
    reproduced(output, Plan(effort=0.5))
    assert result(output)["text"].startswith("*With 0.5 times the training steps of the scale.* **4 jobs**")


def test_the_same_seed_gives_the_same_tables_in_any_process(tmp_path):
    reproduced(tmp_path / "one")
    reproduced(tmp_path / "two", processes=2)
    assert result(tmp_path / "one") == result(tmp_path / "two")
    begun = (tmp_path / "two" / "tiny" / "jobs" / "calls").read_text().split()
    assert str(os.getpid()) not in begun


@pytest.mark.parametrize(
    ("wrong", "why"), [("b-fails", "KeyError: 'no b\\nat all'"), ("b-is-nan", "ValueError: Out of range float")]
)
def test_a_job_that_fails_leaves_the_others_alone(output, wrong, why):
    path = switch(output, wrong)
    told = reproduced(output)
    assert calls(output) == "abcd"
    assert f"tiny: b failed: {why}" in told[1]
    found = result(output)
    assert list(found["records"]) == ["a", "c", "d"]
    assert found["failed"][0].startswith(f"b: {why}")
    assert "b: " in page(output)
    assert "Failed: 1." in page(output)
    assert "- b: " in (output / "tiny" / "section.md").read_text()
    error = output / "tiny" / "jobs" / "b" / "error.txt"
    assert error.read_text().startswith("Traceback")
    path.unlink()
    reproduced(output)  # it is tried again
    assert calls(output) == "abcdb"
    assert list(result(output)["records"]) == ["a", "b", "c", "d"]
    assert "Failed" not in page(output)
    assert not error.exists()


def test_a_process_that_dies_is_said_to_have(output):
    path = switch(output, "a-is-killed")
    reproduced(output, processes=2)
    assert [line.split(",")[0] for line in result(output)["failed"]] == ["a: its process ended before it"]
    assert list(result(output)["records"]) == ["b", "c", "d"]
    path.unlink()
    reproduced(output)
    assert result(output)["failed"] == []


def test_a_damaged_file_is_made_anew(output):
    reproduced(output)
    steps = output / "tiny" / "jobs" / "b" / "steps"
    whole = steps.read_text()
    steps.write_text("")
    assert reproduced(output)[0] == "3 of 4 jobs were done before"
    assert steps.read_text() == whole


def test_without_the_kernel_there_is_a_result_all_the_same(output, monkeypatch):
    monkeypatch.setattr("elflow.kernels.native.extension", None)
    reproduced(output)
    assert result(output)["machine"]["instruction_set"] == "plain torch"


def test_when_all_fail(output):
    for key in "abcd":
        switch(output, f"{key}-fails")
    code, out, err = run("reproduce", "tiny", "-o", output, "--processes", "1")
    assert code == 1
    assert "None of its jobs came to an end." in out
    assert err.count("failed: tiny: ") == 4
    assert "Failed: 4." in page(output)


def test_a_report_that_fails(output):
    path = switch(output, "report-fails")
    assert "tiny: the report: ZeroDivisionError: no report" in reproduced(output)
    assert "ZeroDivisionError" in page(output)
    path.unlink()
    reproduced(output)
    assert calls(output) == "abcd"
    assert "ZeroDivisionError" not in page(output)


def test_killed_and_started_again(output):
    slow = switch(output, "c-is-slow")
    program = [sys.executable, _tiny_experiment.__file__, str(output), "1"]
    with subprocess.Popen(program, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: calls(output) == "abc", process)
        process.kill()
    assert not (output / "tiny" / "result.json").exists()
    slow.unlink()
    assert reproduced(output)[0] == "2 of 4 jobs were done before"
    assert calls(output) == "abccd"
    whole = output.with_name("whole")
    reproduced(whole)
    assert result(output) == result(whole)


def test_no_process_is_left_behind(output):
    """Those of the pool end with the one that was killed, in the middle of a job."""
    for key in "ab":
        switch(output, f"{key}-is-slow")
    program = [sys.executable, _tiny_experiment.__file__, str(output), "2"]
    with subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: sorted(calls(output)) == ["a", "b"], process)
        process.kill()
    wait_for(lambda: not any(map(runs, pids(output))), None)


def pids(output):
    return [int(line.split()[1]) for line in (output / "tiny" / "jobs" / "calls").read_text().splitlines()]


def runs(pid):
    """Whether there is such a process, but for the remains of one that nobody has asked about."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")


INTERRUPTED = """
import signal, sys, _tiny_experiment
from elflow.cli import main
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite that runs in the background inherits none
    _tiny_experiment.register()
    sys.exit(main(["reproduce", "tiny", "--processes", "2", "-o", sys.argv[1]]))
"""


def test_interrupted_from_the_keyboard(output, tmp_path):
    for key in "bcd":
        switch(output, f"{key}-is-slow")
    (tmp_path / "program.py").write_text(INTERRUPTED)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, str(tmp_path / "program.py"), str(output)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        wait_for(lambda: sorted(calls(output)) == ["a", "b", "c"], process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the processes of the pool, too
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    lines = err.splitlines()
    assert lines[-1] == "elflow: interrupted; the same command goes on where it was"
    assert all(line.startswith("elflow: ") for line in lines), err
    assert not any(map(runs, pids(output)))


def wait_for(condition, process):
    for _ in range(3000):
        try:
            if condition():
                return
        except FileNotFoundError:
            pass
        assert process is None or process.poll() is None, "it ended before it should"
        time.sleep(0.02)
    raise TimeoutError


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def all(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def test_the_page(output):
    reproduced(output)
    text = page(output)
    elements = Elements(text)
    assert {tag for tag, _ in elements.found}.isdisjoint({"script", "link", "iframe", "object", "base"})
    assert all(image["src"].startswith("data:image/png;base64,") for image in elements.all("img"))
    assert base64.b64decode(elements.all("img")[0]["src"].partition(",")[2]) == b"\x89PNG of a b c d"
    assert re.findall(r"url\(|@import|\bon\w+=", text) == []
    assert "default-src 'none'" in elements.all("meta")[2]["content"]
    sections = [section["id"] for section in elements.all("section")]
    assert sections == ["tiny"]
    assert {"href": "#tiny"} in elements.all("a")
    assert {"href": "https://arxiv.org/abs/2112.06997"} in elements.all("a")
    assert [row.get("class") for row in elements.all("tr")] == [None, "ours", "ours", "ours", "ours", "published"]
    assert "<h2>A tiny &lt;experiment&gt;</h2>" in text
    assert "<p><b>4 jobs</b> were done.</p>" in text  # the finding, in the summary
    assert "<ul><li><code>a &lt; b</code></li><li>2 * 3 * 4</li></ul>" in text
    assert "<td>157.31</td>" in text
    assert "NSF | &lt;b&gt;" in text
    assert "elflow reproduce tiny --scale cpu --seed 0" in text


def test_the_page_is_of_all_that_is_in_the_folder(output, monkeypatch):
    names = ["first", "damaged", "tiny", "strange", "not-run"]
    monkeypatch.setattr(experiments, "EXPERIMENTS", names)
    reproduced(output)
    found = json.loads((output / "tiny" / "result.json").read_text())
    for name, content in [
        ("first", json.dumps(found | {"name": "first"})),
        ("damaged", '{"name": "dam'),
        (
            "strange",
            json.dumps(found | {"tables": [{"title": "x", "columns": ["a"], "rows": [["1", "2"]], "note": ""}]}),
        ),
    ]:
        (output / name).mkdir()
        (output / name / "result.json").write_text(content)
    _page.write_page(output)
    text = page(output)
    assert [section["id"] for section in Elements(text).all("section")] == ["first", "damaged", "tiny", "strange"]
    assert text.count("The result cannot be read.") == 2
    assert "run <code>elflow reproduce damaged</code> again" in text
    assert "The picture <code>tiny.png</code> is missing" in text  # that of the first
    assert "Not in this folder: not-run." in text
    assert sorted(path.name for path in output.iterdir()) == ["damaged", "first", "index.html", "strange", "tiny"]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("**a** and *b*", "<b>a</b> and <em>b</em>"),
        ("`**a** <b>`", "<code>**a** &lt;b&gt;</code>"),
        ("a ` b", "a ` b"),
        ("2 * 3 and 4 * 5", "2 * 3 and 4 * 5"),
        ("[x](javascript:alert(1))", "[x](javascript:alert(1))"),
        ('[x](https://a.b/"onload=)', '<a href="https://a.b/&quot;onload=">x</a>'),
        ("<script>*a*</script>", "&lt;script&gt;<em>a</em>&lt;/script&gt;"),
    ],
)
def test_marks(words, shown):
    assert _page._inline(words) == shown


def test_markdown(output, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "keys").write_text("xy")
    assert reproduced(output, Plan(data=data, effort=0.5))[0] == "tiny: half of the <data> are not there"
    text = (output / "tiny" / "section.md").read_text()
    begin = "## A tiny <experiment>\n\n*With 0.5 times the training steps of the scale.* **2 jobs** were done."
    assert text.startswith(begin)
    table = text[text.index("| model") :].split("\n\n")[0].splitlines()
    assert table[1] == "| --- | ---: | --- |"
    assert table[4] == r"| NSF \| <b> | 157.31 | *published*: Durkan et al. 2019 |"
    assert "![A <picture>](tiny.png)" in text
    assert "Missing:\n\n- half of the <data> are not there" in text
    assert "`elflow reproduce tiny --scale cpu --seed 0 --data FOLDER --effort 0.5`" in text
    assert "half of the &lt;data&gt; are not there" in page(output)


def test_the_command(output, tmp_path, monkeypatch):
    out, err = succeeds("reproduce", "tiny", "-o", output, "--processes", "1", "--seed", "3")
    assert out.rstrip().endswith(f"page: {output / 'index.html'}")
    assert "\x1b" not in out + err
    rows = result(output)["tables"][0]["rows"]
    for row in rows:
        assert re.search(r"\s+".join(re.escape(cell) for cell in row if cell), out)
    assert all(line.startswith(("elflow: [", "elflow: writing")) for line in err.splitlines())
    assert result(output)["plan"] == {"scale": "cpu", "seed": 3, "effort": 1.0, "data": False}
    _, err = succeeds("reproduce", "all", "-o", output, "--seed", "3")
    assert err == "elflow: 4 of 4 jobs were done before\nelflow: writing the reports\n"

    monkeypatch.setenv("ELFLOW_DATA", str(tmp_path))
    (tmp_path / "keys").write_text("ab")
    assert "output must be another folder" in fails("reproduce", "tiny", "-o", output, "--effort", "0.1")
    other = output.with_name("other")
    switch(other, "b-fails")
    code, out, err = run("reproduce", "tiny", "-o", other, "--processes", "1", "--effort", "0.1")
    assert code == 1
    assert "ELF a" in out
    assert err.splitlines()[-1].startswith("elflow: failed: tiny: b: KeyError")
    (tmp_path / "keys").write_text("")
    code, out, err = run("reproduce", "tiny", "-o", output, "--seed", "3")
    assert (code, out) == (2, "")
    first, last = err.splitlines()
    assert first == "elflow: tiny: half of the <data> are not there"
    assert last.startswith("elflow: error: nothing could be done of tiny")


def test_what_the_command_refuses(output, tmp_path):
    assert "NAME must be all or one of tiny, got 'tine'" in fails("reproduce", "tiny", "tine", "-o", output)
    assert "effort must be positive and finite, got 0" in fails("reproduce", "tiny", "-o", output, "--effort", "0")
    assert "data must be a folder" in fails("reproduce", "tiny", "-o", output, "--data", tmp_path / "none")
    assert "'cpu', 'paper'" in fails("reproduce", "tiny", "-o", output, "--scale", "gpu")
    assert "--processes" in fails("reproduce", "tiny", "-o", output, "--processes", "0")
    assert not output.exists()
    output.touch()
    assert "--output must be a folder" in fails("reproduce", "tiny", "-o", output)


def test_the_help_names_every_experiment(monkeypatch):
    monkeypatch.undo()
    help_ = " ".join(typer.main.get_command(app).commands["reproduce"].help.split())
    assert f"NAME is all, or any of {', '.join(experiments.EXPERIMENTS)}." in help_
