"""The runner, the page, the results and the command."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import _tiny_experiment
import pytest
from _fork_server import START_METHOD
from _tiny_experiment import EXPERIMENT, GROUP

import experiments
from experiments import GROUPS, Group, Plan, command
from experiments.command import main
from experiments.framework import page as _page
from experiments.framework import workers
from experiments.framework.measure import find_commit
from experiments.framework.page import write_page
from experiments.framework.results import FOLDER as RESULTS
from experiments.framework.results import keep_result, keep_summary, read_result


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Make the tiny group the only one of the command."""
    monkeypatch.setattr("experiments.command.GROUPS", {"tiny-group": GROUP})


@pytest.fixture
def output(tmp_path):
    return tmp_path / "output"


@pytest.fixture
def quick_workers(monkeypatch):
    """Fork worker processes from a server that has imported torch; the tests of killed programs spawn new ones."""
    monkeypatch.setattr(workers, "get_context", lambda method: get_context(START_METHOD))


def run_tiny(output, plan=None, processes=1):
    """Run the tiny experiment and return the lines of its log."""
    lines = []
    experiments.run(EXPERIMENT, plan or Plan(), output, processes, lines.append, GROUP)
    return lines


def calls(output):
    """The keys of the jobs in the order in which they started."""
    return "".join(line[0] for line in (output / "tiny" / "jobs" / "calls").read_text().splitlines())


def result(output):
    """The result without times."""
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


def test_finished_jobs_are_not_run_again(output):
    lines = run_tiny(output)
    assert calls(output) == "abcd"
    assert re.fullmatch(r"\[2/4, \d+ s\] tiny: b, 0 s", lines[1])
    first = result(output)
    assert list(first["records"]) == ["a", "b", "c", "d"]
    assert all(record["threads"] == 1 for record in first["records"].values())
    assert run_tiny(output) == ["4 of 4 jobs were already done", "writing the reports"]
    assert calls(output) == "abcd"
    assert result(output) == first
    (output / "tiny" / "jobs" / "c" / "record.json").write_text("{")
    assert run_tiny(output)[0] == "3 of 4 jobs were already done"
    assert calls(output) == "abcdc"
    assert result(output) == first


@pytest.mark.parametrize("changed", [{"seed": 1}, {"effort": 2.0}, {"scale": "paper"}, {"options": {"size": "3"}}])
def test_results_of_another_plan_are_not_replaced(output, changed):
    run_tiny(output)
    before = result(output)
    message = r"output must be a folder without results of other settings, got .*output, which has results of "
    with pytest.raises(ValueError, match=message + r"--scale cpu --seed 0 --effort 1\.0: choose another one by -o"):
        run_tiny(output, Plan(**changed))
    assert result(output) == before
    run_tiny(other := output.with_name("other"), Plan(**changed))
    assert (result(other)["tables"] == before["tables"]) == ("seed" not in changed)


def test_a_run_without_records_does_not_block_another_plan(output):
    for key in "abcd":
        switch(output, f"{key}-fails")
    run_tiny(output)
    assert result(output)["text"] == "All jobs failed."
    (output / "tiny" / "plan.json").write_text(json.dumps(Plan(seed=5).describe()))  # from an interrupted run
    (output / "tiny" / "jobs" / "c-fails").unlink()
    run_tiny(output, Plan(seed=1))
    assert list(result(output)["records"]) == ["c"]
    with pytest.raises(ValueError, match=r"which has results of --scale cpu --seed 1 --effort 1\.0"):
        run_tiny(output)


def test_a_plan_is_claimed_with_the_first_record(output):
    """Another run in the same folder may have claimed it since this one started."""

    def work(plan, settings, folder):
        path = output / "mine" / "plan.json"
        if settings["key"] == "a":
            assert not path.exists()
        else:
            assert json.loads(path.read_text()) == plan.describe()
        if settings["key"] == "c":
            path.write_text(json.dumps(Plan(seed=1).describe()))
        return {"value": 1.0}

    experiments.run(replace(EXPERIMENT, name="mine", work=work), Plan(), output, log=lambda line: None)
    found = json.loads((output / "mine" / "result.json").read_text())
    assert list(found["records"]) == ["a", "b"]
    assert "c: ValueError: output must be a folder without results of other settings" in found["failed"][0]


