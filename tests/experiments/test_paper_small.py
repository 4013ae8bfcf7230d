"""The paper's experiments without data: networks, the absolute value, ReLU in a flow, run times."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from elflow import ELF
from elflow.activations import RELU
from elflow.functional import lipschitz
from experiments import Plan, load, run
from experiments.paper import absolute_value, networks, relu_flow, runtime


def work(name, **changes):
    """The record of an experiment's first job, with other settings."""
    each = load("paper", name)
    plan = Plan(effort=0.01)
    record = each.work(plan, each.jobs(plan)[0].settings | changes, None)
    json.dumps(record, allow_nan=False)
    return record


@pytest.mark.parametrize("name", ["networks", "absolute-value", "relu-flow", "runtime"])
def test_jobs_follow_from_the_plan(name):
    each = load("paper", name)
    jobs = each.jobs(Plan(seed=3))
    assert len({job.key for job in jobs}) == len(jobs)
    assert {job.key: job.settings for job in jobs} == json.loads(json.dumps({job.key: job.settings for job in jobs}))
    assert [job.settings for job in jobs] != [job.settings for job in each.jobs(Plan())]
    for key, other in pairwise(sorted(job.key for job in jobs)):
        assert not other.startswith(key)  # reports find the seeds of a model by the prefix of their keys


@pytest.mark.slow
def test_runs_leave_pictures_and_tables(tmp_path):
    chosen = [load("paper", name) for name in ("networks", "absolute-value")]
    reports = run(chosen, Plan(effort=0.001), tmp_path, log=lambda line: None)
    for name, report in reports.items():
        (picture,) = report.pictures
        assert (tmp_path / name / picture).read_bytes().startswith(b"\x89PNG")
        assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)
    assert len(reports["networks"].tables[0].rows) == 12
    assert [row[0] for row in reports["absolute-value"].tables[0].rows] == list(absolute_value.METHODS.values())


def test_networks_draws_a_picture(tmp_path):
    path = tmp_path / "folder" / "networks.png"
    constants = networks.draw(path, units=4, seed=3)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(path.parent.iterdir()) == [path]
    assert constants["FELU"] == lipschitz(*networks.random_network(4, 3)).item()
    assert constants["ReLU"] == lipschitz(*networks.random_network(4, 3), RELU).item()


def test_constants_are_never_below_the_grid_and_close_to_it():
    rows = work("networks", points=5001)["rows"]
    assert [row["units"] for row in rows if row["exact"] is None] == networks.UNITS
    for row in rows:
        if row["exact"] is not None:
            assert 0.99 * row["exact"] < row["grid"] <= row["exact"] * (1 + 1e-12)


def test_exact_networks_hold_the_absolute_value():
    network = absolute_value.ExactNetwork(2, RELU)
    with torch.no_grad():
        for parameter, value in ((network.w1, (1, -1)), (network.b1, (0, 0)), (network.w2, (3, 3))):
            parameter.copy_(torch.tensor(value))
    x = torch.linspace(-1, 1, 101)
    torch.testing.assert_close(network(x), x.abs())


def test_the_bound_of_one_layer_is_attained():
    network = absolute_value.build("spectral-1", units=2)
    into, out = (part for part in network if isinstance(part, torch.nn.Linear))
    with torch.no_grad():
        into.parametrizations.weight.original.copy_(torch.tensor([[1.0], [-1.0]]))
        out.parametrizations.weight.original.copy_(torch.tensor([[1.0, 1.0]]))
        into.bias.zero_()
        out.bias.fill_(0.25)
        network.settle()
        x = torch.linspace(-1, 1, 100_001)
        error = (network(x) - x.abs()).square().mean()
    assert error.item() == pytest.approx(absolute_value.one_layer_bound(), rel=1e-4)


@pytest.mark.slow
@pytest.mark.paper
def test_only_the_exact_constant_learns_the_absolute_value():
    exact, spectral = (
        work("absolute-value", method=method, steps=600, units=16) for method in ("exact-felu", "spectral-1")
    )
    assert exact["error"] < 1e-3
    assert spectral["error"] > absolute_value.one_layer_bound() * (1 - 1e-4)
    for record in (exact, spectral):
        assert record["steepest"] <= record["constant"] * (1 + 1e-9) <= 1 + 1e-5
    assert work("absolute-value", method="exact-felu", steps=600, units=16) == exact


@pytest.mark.parametrize("units", [1, 2, 33])
def test_relu_constants_in_order_are_those_of_the_reference(units, generator):
    for _ in range(20):
        w1, b1, w2 = torch.randn(3, units, generator=generator, dtype=torch.float64)
        torch.testing.assert_close(relu_flow.relu_lipschitz(w1, b1, w2), lipschitz(w1, b1, w2, RELU))


