"""The toy experiments, with few systems and few steps."""

import math
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from elflow.datasets import toy
from elflow.flows import ELF
from experiments import Plan, load, run
from experiments.paper import _toy_levels, _toy_report, toys

FEW = ("nsf", "bnaf", "planar")


@pytest.fixture
def quick(monkeypatch):
    """Small flows, few points, and three of the systems, of which one cannot be sampled from."""
    monkeypatch.setattr(toys, "TEST_POINTS", 2_000)
    monkeypatch.setattr(toys, "GRID", 20)
    monkeypatch.setattr(toys, "SYSTEMS", {name: toys.SYSTEMS[name] for name in FEW})
    small = {"transforms": 1, "units": 8, "hidden_features": (16,)}
    for name, setting in toys.SETTINGS.items():
        monkeypatch.setitem(toys.SETTINGS, name, replace(setting, flow=small, parameters=2_000))


def test_a_fit_is_no_better_than_the_truth():
    flow = ELF(2, transforms=1, units=8)
    result = toys.fit_toy(flow, toy.Moons(), toys.SETTINGS["eight-gaussians"], 20, points=2_000)
    assert result.gap > 4 * result.error
    assert result.curve["step"] == list(range(1, 21))
    assert result.curve["seconds"] == sorted(result.curve["seconds"])
    assert result.seconds >= result.curve["seconds"][-1] - 0.001  # which is rounded
    assert all(loss > 0 for loss in result.curve["loss"])


@pytest.mark.slow
@pytest.mark.paper
def test_elf_comes_near_the_entropy_bound():
    """Few steps of a small flow: far from the paper's protocol, and yet near the bound."""
    torch.manual_seed(0)
    flow = ELF(2, transforms=2, units=16, hidden_features=(64, 64))
    result = toys.fit_toy(flow, toy.EightGaussians(), toys.SETTINGS["eight-gaussians"], 600, points=5_000)
    assert 0 < result.gap < 0.3


@pytest.mark.slow
def test_the_report_of_a_toy(quick, tmp_path):
    plan = Plan(effort=0.01)
    lines = []
    report = run(load("paper", "eight-gaussians"), plan, tmp_path, log=lines.append)["eight-gaussians"]
    likelihood, levels, times, claims = report.tables
    assert claims.columns[-1] == "verdict"
    models = [row[0] for row in likelihood.rows]
    assert models[0] == "Entropy bound"
    assert sorted(models[1:]) == sorted(["ELF-AR", "ELF-AR (the paper's)", *(toys.SYSTEMS[name].title for name in FEW)])
    gaps = [float(row[6].split()[0]) for row in likelihood.rows[1:]]
    assert gaps == sorted(gaps)
    assert {row[0]: row[3:5] for row in likelihood.rows[1:]} == {
        "ELF-AR": ("20", "3"),
        "ELF-AR (the paper's)": ("20", "3"),
        toys.SYSTEMS["nsf"].title: ("20", "3"),
        toys.SYSTEMS["bnaf"].title: ("20", "3"),
        toys.SYSTEMS["planar"].title: ("20", "1"),
    }
    for row in likelihood.rows[1:]:
        assert float(row[5]) == pytest.approx(-2.8319 - float(row[6].split()[0]), abs=2e-4)
    sources = {row[0]: row[1] for row in likelihood.rows[1:]}
    assert sources["ELF-AR"] == "elflow"
    assert sources[toys.SYSTEMS["nsf"].title] == "zuko, Durkan et al. 2019"
    for name in FEW:
        assert toys.SYSTEMS[name].reference in sources[toys.SYSTEMS[name].title]
        assert f"{toys.SYSTEMS[name].title}: {toys.SYSTEMS[name].note}" in likelihood.note or name == "bnaf"
    drawn = {row[0]: row[4] for row in times.rows}
    assert drawn[toys.SYSTEMS["planar"].title] == "cannot"
    assert drawn["ELF-AR"].endswith(" ms")
    assert [row[0] for row in levels.rows] == models[1:]
    assert levels.columns[1:] == ["above -4", "-8 to -4", "-16 to -8", "-40 to -16", "below -40"]
    assert set(report.pictures) == {"densities.png", "log-densities.png", "curves.png"}
    for name in report.pictures:
        assert (tmp_path / "eight-gaussians" / name).read_bytes().startswith(b"\x89PNG")
    assert "ELF-AR" in report.text