def test_a_job_with_other_settings_starts_from_scratch(output, monkeypatch):
    run_tiny(output)
    monkeypatch.setattr(Plan, "scaled", lambda self, count: 7)
    run_tiny(output)
    assert calls(output) == "abcdabcd"
    assert (output / "tiny" / "jobs" / "a" / "steps").read_text() == "7 "  # without those of before


def test_a_copy_of_the_data_has_the_same_stamp(tmp_path):
    path = tmp_path / "table.npz"
    path.write_bytes(b"rows")
    plan = Plan(data=tmp_path)
    stamp = plan.stamp("table.npz", "missing.npz")
    os.utime(path, ns=(0, 0))
    assert plan.stamp("table.npz") == stamp
    path.write_bytes(b"wors")
    assert plan.stamp("table.npz") != stamp
    folder = tmp_path / "images" / "raw"
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(b"1")
    stamp = plan.stamp("images")
    (folder / "a").rename(folder / "b")
    assert plan.stamp("images") != stamp
    (folder / "b").rename(folder / "a")
    assert plan.stamp("images") == stamp


def test_an_unregistered_experiment(output):
    mine = replace(EXPERIMENT, name="mine", title="My own")
    reports = experiments.run(mine, Plan(), str(output), log=lambda line: None)
    assert list(reports) == ["mine"]
    assert "My own" in page(output)


def test_options_are_parsed_and_checked(output):
    run_tiny(output, Plan(options={"size": "3"}))
    assert result(output)["plan"]["options"] == {"size": 3}
    assert "--set size=3" in page(output)
    settings = json.loads((output / "tiny" / "jobs" / "a" / "settings.json").read_text())
    assert settings["job"]["size"] == 3
    with pytest.raises(ValueError, match="option size of tiny: must be an integer, got 'many'"):
        run_tiny(output, Plan(options={"size": "many"}))
    with pytest.raises(ValueError, match=r"options must be among \['size'\] for these experiments, got 'width'"):
        run_tiny(output, Plan(options={"width": "3"}))


def test_another_effort_is_mentioned_first(output):
    run_tiny(output, Plan(effort=0.5))
    assert result(output)["text"].startswith("*Run with 0.5 times the default effort.* **4 jobs**")


def choose_jobs(folder, keys):
    """A plan with jobs of these keys."""
    folder.mkdir()
    (folder / "keys").write_text(keys)
    return Plan(data=folder)


def take_spans(found):
    """Remove the times of the jobs from a result, and return them."""
    return {key: record.pop("span") for key, record in found["records"].items()}


@pytest.mark.slow
def test_jobs_in_two_processes(tmp_path, quick_workers):
    """They have the results of one process, and the exclusive job x runs alone, after the others."""
    plan, one, two = choose_jobs(tmp_path / "data", "axbc"), tmp_path / "one", tmp_path / "two"
    run_tiny(one, plan)
    run_tiny(two, plan, processes=2)
    expected, found = result(one), result(two)
    take_spans(expected)
    spans = take_spans(found)
    assert found == expected
    start, _ = spans.pop("x")
    assert all(end <= start for _, end in spans.values())
    assert str(os.getpid()) not in (two / "tiny" / "jobs" / "calls").read_text().split()


@pytest.mark.slow
def test_jobs_of_an_exclusive_experiment_run_one_after_the_other(output, tmp_path, quick_workers):
    plan = choose_jobs(tmp_path / "data", "axbc")
    experiments.run(replace(EXPERIMENT, exclusive=True), plan, output, 2, log=lambda line: None)
    spans = sorted(take_spans(result(output)).values())
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert str(os.getpid()) not in (output / "tiny" / "jobs" / "calls").read_text().split()


@pytest.mark.parametrize(
    ("wrong", "why"), [("b-fails", "KeyError: 'no b\\nat all'"), ("b-is-nan", "ValueError: Out of range float")]
)
def test_a_failed_job_does_not_stop_the_others(output, wrong, why):
    path = switch(output, wrong)
    lines = run_tiny(output)
    assert calls(output) == "abcd"
    assert f"tiny: b failed: {why}" in lines[1]
    found = result(output)
    assert list(found["records"]) == ["a", "c", "d"]
    assert found["failed"][0].startswith(f"b: {why}")
    assert "b: " in page(output)
    assert "Failed: 1." in page(output)
    assert "- b: " in (output / "tiny" / "section.md").read_text()
    error = output / "tiny" / "jobs" / "b" / "error.txt"
    assert error.read_text().startswith("Traceback")
    path.unlink()
    run_tiny(output)  # repeats it
    assert calls(output) == "abcdb"
    assert list(result(output)["records"]) == ["a", "b", "c", "d"]
    assert "Failed" not in page(output)
    assert not error.exists()