@pytest.mark.parametrize("model", ["elf-relu", "elf-fixed"])
def test_relu_elf_is_that_of_the_library(model):
    ours, theirs = relu_flow.build(model, 16), ELF(1, transforms=1, units=16, activation=RELU, scale=False)
    with torch.no_grad():
        phi = 3 * torch.randn_like(theirs.transform.transforms[1].hyper.first)
        theirs.transform.transforms[1].hyper.first.copy_(phi)
        layer = ours.transform.transforms[1]
        layer.still.copy_(phi[0, : len(layer.still)])
        layer.phi.copy_(phi[0, len(layer.still) :])
    x = torch.randn(100, 1)
    ours.initialize(x)
    theirs.initialize(x)
    torch.testing.assert_close(ours().log_prob(x), theirs().log_prob(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", relu_flow.MODELS)
def test_densities_integrate_to_one(model):
    flow = relu_flow.build(model, 32).double()
    flow().log_prob(torch.rand(100, 1, dtype=torch.float64)).mean().backward()
    assert all(parameter.grad is not None for parameter in flow.parameters() if parameter.requires_grad)
    x = torch.linspace(-10, 10, 100_001, dtype=torch.float64)
    with torch.no_grad():
        total = torch.trapezoid(flow().log_prob(x[:, None]).exp(), x)
    assert total.item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("model", "moves"), [("elf-relu", True), ("elf-fixed", False)])
def test_corners_stay_where_they_must(model, moves):
    flow = relu_flow.build(model, 8)
    x = torch.rand(100, 1)
    flow.initialize(x)

    def corners():
        w1, b1, _, _ = flow.transform.transforms[1]().parameters
        return flow.transform.transforms[0]().inv(-(b1 / w1)[:, None])

    before = corners()
    optimizer = torch.optim.Adam([p for p in flow.parameters() if p.requires_grad], lr=0.1)
    (-flow().log_prob(x).mean()).backward()
    optimizer.step()
    assert torch.equal(corners(), before) != moves


@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_residual_layers_contract(activation):
    layer = relu_flow.Residual(64, activation).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(50)
        layer.into.parametrizations.weight.original.abs_()
        layer.out.parametrizations.weight.original.abs_()
        for _ in range(5):
            t = layer()
        _, ladj = t.call_and_ladj(torch.linspace(-50, 50, 1001, dtype=torch.float64)[:, None])
    assert 0.5 < ladj.exp().max() - 1 <= relu_flow.BOUND + 1e-9


@pytest.mark.slow
@pytest.mark.paper
def test_flows_come_nearer_to_the_uniform_distribution():
    few, more = (work("relu-flow", units=32, steps=steps) for steps in (1, 400))
    assert 0 < more["gap"] < min(few["gap"], relu_flow.AFFINE)
    assert len(more["density"]) == 601
    assert work("relu-flow", units=32, steps=1) == few


@pytest.mark.slow
@pytest.mark.paper
@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [([0.17, 0.18, 0.175], "reproduced"), ([0.001, 0.002, 0.001], "refuted"), ([0.0, 0.1, 0.05], "neither reproduced")],
)
def test_the_verdict_follows_from_the_records(tmp_path, gaps, verdict):
    record = {"steps": [1, 2], "losses": [0.3, 0.2], "density": [0.5] * 601, "parameters": 7}
    found = {"elf-felu": [0.04, 0.05, 0.045], "elf-relu": gaps}
    records = {f"{model}-{k}": record | {"gap": gap} for model, of in found.items() for k, gap in enumerate(of)}
    report = load("paper", "relu-flow").report(Plan(), records, tmp_path)
    assert f"**ELF**: {verdict}" in report.text
    assert "residual flow" not in report.text  # of which there are no records
    assert report.tables[0].rows[0] == ["ELF, FELU", "7", "-0.0450 ± 0.0029", "0.0450"]
    assert (tmp_path / "relu-flow.png").exists()


def test_affine_layers_alone_fall_short_by_a_known_amount():
    x = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    normal = torch.distributions.Normal(0.5, math.sqrt(1 / 12))
    assert -normal.log_prob(x).mean().item() == pytest.approx(relu_flow.AFFINE, abs=1e-6)


def test_lines_are_fitted_as_numpy_does(generator):
    x, y = torch.rand(2, 9, generator=generator, dtype=torch.float64).tolist()
    begin, slope, score = runtime.fit_line(x, y)
    np.testing.assert_allclose(np.polyfit(x, y, 1), [slope, begin])
    assert score == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2)


def test_times_are_of_algorithms_that_agree(tmp_path):
    record = work("runtime", units=[16, 128, 256], batches=[8, 16, 32], seconds=0.1)
    assert record["apart"] < 1e-4
    assert set(record["times"]["units"]) == {"paper", "direct", "elflow"}
    assert runtime.EXPERIMENT.exclusive
    assert all(t > 0 for kind in record["times"].values() for times in kind.values() for t in times)
    report = load("paper", "runtime").report(Plan(), {"times": record}, tmp_path)
    assert [len(table.rows) for table in report.tables] == [3, 3, 3, 2]
    assert (tmp_path / "runtime.png").read_bytes().startswith(b"\x89PNG")