@pytest.mark.slow
def test_the_same_seed_gives_the_same_records(quick, tmp_path):
    """All that the tables state of a model, except times; the tables follow from the records."""

    def fit(seed):
        plan = Plan(effort=0.005, seed=seed)
        jobs = [job for job in toys.CHECKERBOARD.jobs(plan) if job.key.endswith("-0")]
        assert {job.settings["model"] for job in jobs} == {"elf", "elf-paper", *FEW}
        # Each in a folder of its own, so that none resumes another one.
        records = [toys.CHECKERBOARD.work(plan, job.settings, Path(tempfile.mkdtemp(dir=tmp_path))) for job in jobs]
        return [[record[name] for name in ("gap", "error", "steps", "parameters", "levels")] for record in records]

    first, again, other = (fit(seed) for seed in (3, 3, 4))
    assert first == again
    assert all(one[:2] != two[:2] for one, two in zip(first, other, strict=True))


def test_slow_systems_have_fewer_steps_and_seeds():
    jobs = {job.key: job.settings for job in load("paper", "checkerboard").jobs(Plan())}
    assert {"elf-0", "elf-1", "elf-2", "cnf-0", "speed"} <= set(jobs)
    assert [job.key for job in load("paper", "checkerboard").jobs(Plan()) if job.exclusive] == ["speed"]
    assert "cnf-1" not in jobs
    assert jobs["cnf-0"]["steps"] < jobs["elf-0"]["steps"]
    paper = {job.key: job.settings for job in load("paper", "checkerboard").jobs(Plan(scale="paper"))}
    assert {settings["steps"] for key, settings in paper.items() if key != "speed"} == {10_000}
    assert {"cnf-0.002-2", "elf-0.005-2", "naf-widths-0.002-2"} <= set(paper)


def test_no_two_plans_share_a_seed():
    def seeds(plan):
        return {job.settings["seed"] for job in load("paper", "checkerboard").jobs(plan) if job.key.startswith("elf-")}

    assert len(seeds(Plan(seed=0))) == 3
    assert not seeds(Plan(seed=0)) & seeds(Plan(seed=1))


def test_the_better_learning_rate_is_shown(tmp_path):
    records = {f"naf-{rate}-{i}": run_of("naf", gap) | {"learning_rate": rate} for rate, gap in RATES for i in range(2)}
    records |= {f"naf-widths-{i}": run_of("naf:widths", 0.3) for i in range(2)}
    rows = _toy_report.report("checkerboard", Plan("paper"), records, tmp_path).tables[0].rows
    assert [(row[0], row[6][:6], row[8]) for row in rows[1:]] == [
        ("Neural Autoregressive (NAF)", "0.1000", "-3.56"),
        ("Neural Autoregressive (NAF), printed width", "0.3000", "-3.56"),
    ]


RATES = [(0.002, 0.4), (0.005, 0.1)]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [(0.01, 0.05, "is first"), (0.02, 0.021, "is tied"), (0.021, 0.02, "is tied"), (0.05, 0.01, "is behind")],
)
def test_who_is_first(ours, theirs, expected):
    scores = {
        "elf": _toy_report.Score(ours, 0.001, []),
        "nsf": _toy_report.Score(theirs, 0.001, []),
        "maf": _toy_report.Score(0.5, 0.001, []),
    }
    assert expected in _toy_report.describe_rank(scores)
    assert "NSF" in _toy_report.describe_rank(scores)


@pytest.mark.parametrize(("degrees", "best"), [(0, -4.062), (11, -3.84)])
def test_the_best_that_one_coupling_can_do_on_eight_gaussians(degrees, best):
    """A normal x1 and a normal x2 given x1, by quadrature: less than the paper's -4.0 without a rotation."""
    axis = torch.linspace(-6, 6, 401, dtype=torch.float64)
    step, angle = axis[1] - axis[0], math.radians(degrees)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)
    p = toy.EightGaussians().log_prob(torch.cartesian_prod(axis, axis) @ turn.T).exp().reshape(401, 401)
    marginal = p.sum(1) * step
    mean = (p * axis).sum(1) * step / marginal
    variance = (p * (axis - mean[:, None]).square()).sum(1) * step / marginal
    total = (marginal * axis.square()).sum() * step
    score = -math.log(2 * math.pi * math.e) - (total.log() + (marginal * variance.log()).sum() * step) / 2
    assert score == pytest.approx(best, abs=2e-3)