@pytest.mark.slow
def test_a_killed_process_is_named(output, tmp_path, quick_workers):
    path, plan = switch(output, "a-is-killed"), choose_jobs(tmp_path / "data", "abc")
    run_tiny(output, plan, processes=2)
    assert [line.split(",")[0] for line in result(output)["failed"]] == ["a: its process was killed"]
    assert list(result(output)["records"]) == ["b", "c"]
    path.unlink()
    run_tiny(output, plan)
    assert result(output)["failed"] == []


def test_a_damaged_file_is_made_again(output):
    run_tiny(output)
    steps = output / "tiny" / "jobs" / "b" / "steps"
    content = steps.read_text()
    steps.write_text("")
    assert run_tiny(output)[0] == "3 of 4 jobs were already done"
    assert steps.read_text() == content


def test_a_result_without_the_native_kernel(output, monkeypatch):
    monkeypatch.setattr("elflow.kernels.native.extension", None)
    run_tiny(output)
    assert result(output)["machine"]["instruction_set"] == "plain torch"


def test_all_jobs_fail(output, capsys):
    for key in "abcd":
        switch(output, f"{key}-fails")
    code, out, err = run_main(capsys, "tiny-group", "tiny", "-o", output, "--processes", "1")
    assert code == 1
    assert "All jobs failed." in out
    assert err.count("failed: tiny: ") == 4
    assert "Failed: 4." in page(output)


def test_a_requirement_that_is_not_met(output, capsys):
    switch(output, "is-poor")
    code, _, err = run_main(capsys, "tiny-group", "tiny", "-o", output, "--processes", "1")
    assert code == 1
    assert err.splitlines()[-1] == "experiments: not met: tiny: a requirement is not met"
    assert "a requirement is not met" in page(output)


def test_a_report_that_fails(output):
    path = switch(output, "report-fails")
    assert "tiny: report: ZeroDivisionError: no report" in run_tiny(output)
    assert "ZeroDivisionError" in page(output)
    path.unlink()
    run_tiny(output)
    assert calls(output) == "abcd"
    assert "ZeroDivisionError" not in page(output)


@pytest.mark.slow
def test_a_killed_run_resumes(output):
    slow = switch(output, "c-is-slow")
    program = [sys.executable, _tiny_experiment.__file__, str(output), "1"]
    with subprocess.Popen(program, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: calls(output) == "abc", process)
        process.kill()
    assert not (output / "tiny" / "result.json").exists()
    slow.unlink()
    assert run_tiny(output)[0] == "2 of 4 jobs were already done"
    assert calls(output) == "abccd"
    other = output.with_name("other")
    run_tiny(other)
    assert result(output) == result(other)


@pytest.mark.slow
def test_workers_end_with_a_killed_parent(output):
    for key in "ab":
        switch(output, f"{key}-is-slow")
    program = [sys.executable, _tiny_experiment.__file__, str(output), "2"]
    with subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: sorted(calls(output)) == ["a", "b"], process)
        process.kill()
    wait_for(lambda: not any(map(is_running, pids(output))), None)


def pids(output):
    return [int(line.split()[1]) for line in (output / "tiny" / "jobs" / "calls").read_text().splitlines()]


def is_running(pid):
    """Whether there is such a process, apart from a zombie."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")


INTERRUPTED = """
import signal, sys, _tiny_experiment
import experiments.command
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite that runs in the background inherits none
    experiments.command.GROUPS = {"tiny-group": _tiny_experiment.GROUP}
    sys.exit(experiments.command.main(["tiny-group", "tiny", "--processes", "2", "-o", sys.argv[1]]))
"""


@pytest.mark.slow
def test_interrupted_from_the_keyboard(output, tmp_path):
    for key in "bcd":
        switch(output, f"{key}-is-slow")
    (tmp_path / "program.py").write_text(INTERRUPTED)
    root = Path(experiments.__file__).parent.parent
    environment = os.environ | {"PYTHONPATH": f"{Path(__file__).parent}{os.pathsep}{root}"}
    command = [sys.executable, str(tmp_path / "program.py"), str(output)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        wait_for(lambda: sorted(calls(output)) == ["a", "b", "c"], process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: also to the worker processes
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    lines = err.splitlines()
    assert lines[-1] == "experiments: interrupted: run the same command again to resume"
    assert all(line.startswith("experiments: ") for line in lines), err
    assert not any(map(is_running, pids(output)))


def wait_for(condition, process):
    for _ in range(3000):
        try:
            if condition():
                return
        except FileNotFoundError:
            pass
        assert process is None or process.poll() is None, "it ended too early"
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
    run_tiny(output)
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
    assert "<h1>Tiny &lt;experiments&gt;</h1>" in text
    assert "They are <em>small</em>." in text
    assert "<h2>A tiny &lt;experiment&gt;</h2>" in text
    assert "<p><b>4 jobs</b> were done.</p>" in text  # the finding, in the summary
    assert "<ul><li><code>a &lt; b</code></li><li>2 * 3 * 4</li></ul>" in text
    assert "<td>157.31</td>" in text
    assert "NSF | &lt;b&gt;" in text
    assert "python -m experiments tiny-group tiny --scale cpu --seed 0" in text


def test_the_page_is_about_all_results_in_the_folder(output):
    run_tiny(output)
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
    names = ["first", "damaged", "tiny", "strange", "not-run"]
    write_page(output, Group("some", "Some", "", dict.fromkeys(names, "")))
    text = page(output)
    assert [section["id"] for section in Elements(text).all("section")] == ["first", "damaged", "tiny", "strange"]
    assert text.count("The result cannot be read.") == 2
    assert "run <code>python -m experiments some damaged</code> again" in text
    assert "The figure <code>tiny.png</code> is missing" in text  # that of the first
    assert "Not in this folder: not-run." in text
    found = sorted(path.name for path in output.iterdir())
    assert found == ["damaged", "first", "index.html", "strange", "summary.json", "tiny"]


@pytest.mark.parametrize(
    ("markdown", "html"),
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
def test_markdown_in_the_page(markdown, html):
    assert _page._render_inline(markdown) == html


@pytest.mark.slow
def test_markdown(output, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "keys").write_text("wy")
    assert run_tiny(output, Plan(data=data, effort=0.5))[0] == "tiny: half of the <data> are missing"
    text = (output / "tiny" / "section.md").read_text()
    start = "## A tiny <experiment>\n\n*Run with 0.5 times the default effort.* **2 jobs** were done."
    assert text.startswith(start)
    table = text[text.index("| model") :].split("\n\n")[0].splitlines()
    assert table[1] == "| --- | ---: | --- |"
    assert table[4] == r"| NSF \| <b> | 157.31 | *published*: Durkan et al. 2019 |"
    assert "![A <picture>](tiny.png)" in text
    assert "Missing:\n\n- half of the <data> are missing" in text
    assert "`python -m experiments tiny-group tiny --scale cpu --seed 0 --data FOLDER --effort 0.5`" in text
    assert "half of the &lt;data&gt; are missing" in page(output)


# --- the command ------------------------------------------------------------------------------------------------------


def run_main(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def fail_main(capsys, *arguments):
    """The error of a command, which must be one line."""
    code, out, err = run_main(capsys, *arguments)
    assert (code, out) == (2, ""), (code, out, err)
    assert err.startswith("experiments: error: ")
    assert err.count("\n") == 1
    return err


def test_the_command(output, tmp_path, monkeypatch, capsys):
    code, out, err = run_main(capsys, "tiny-group", "tiny", "-o", output, "--processes", "1", "--seed", "3")
    assert code == 0
    assert re.search(rf"^page: {re.escape(str(output / 'index.html'))}: 4 jobs in [\d.]+ s \(", out, re.MULTILINE)
    assert "\x1b" not in out + err
    rows = result(output)["tables"][0]["rows"]
    for row in rows:
        assert re.search(r"\s+".join(re.escape(cell) for cell in row if cell), out)
    assert all(line.startswith(("experiments: [", "experiments: writing")) for line in err.splitlines())
    assert result(output)["plan"] == {"scale": "cpu", "seed": 3, "effort": 1.0, "options": {}, "data": False}
    _, _, err = run_main(capsys, "tiny-group", "all", "-o", output, "--seed", "3")
    assert err == "experiments: 4 of 4 jobs were already done\nexperiments: writing the reports\n"

    monkeypatch.setenv("ELFLOW_DATA", str(tmp_path))
    (tmp_path / "keys").write_text("ab")
    assert "without results of other settings" in fail_main(
        capsys, "tiny-group", "tiny", "-o", output, "--effort", "0.1"
    )
    other = output.with_name("other")
    switch(other, "b-fails")
    code, out, err = run_main(capsys, "tiny-group", "tiny", "-o", other, "--processes", "1", "--effort", "0.1")
    assert code == 1
    assert "ELF a" in out
    assert err.splitlines()[-1].startswith("experiments: failed: tiny: b: KeyError")
    (tmp_path / "keys").write_text("")
    code, out, err = run_main(capsys, "tiny-group", "tiny", "-o", output, "--seed", "3")
    assert (code, out) == (2, "")
    first, last = err.splitlines()
    assert first == "experiments: tiny: half of the <data> are missing"
    assert last.startswith("experiments: error: nothing to run for tiny")


def test_wrong_arguments_of_the_command(output, tmp_path, capsys):
    def fail(*arguments):
        return fail_main(capsys, "tiny-group", *arguments, "-o", output)

    assert "NAME must be all or one of tiny, got 'tine'" in fail("tiny", "tine")
    assert "effort must be positive and finite, got 0" in fail("tiny", "--effort", "0")
    assert "data must be a folder" in fail("tiny", "--data", tmp_path / "none")
    assert "--scale" in fail("tiny", "--scale", "gpu")
    assert "processes must be at least 1, got 0" in fail("tiny", "--processes", "0")
    assert "--set must be NAME=VALUE, got 'size'" in fail("tiny", "--set", "size")
    assert "option size of tiny: must be an integer" in fail("tiny", "--set", "size=x")
    assert "options must be among ['size']" in fail("tiny", "--set", "width=1")
    assert "COMMAND" in fail_main(capsys, "tune")
    assert not (output / "tiny" / "result.json").exists()
    (file := tmp_path / "file").touch()
    assert "--output must be a folder" in fail_main(capsys, "tiny-group", "tiny", "-o", file)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The folder of stored results."""
    folder = tmp_path / "kept"
    for keep in (keep_result, keep_summary):
        monkeypatch.setattr(f"experiments.command.{keep.__name__}", partial(keep, folder=folder))
    return folder