def run_of(model, gap, error=0.001):
    curve = {"step": [1.0], "seconds": [0.1], "loss": [3.0]}
    return {"model": model, "gap": gap, "error": error, "parameters": 1, "steps": 1, "training": 1.0, "curve": curve}


def test_models_above_the_bound_are_implausible(tmp_path):
    records = {"elf-0": run_of("elf", 0.01), "nsf-0": run_of("nsf", -0.5), "maf-0": run_of("maf", 0.2)}
    text = _toy_report.report("checkerboard", Plan(), records, tmp_path).text
    assert "ELF-AR is first" in text
    assert "NSF" in text.split("**Implausible**")[1]


def test_a_remark_about_several_systems_is_printed_once(tmp_path):
    records = {f"{model}-0": run_of(model, 0.1) for model in ("elf", "naf", "sos", "maf")}
    note = _toy_report.report("checkerboard", Plan(), records, tmp_path).tables[0].note
    titles = [_toy_report.SYSTEMS[model].title for model in ("naf", "sos")]
    assert note.endswith(f" {', '.join(titles)}: {_toy_report.SYSTEMS['naf'].note}")
    assert note.count("[-10, 10]") == 1


def test_each_row_has_its_own_standard_error(tmp_path):
    records = {f"elf-{i}": run_of("elf", gap) for i, gap in enumerate((0.02, 0.03, 0.04))}
    records |= {"nsf-0": run_of("nsf", 0.045, 0.002), "maf-0": run_of("maf", 0.2), "maf-1": run_of("maf", 0.4)}
    report = _toy_report.report("checkerboard", Plan(), records, tmp_path)
    assert "is first" in report.text  # 0.0150 ± 0.0061 before NSF
    assert [row[6:8] for row in report.tables[0].rows[1:]] == [
        ("0.0300 ± 0.0058", "seeds"),
        ("0.0450 ± 0.0020", "test points"),
        ("0.3000 ± 0.1000", "seeds"),
    ]
    assert report.tables[0].columns[7] == "standard error over"


def test_errors_are_grouped_by_the_true_level():
    true = torch.tensor([-2.0, -3.0, -9.0, -100.0, -torch.inf, -torch.inf])
    model = torch.tensor([-2.5, -2.0, -7.0, -50.0, -10.0, -20.0])
    levels = _toy_levels.measure_levels(true, model)
    assert [(level["points"], level["mean"], level["absolute"]) for level in levels] == [
        (2, 0.25, 0.75),
        (1, 2.0, 2.0),
        (1, 50.0, 50.0),
        (2, -15.0, None),  # the model's own log-density, where the truth has none
    ]
    runs = {"elf": [run_of("elf", 0.1) | {"levels": levels}], "nsf": [run_of("nsf", 0.2)]}
    table = _toy_levels.tabulate_levels(["elf", "nsf"], runs, str.upper)
    assert table.columns == ["model", "above -4", "-16 to -8", "below -40", "density zero"]
    assert table.rows == [["ELF", "+0.25 (0.75)", "+2.00 (2.00)", "+50.00 (50.00)", "-15.0"]]


def test_all_models_have_the_chosen_number_of_steps(quick, tmp_path):
    plan = Plan(options={"steps": "12"})
    experiment = load("paper", "checkerboard")
    jobs = experiment.jobs(plan.for_experiment(experiment))
    assert {job.settings["steps"] for job in jobs} == {12}
    assert [job.key for job in jobs] == ["elf-0", "nsf-0", "elf-paper-0", "bnaf-0", "elf-1", "nsf-1", "elf-2", "nsf-2"]
    settings = {job.key: job.settings["setting"] for job in jobs}
    assert settings["elf-0"]["schedule"] == settings["nsf-0"]["schedule"] == "cosine"
    assert settings["elf-paper-0"] == {**settings["elf-paper-0"], "schedule": "step", "ema_decay": 0.0, "clip": False}