def test_results_are_kept_by_the_command(output, kept, monkeypatch, capsys):
    code, out, _ = run_main(capsys, "tiny-group", "tiny", "-o", output, "--processes", "1", "--keep")
    assert code == 0
    assert out.splitlines()[-1] == f"stored: {kept / 'tiny-group' / 'tiny.json'}"
    assert sorted(path.name for path in (kept / "tiny-group").iterdir()) == ["tiny.json", "tiny.png"]
    assert read_result("tiny-group", "tiny", kept)["records"].keys() == set("abcd")
    monkeypatch.setattr("experiments.command.read_result", lambda group, name: read_result(group, name, kept))
    code, out, _ = run_main(capsys, "table", "tiny-group", "tiny")
    assert code == 0
    assert out.startswith("### Values & more\n\n| model | nats | from |\n| --- | ---: | --- |\n| ELF a |")
    assert "there is no" in fail_main(capsys, "table", "tiny-group", "none")
    (kept / "tiny-group" / "old.json").write_text("{}")
    assert "must be a result of the runner" in fail_main(capsys, "table", "tiny-group", "old")


def test_durations_of_a_run_are_kept(output, kept, monkeypatch, capsys):
    """Those of several experiments under a name: their results stay where they are."""
    members = GROUP.members | {"other": "_tiny_experiment:OTHER"}
    monkeypatch.setattr("experiments.command.GROUPS", {"tiny-group": replace(GROUP, members=members)})
    switch(output, "a-takes-a-second")
    command = ["tiny-group", "all", "-o", output, "--processes", "1", "--budget", "0.9", "--keep", "page"]
    code, out, _ = run_main(capsys, *command)
    assert code == 0
    assert out.splitlines()[-1] == f"stored: {kept / 'tiny-group' / 'page.json'}"
    assert [path.name for path in (kept / "tiny-group").iterdir()] == ["page.json"]
    summary = json.loads((kept / "tiny-group" / "page.json").read_text())
    tiny, other = (summary["experiments"][name] for name in ("tiny", "other"))
    assert (tiny["jobs"], tiny["skipped"], tiny["failed"]) == (1, ["b", "c", "d"], [])
    assert (other["jobs"], other["skipped"]) == (4, [])
    assert (summary["jobs"], summary["skipped"], summary["failed"]) == (5, 3, 0)
    assert summary["commits"] == [find_commit()]
    assert tiny["cpu"] >= 0.9
    assert tiny["seconds"] <= summary["wall"] + 0.1  # which a clock of files measures
    assert '<p class="note">5 jobs in ' in page(output)
    assert run_main(capsys, *command)[0] == 0  # a run that finds all jobs done has the same durations
    assert json.loads((kept / "tiny-group" / "page.json").read_text())["wall"] == summary["wall"]


def test_a_stored_result_is_extended(output, kept, monkeypatch, capsys):
    """Its jobs are not repeated, the others run; results of other settings are refused."""
    monkeypatch.setattr("experiments.command.read_result", lambda group, name: read_result(group, name, kept))
    command = ["tiny-group", "tiny", "--processes", "1", "-o"]
    run_main(capsys, *command, output, "--keep")
    stored = read_result("tiny-group", "tiny", kept)
    first = stored["records"].pop("c")
    stored["records"]["a"]["value"] = 5.0
    (kept / "tiny-group" / "tiny.json").write_text(json.dumps(stored))
    other = output.with_name("other")
    code, _, err = run_main(capsys, *command, other, "--extend", "tiny")
    assert code == 0
    assert "3 records copied from the stored result tiny" in err
    assert calls(other) == "c"
    found = result(other)["records"]
    assert (found["a"]["value"], found["c"]["value"]) == (5.0, first["value"])
    assert json.loads((other / "summary.json").read_text())["wall"] <= 1  # without copied records
    third = output.with_name("third")
    assert "must have the settings" in fail_main(capsys, *command, third, "--seed", "1", "--extend", "tiny")
    assert "there is no" in fail_main(capsys, *command, third, "--extend", "none")


def test_a_result_with_failures_is_not_kept(output, kept, capsys):
    command = ["tiny-group", "tiny", "--processes", "1", "--keep", "-o"]
    run_main(capsys, *command, output)
    before = {path: path.read_bytes() for path in (kept / "tiny-group").iterdir()}
    for failing in (["a-fails", "b-fails", "c-fails", "d-fails"], ["b-fails"], ["report-fails"]):
        other = output.with_name("-".join(failing))
        for name in failing:
            switch(other, name)
        code, out, err = run_main(capsys, *command, other, "--force")
        assert code == 1
        assert "stored: " not in out
        assert err.splitlines()[-1] == "experiments: not stored: tiny, because of its failures"
    assert {path: path.read_bytes() for path in (kept / "tiny-group").iterdir()} == before


def test_a_poor_result_is_kept_and_says_so(output, kept, capsys):
    switch(output, "is-poor")
    code, out, _ = run_main(capsys, "tiny-group", "tiny", "--processes", "1", "--keep", "-o", output)
    assert code == 1
    assert "stored: " in out
    assert read_result("tiny-group", "tiny", kept)["unmet"] == ["a requirement is not met"]


def test_records_know_their_commit(output, capsys):
    run_main(capsys, "tiny-group", "tiny", "--processes", "1", "-o", output)
    assert {record["commit"] for record in result(output)["records"].values()} == {find_commit()}


def test_a_result_of_another_effort_is_kept_by_force_only(output, kept, capsys):
    command = ["tiny-group", "tiny", "-o", output, "--processes", "1", "--effort", "0.5", "--keep"]
    assert "--effort must be 1 with --keep, got 0.5: add --force" in fail_main(capsys, *command)
    assert not output.exists()  # nothing was run
    code, _, _ = run_main(capsys, *command, "--force")
    assert code == 0
    assert read_result("tiny-group", "tiny", kept)["plan"]["effort"] == 0.5


def test_results_of_several_option_sets_are_kept_beside_each_other(output, kept, capsys):
    for size in (2, 3):
        command = [
            "tiny-group",
            "tiny",
            "-o",
            output / str(size),
            "--processes",
            "1",
            "--set",
            f"size={size}",
            "--keep",
        ]
        assert "--keep must have a NAME with --set" in fail_main(capsys, *command)
        code, out, _ = run_main(capsys, *command, f"tiny-size{size}")
        assert code == 0
        assert out.splitlines()[-1] == f"stored: {kept / 'tiny-group' / f'tiny-size{size}.json'}"
    names = ["tiny-size2.json", "tiny-size2.png", "tiny-size3.json", "tiny-size3.png"]
    assert sorted(path.name for path in (kept / "tiny-group").iterdir()) == names
    for size in (2, 3):
        found = read_result("tiny-group", f"tiny-size{size}", kept)
        assert (found["name"], found["plan"]["options"]) == ("tiny", {"size": size})


def test_wrong_names_of_kept_results(output, kept, monkeypatch, capsys):
    members = dict.fromkeys(("tiny", "other"), GROUP.members["tiny"])
    monkeypatch.setattr("experiments.command.GROUPS", {"tiny-group": replace(GROUP, members=members)})
    command = ["tiny-group", "-o", output, "tiny"]
    for wrong in ("../tiny", "Tiny", "tiny.json", "-"):
        assert "--keep must be lower-case words joined by hyphens, got" in fail_main(capsys, *command, "--keep", wrong)
    assert "must not be the name of another experiment, got 'other'" in fail_main(capsys, *command, "--keep", "other")
    assert "must not be the name of another experiment" in fail_main(capsys, *command, "other", "--keep", "tiny")
    assert not output.exists()
    assert not kept.exists()


def test_the_commands_of_the_stored_results(monkeypatch):
    """Each command in the README of the stored results writes the file of its row."""
    monkeypatch.undo()
    rows = re.findall(r"^\| `([\w-]+)\.json`.* `([^`]+)` \|$", (RESULTS / "README.md").read_text(), re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(path.stem for path in (RESULTS / "bench").glob("*.json"))
    for name, arguments in rows:
        options = command._build_parser().parse_args(["bench", *arguments.split()])
        command._check_keep(options, options.names)
        assert (options.keep or options.names[0]) == name
        each = GROUPS["bench"].load(options.names[0])
        assert command._parse_settings(options.set).keys() <= each.options.keys()


def test_the_list(monkeypatch, capsys):
    monkeypatch.undo()
    code, out, _ = run_main(capsys, "list")
    assert code == 0
    for group in GROUPS.values():
        for name in group.members:
            each = group.load(name)
            assert each.name == name
            assert re.search(rf"^  {name} +{re.escape(each.title)}$", out, re.MULTILINE)


@pytest.mark.parametrize("processes", [1, 2])
def test_jobs_after_the_time_budget_are_skipped(output, processes, capsys, quick_workers):
    """A started job ends; the others run when the command is repeated with a larger budget."""
    for key in "ab":
        switch(output, f"{key}-takes-a-second")
    command = ["tiny-group", "tiny", "-o", str(output), "--budget"]
    assert main([*command, "0.9", "--processes", str(processes)]) == 0
    found = result(output)
    assert "a" in found["records"]
    assert found["failed"] == []
    assert "d: the jobs before took 1 of 1 CPU seconds; a larger --budget runs it" in found["skipped"]
    assert set("abcd") == {*found["records"], *(line[0] for line in found["skipped"])}
    assert "skipped: tiny: " in capsys.readouterr().err
    assert "Skipped" in page(output)
    assert main([*command, "0.9", "--keep", "--processes", "1"]) == 0
    assert "not stored: tiny, because jobs were skipped" in capsys.readouterr().err
    assert main([*command, "inf", "--processes", "1"]) == 0
    assert list(result(output)["records"]) == list("abcd")
    assert sorted(calls(output)) == list("abcd")


def test_a_wrong_budget_is_refused(output, capsys):
    assert main(["tiny-group", "tiny", "-o", str(output), "--budget", "-1"]) == 2
    assert "--budget must be a positive number of seconds, or inf, got -1" in capsys.readouterr().err


def test_the_paper_takes_45_minutes_on_two_cores():
    """The budgets leave a fifth of the time for jobs that outlast them, and for timings."""
    group = GROUPS["paper"]
    assert set(group.budgets) == set(group.members)
    assert sum(group.budgets.values()) <= 0.81 * 2 * 45 * 60
    assert all(group.load(name).find_budget(Plan()) == seconds for name, seconds in group.budgets.items())


def test_timings_are_not_skipped(output, tmp_path):
    (tmp_path / "keys").write_text("abx")
    experiments.run(EXPERIMENT, Plan(data=tmp_path), output, 1, lambda line: None, GROUP, budget=0.1)
    assert list(result(output)["records"]) == ["a", "x"]
