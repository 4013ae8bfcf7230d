"""The training loop: any flow, known densities, exact resume, the best weights, schedules, limits and the guard."""

import copy
import csv
import math
import os
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
import zuko
from _fork_server import launch_two
from lightning_fabric import Fabric
from torch.optim import SGD

import elflow
from elflow.datasets import toy
from elflow.flows.dequantization import Cells, Dequantized
from elflow.flows.mixture import FlowMixture
from elflow.kernels import NonFiniteError
from elflow.nn import MaskedConvolution
from elflow.training import OPTIMIZERS, SCHEDULES, Recipe, Rows, Training, fit, image_recipe, processes, run
from elflow.training.muon import orthogonalize
from elflow.training.rows import RowSource

TINY = Recipe(max_steps=40, round_steps=10, batch_size=64)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_data(count=600, features=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator)
    x[:, 0] += x[:, -1] ** 2
    return Rows(x[: count * 5 // 6]), Rows(x[count * 5 // 6 :])


def make_flow(**options):
    torch.manual_seed(0)
    return elflow.ELF(2, transforms=1, units=4, hidden_features=(8,), **options)


def have_same_state(a, b):
    a, b = a.state_dict(), b.state_dict()
    return bool(a) and a.keys() == b.keys() and all(torch.equal(value, b[key]) for key, value in a.items())


def make_step_recipe(steps, **options):
    """A recipe whose learning rate is halved three times."""
    return Recipe(max_steps=steps, schedule="step", halve_every=max(1, steps // 4), ema_decay=0.995, **options)


def measure_gap(flow, distribution, n=20_000):
    """Mean log-density of the flow below the best possible one, and its standard error."""
    torch.manual_seed(123)
    x = distribution.sample((n,))
    with torch.no_grad():
        difference = distribution.log_prob(x) - flow().log_prob(x)
    return difference.mean(), difference.std() / math.sqrt(n)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [elflow.ELF, zuko.flows.NSF, zuko.flows.MAF, zuko.flows.NICE, zuko.flows.NAF])
def test_every_flow_learns(kind):
    torch.manual_seed(0)
    rows, validation = make_data()
    flow = kind(features=2)
    before = -flow().log_prob(validation.x).mean().item()
    best, training = fit(flow, rows, validation, Recipe(max_steps=60, round_steps=20, batch_size=64))
    assert not best.training
    assert -best().log_prob(validation.x).mean().item() < before
    assert [entry["step"] for entry in training.history] == [20, 40, 60]
    assert training.stopped == "max_steps"


@pytest.mark.slow
@pytest.mark.parametrize("features", [1, 3])
def test_learns_a_gaussian_from_a_stream(features):
    scale, loc = 0.1 + torch.arange(features), 10.0 * torch.arange(features)
    flow = elflow.ELF(features, transforms=1, units=8, hidden_features=(32,))
    flow, training = fit(flow, lambda: loc + scale * torch.randn(256, features), recipe=make_step_recipe(200))
    entropy = 0.5 * math.log(2 * math.pi * math.e) * features + scale.log().sum()
    x = loc + scale * torch.randn(20_000, features)
    with torch.no_grad():
        assert flow().log_prob(x).mean() > -entropy - 0.03
    assert training.steps == 200
    assert "validation" not in training.history[-1]
    assert not flow.training


@pytest.mark.slow
def test_learns_eight_gaussians_in_few_steps():
    distribution = toy.EightGaussians()
    flow = elflow.ELF(2, transforms=1, units=32, hidden_features=(64, 64), bound=0.999)
    flow, _ = fit(flow, lambda: distribution.sample((128,)), recipe=make_step_recipe(1000, learning_rate=5e-3))
    difference, error = measure_gap(flow, distribution)
    assert -4 * error < difference < 0.1


@pytest.mark.slow
def test_learns_a_dependence_on_context():
    def batch():
        c = torch.rand(256, 1)
        return 5 * c + 0.1 * torch.randn(256, 1), c

    flow, _ = fit(elflow.ELF(1, 1, transforms=1, units=8, hidden_features=(32,)), batch, recipe=make_step_recipe(500))
    c = torch.tensor([[0.1], [0.9]])
    median = flow.conditional_quantile(None, torch.full((2, 1), 0.5), c)
    torch.testing.assert_close(median, 5 * c, atol=0.1, rtol=0)


def test_takes_the_batches_of_a_data_loader():
    rows = torch.utils.data.TensorDataset(torch.randn(64, 2), torch.randn(64, 3))
    batches = iter(torch.utils.data.DataLoader(rows, batch_size=16))
    recipe = Recipe(max_steps=4, round_steps=2, max_grad_norm=math.inf)
    _, training = fit(elflow.ELF(2, 3, units=4), lambda: next(batches), recipe=recipe)
    assert training.steps == 4
    assert next(batches, None) is None  # none was lost to the initialisation


def test_tensors_and_pairs_are_rows():
    rows, validation = make_data()
    c = torch.zeros(len(rows), 1), torch.zeros(len(validation), 1)
    expected, _ = fit(make_flow(), rows, validation, TINY)
    plain, _ = fit(make_flow(), rows.x, validation.x, TINY)
    assert have_same_state(plain, expected)
    pairs, _ = fit(make_flow(context=1), (rows.x, c[0]), [validation.x, c[1]], TINY)
    assert pairs.context == 1
    with pytest.raises(TypeError, match=r"data must be Rows, a tensor or a pair \(x, context\) of tensors, got str"):
        fit(make_flow(), "data.csv", validation, TINY)
    with pytest.raises(TypeError, match=r"data\(\) must be Rows"):
        fit(make_flow(), lambda: [1.0, 2.0], recipe=TINY)


@pytest.mark.slow
def test_the_average_is_an_average():
    rows, _ = make_data()
    averaged, _ = fit(make_flow(), rows, recipe=replace(TINY, ema_decay=0.9))
    last, _ = fit(make_flow(), rows, recipe=replace(TINY, ema_decay=0.0))
    weights = []
    for steps in range(1, 41):
        flow, _ = fit(make_flow(), rows, recipe=replace(TINY, ema_decay=0.0, max_steps=steps, schedule="constant"))
        weights.append(next(flow.parameters()).detach())
    start = make_flow()
    start.initialize(rows.x)
    expected = next(start.parameters()).detach().clone()
    for count, weight in enumerate(weights, start=1):
        keep = min(0.9, (1 + count) / (10 + count))
        expected = keep * expected + (1 - keep) * weight
    torch.testing.assert_close(next(averaged.parameters()).detach(), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(next(last.parameters()).detach(), weights[-1])


def test_after_each_round_a_function_is_called_and_may_draw_random_numbers():
    rows, validation = make_data()
    seen = []

    def look(flow, entry):
        assert not flow.training
        torch.rand(100)
        seen.append((entry["step"], float(flow().log_prob(validation.x).mean().detach())))

    quiet, _ = fit(make_flow(), rows, validation, TINY)
    watched, training = fit(make_flow(), rows, validation, TINY, on_round_end=look)
    assert [step for step, _ in seen] == [10, 20, 30, 40]
    assert [score for _, score in seen] == pytest.approx([entry["validation"] for entry in training.history], abs=1e-4)
    assert have_same_state(quiet, watched)


def test_the_given_flow_is_not_modified():
    flow = make_flow()
    state = {key: value.clone() for key, value in flow.state_dict().items()}
    fit(flow, *make_data(), TINY)
    assert all(torch.equal(value, state[key]) for key, value in flow.state_dict().items())


def test_the_held_out_likelihood_is_that_of_the_returned_weights():
    rows, validation = make_data()
    best, training = fit(make_flow(), rows, validation, TINY)
    score = best().log_prob(validation.x).mean().item()
    assert score == pytest.approx(max(entry["validation"] for entry in training.history), abs=1e-5)


def test_same_seed_same_weights_and_other_seed_others():
    rows, validation = make_data()
    runs = [fit(make_flow(), rows, validation, TINY, seed=seed)[0] for seed in (1, 1, 2)]
    assert have_same_state(runs[0], runs[1])
    assert not have_same_state(runs[0], runs[2])


def test_random_numbers_of_the_caller_are_unchanged():
    flow = make_flow()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit(flow, *make_data(), TINY)
    assert torch.equal(torch.rand(3), expected)


class CrashError(Exception):
    pass


@pytest.fixture
def crash_at(monkeypatch):
    """A function that runs another one, in which training crashes before a step."""
    step = run.Run.train_step

    def run_until(crash, function):
        def crashing(self, batch):
            if self.step == crash:
                raise CrashError
            return step(self, batch)

        monkeypatch.setattr(run.Run, "train_step", crashing)
        with pytest.raises(CrashError):
            function()
        monkeypatch.setattr(run.Run, "train_step", step)

    return run_until


@pytest.mark.parametrize(
    ("schedule", "optimizer"),
    [*((name, "adamw") for name in SCHEDULES), *(("cosine", name) for name in OPTIMIZERS[1:])],
)
@pytest.mark.parametrize("crash", [3, 10, 27])
def test_resume_is_exact(schedule, optimizer, crash, tmp_path, crash_at):
    rows, validation = make_data()
    phases = {"halve_every": 15, "warmup_steps": 5, "hold_steps": 20, "plateau_patience": 1}
    recipe = replace(TINY, max_steps=45, schedule=schedule, optimizer=optimizer, **phases)
    whole, _ = fit(make_flow(), rows, validation, recipe)
    path = tmp_path / "checkpoint"
    crash_at(crash, lambda: fit(make_flow(), rows, validation, recipe, checkpoint=path))
    assert os.listdir(tmp_path) == (["checkpoint"] if crash >= 10 else [])
    resumed, training = fit(make_flow(), rows, validation, recipe, checkpoint=path)
    assert have_same_state(resumed, whole)
    assert [entry["step"] for entry in training.history] == [10, 20, 30, 40, 45]
    finished, _ = fit(make_flow(), rows, validation, recipe, checkpoint=path)
    assert have_same_state(finished, whole)


def test_streams_resume_exactly(tmp_path, crash_at):
    def batch():
        return torch.randn(64, 2)

    whole, _ = fit(make_flow(), batch, recipe=TINY)
    crash_at(27, lambda: fit(make_flow(), batch, recipe=TINY, checkpoint=tmp_path / "c"))
    resumed, _ = fit(make_flow(), batch, recipe=TINY, checkpoint=tmp_path / "c")
    assert have_same_state(resumed, whole)


def test_early_stopping_resumes_as_stopped(tmp_path):
    """A training that had run out of patience does not continue when it is resumed."""
    rows, validation = make_data(60)
    recipe = Recipe(learning_rate=0.05, max_steps=2000, round_steps=10, batch_size=16, patience=2)
    best, training = fit(make_flow(), rows, validation, recipe, checkpoint=tmp_path / "c")
    assert training.stopped == "patience"
    scores = [entry["validation"] for entry in training.history]
    assert len(scores) - 1 - scores.index(max(scores)) == 2
    again, second = fit(make_flow(), rows, validation, recipe, checkpoint=tmp_path / "c")
    assert have_same_state(best, again)
    assert second.history == training.history


def test_checkpoints_of_other_data_or_settings_are_rejected(tmp_path):
    rows, validation = make_data()
    fit(make_flow(), rows, validation, TINY, checkpoint=tmp_path / "c")
    others = [
        lambda: fit(make_flow(), rows, validation, TINY, checkpoint=tmp_path / "c", fingerprint="other"),
        lambda: fit(make_flow(), rows.x + 100, validation, TINY, checkpoint=tmp_path / "c"),
        lambda: fit(make_flow(), rows, validation.x[:-1], TINY, checkpoint=tmp_path / "c"),
        lambda: fit(make_flow(), rows, validation, replace(TINY, schedule="cosine"), checkpoint=tmp_path / "c"),
        lambda: fit(make_flow(), rows, validation, replace(TINY, max_steps=80), checkpoint=tmp_path / "c"),
        lambda: fit(make_flow(), rows, validation, TINY, seed=1, checkpoint=tmp_path / "c"),
        lambda: fit(elflow.ELF(2, units=4), rows, validation, TINY, checkpoint=tmp_path / "c"),
    ]
    for other in others:
        with pytest.raises(ValueError, match="checkpoint must belong to the same data and settings"):
            other()
    (tmp_path / "d").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="checkpoint must be a file written by elflow"):
        fit(make_flow(), rows, validation, TINY, checkpoint=tmp_path / "d")


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(500, 1), r"data\.weight must have the shape \(500,\), got \(500, 1\)"),
        (-torch.ones(500), r"data\.weight must not be negative"),
        (torch.zeros(500), r"data\.weight must not be negative, and not zero for all rows"),
    ],
)
def test_weights_are_checked(weight, message):
    rows, validation = make_data()
    with pytest.raises(ValueError, match=message):
        fit(make_flow(), Rows(rows.x, weight=weight), validation, TINY)


def test_shapes_of_rows_are_checked():
    rows, validation = make_data()
    with pytest.raises(ValueError, match=r"data\.context must have one row per row of data, got 499"):
        fit(make_flow(context=1), (rows.x, torch.zeros(499, 1)), recipe=TINY)
    with pytest.raises(ValueError, match="data must have at least one row, got none"):
        fit(make_flow(), rows.x[:0], validation, TINY)
    with pytest.raises(ValueError, match="validation must have at least one row, got none"):
        fit(make_flow(), rows, validation.x[:0], TINY)
    with pytest.raises(TypeError, match="x must have the dtype of the flow"):
        fit(make_flow(), rows.x.double(), validation, TINY)


def test_numpy_numbers_are_settings():
    recipe = Recipe(max_steps=np.int64(4), batch_size=np.int64(8), round_steps=2, learning_rate=np.float32(1e-3))
    assert all(type(value) in (int, float, str, type(None)) for value in recipe.to_dict().values())
    fit(make_flow(), *make_data(), recipe)


def test_rows_of_weight_zero_do_not_initialise():
    x = torch.cat([torch.full((100, 2), 50.0), torch.randn(100, 2)])
    weight = torch.cat([torch.zeros(100), torch.ones(100)])
    flow, _ = fit(make_flow(), Rows(x, weight=weight), recipe=replace(TINY, max_steps=1, ema_decay=0.0))
    assert flow.transform.transforms[0].loc.abs().max() < 1


@pytest.mark.slow
def test_time_limit_keeps_the_best_weights_so_far():
    best, training = fit(
        make_flow(), *make_data(), Recipe(max_steps=100_000, round_steps=5_000, batch_size=64, time_limit=1.0)
    )
    assert training.stopped == "time_limit"
    assert training.seconds < 30
    assert math.isfinite(training.history[-1]["validation"])
    assert not best.training


@pytest.fixture
def slow_steps(monkeypatch):
    """A clock that advances by one second in each step, and only then."""
    now = [0.0]
    step = run.Run.train_step

    def ticking(self, batch):
        now[0] += 1
        return step(self, batch)

    monkeypatch.setattr(run.Run, "train_step", ticking)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])


def test_a_resume_after_the_time_limit_is_exact(tmp_path, slow_steps):
    """The round that the time limit cut short is repeated whole, so that the weights are those of one long run."""
    rows, validation = make_data()
    whole, _ = fit(make_flow(), rows, validation, TINY)
    _, first = fit(make_flow(), rows, validation, replace(TINY, time_limit=25.0), checkpoint=tmp_path / "c")
    assert (first.stopped, first.steps, first.seconds) == ("time_limit", 25, 25.0)
    resumed, second = fit(make_flow(), rows, validation, TINY, checkpoint=tmp_path / "c")
    assert (second.stopped, second.steps) == ("max_steps", 40)
    assert [entry["step"] for entry in second.history] == [10, 20, 30, 40]
    assert have_same_state(resumed, whole)


def test_the_time_limit_is_over_all_runs(tmp_path, slow_steps):
    rows, validation = make_data()
    _, first = fit(make_flow(), rows, validation, replace(TINY, time_limit=20.0), checkpoint=tmp_path / "c")
    assert first.steps == 20
    _, second = fit(make_flow(), rows, validation, replace(TINY, time_limit=20.0), checkpoint=tmp_path / "c")
    assert (second.steps, second.stopped) == (20, "time_limit")
    _, third = fit(make_flow(), rows, validation, replace(TINY, time_limit=30.0), checkpoint=tmp_path / "c")
    assert (third.steps, third.seconds, third.stopped) == (30, 30.0, "time_limit")


def test_the_learning_rate_decays_towards_the_time_limit(tmp_path, slow_steps, monkeypatch):
    """A checkpoint has the state before, and the schedule is not changed."""
    rates, step = [], torch.optim.AdamW.step

    def record(self, *arguments, **options):
        rates.append(self.param_groups[0]["lr"] / TINY.learning_rate)
        return step(self, *arguments, **options)

    monkeypatch.setattr(torch.optim.AdamW, "step", record)
    rows, validation = make_data()
    recipe = replace(TINY, schedule="constant", time_limit=40.0, cooldown=0.25)
    _, training = fit(make_flow(), rows, validation, recipe, checkpoint=tmp_path / "c")
    assert training.stopped == "max_steps"
    assert rates[:30] == [1.0] * 30
    assert rates[30:39] == pytest.approx([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert training.history[-1]["learning_rate"] == TINY.learning_rate
    rates.clear()
    fit(make_flow(), rows, validation, replace(recipe, time_limit=None), checkpoint=tmp_path / "c")
    assert rates == [1.0] * 10  # the last round is repeated


@pytest.mark.parametrize(("time_limit", "expected"), [(45.0, 1), (95.0, 2), (150.0, 3), (None, 3)])
def test_only_members_that_can_take_all_steps_within_the_time_limit_are_trained(monkeypatch, time_limit, expected):
    """The clock advances by one second for each step of each member: all steps of the three take 120 seconds."""
    now, counts, step = [0.0], [], run.Run.train_step

    def ticking(self, batch):
        counts.append(len(self.selection.trained))
        now[0] += counts[-1]
        return step(self, batch)

    monkeypatch.setattr(run.Run, "train_step", ticking)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    mixture = FlowMixture([make_flow() for _ in range(3)])
    rows, validation = make_data()
    _, training = fit(mixture, rows, validation, replace(TINY, schedule="cosine", round_steps=5, time_limit=time_limit))
    assert counts[:10] == [3] * 10  # the first round includes the initialisation
    assert set(counts[10:]) == {expected}
    assert training.stopped == ("time_limit" if expected == 1 else "max_steps")


def break_log_likelihood(monkeypatch, steps, training=True):
    """Make the log-likelihood NaN at the given calls in training or validation."""
    real, calls = processes.sum_rows, [0]

    def broken(log_prob, weight):
        total, count = real(log_prob, weight)
        calls[0] += log_prob.requires_grad == training
        return (total * math.nan, count) if log_prob.requires_grad == training and calls[0] in steps else (total, count)

    for module in (processes, run):
        monkeypatch.setattr(module, "sum_rows", broken)


def test_a_step_that_is_not_finite_is_skipped_and_reported(monkeypatch):
    break_log_likelihood(monkeypatch, steps=[5])
    with pytest.warns(RuntimeWarning, match="loss was nan .* at step 5: the step is skipped and the learning rate"):
        best, training = fit(make_flow(), *make_data(), TINY)
    assert training.skipped == 1
    assert training.history[-1]["learning_rate"] == pytest.approx(TINY.learning_rate / 2)
    assert all(torch.isfinite(p).all() for p in best.parameters())


def test_a_network_that_the_kernel_refuses_is_a_skipped_step(monkeypatch):
    real = run.Run.train_step

    def overflowing(self, batch):
        kept = [p.detach().clone() for p in self.flow.parameters()]
        if self.step == 4:
            with torch.no_grad():
                for p in self.flow.parameters():
                    p.fill_(math.inf)
        real(self, batch)
        with torch.no_grad():
            if self.step == 5:
                for p, value in zip(self.flow.parameters(), kept, strict=True):
                    p.copy_(value)

    monkeypatch.setattr(run.Run, "train_step", overflowing)
    with pytest.warns(RuntimeWarning, match="loss was nan .* at step 5"):
        _, training = fit(make_flow(), *make_data(), TINY)
    assert training.skipped == 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_rows_that_are_not_finite_are_refused_by_name(value):
    """They are not taken for a bad step, which would be skipped."""
    rows, validation = make_data()
    bad = rows.x.clone()
    bad[17, 1] = value
    with pytest.raises(ValueError, match=r"data must be finite, got .* in 1 of 500 rows \(first: row 17\)"):
        fit(make_flow(), Rows(bad), validation, TINY)
    with pytest.raises(ValueError, match=r"validation must be finite"):
        fit(make_flow(), rows, bad, TINY)
    c = torch.full((500, 1), value)
    with pytest.raises(ValueError, match=r"data\.context must be finite"):
        fit(make_flow(context=1), Rows(rows.x, c), None, TINY)
    with pytest.raises(ValueError, match=r"data\(\) must be finite"):
        fit(make_flow(), lambda: bad, recipe=TINY)


@pytest.mark.parametrize(
    ("field", "name"), [("exact", "data"), ("low", r"data \(cells\)"), ("offset", r"data \(offsets\)")]
)
def test_cells_that_are_not_finite_are_refused_by_name(field, name):
    cells = Cells(torch.zeros(50, 1), torch.zeros(50, 1).double(), torch.ones(50, 1).double(), torch.zeros(50))
    flow = Dequantized(make_flow(), exact=[0], cells=[1])
    fit(flow, Rows(cells), recipe=replace(TINY, max_steps=1))
    getattr(cells, field)[17] = math.nan
    with pytest.raises(ValueError, match=rf"{name} must be finite, got .* \(first: row 17\)"):
        fit(flow, Rows(cells), recipe=TINY)


def test_a_value_error_of_a_flow_is_not_a_bad_step():
    class Refusing(elflow.ELF):
        def forward(self, c=None):
            if self.training and self.initialized:
                raise ValueError("something finite is wrong here")
            return super().forward(c)

    with pytest.raises(ValueError, match="something finite is wrong here"):
        fit(Refusing(2, units=4), *make_data(), TINY)


def test_training_gives_up_when_nothing_is_finite():
    class Broken(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def forward(self, c=None):
            return self

        def log_prob(self, x):
            return x.sum(-1) * self.weight * math.inf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(FloatingPointError, match=r"in the previous 19 steps: lower learning_rate \(now 0\.003"):
            fit(Broken(), *make_data(), TINY)


def lose_weights(monkeypatch, step):
    """Scale the weights before a step, so that their likelihood is far below that of any others."""
    real = run.Run.train_step

    def losing(self, batch):
        if self.step == step - 1:
            with torch.no_grad():
                for p in self.flow.parameters():
                    p.mul_(10)
        real(self, batch)

    monkeypatch.setattr(run.Run, "train_step", losing)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_training_goes_on_from_its_best_weights_when_the_present_ones_are_lost(tmp_path, monkeypatch, optimizer):
    recipe = replace(TINY, ema_decay=0.0, schedule="constant", optimizer=optimizer)
    undisturbed, _ = fit(make_flow(), *make_data(), replace(recipe, max_steps=10))
    lose_weights(monkeypatch, step=15)
    data = make_data()
    states = []
    with pytest.warns(RuntimeWarning, match=r"was .* after step 20: training goes on from its best weights with h"):
        best, training = fit(
            make_flow(), *data, recipe, on_round_end=lambda flow, entry: states.append(copy.deepcopy(flow))
        )
    scores = [entry["validation"] for entry in training.history]
    assert scores[1] < -1e4 < scores[0] < scores[2] < scores[3]
    assert have_same_state(states[1], undisturbed)
    assert have_same_state(states[3], best)
    rates = [entry["learning_rate"] for entry in training.history]
    assert rates[0] == recipe.learning_rate
    assert rates[2:] == [recipe.learning_rate / 2] * 2  # however many steps were skipped

    # A run that ends in the lost round continues in the same way.
    def stop(flow, entry):
        if entry["step"] == 20:
            raise KeyboardInterrupt

    with pytest.warns(RuntimeWarning, match="goes on from"), pytest.raises(KeyboardInterrupt):
        fit(make_flow(), *data, recipe, checkpoint=tmp_path / "c", on_round_end=stop)
    resumed, _ = fit(make_flow(), *data, recipe, checkpoint=tmp_path / "c")
    assert have_same_state(resumed, best)


def test_training_goes_back_after_many_skipped_steps_in_a_row(monkeypatch):
    """If the best weights do not help, training gives up."""
    recipe = replace(TINY, schedule="constant")
    break_log_likelihood(monkeypatch, steps=range(12, 33))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, training = fit(make_flow(), *make_data(), recipe)
    returns = [str(w.message) for w in caught if "goes on from its best weights" in str(w.message)]
    assert len(returns) == 1
    assert "as in the previous 19 steps: training goes on" in returns[0]
    assert training.skipped == 21
    assert training.history[-1]["learning_rate"] == recipe.learning_rate / 4  # one step was skipped afterwards
    break_log_likelihood(monkeypatch, steps=range(12, 60))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(FloatingPointError, match=r"in the previous 39 steps: lower learning_rate"):
            fit(make_flow(), *make_data(), replace(recipe, max_steps=80))


def test_training_without_validation_rows_does_not_go_back(monkeypatch):
    """Its weights have no scores: the last ones may be lost already."""
    break_log_likelihood(monkeypatch, steps=range(12, 40))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(FloatingPointError, match=r"in the previous 19 steps: lower learning_rate"):
            fit(make_flow(), make_data()[0], recipe=replace(TINY, schedule="constant"))


def test_training_does_not_say_that_it_goes_on_after_its_last_round(monkeypatch):
    recipe = replace(TINY, ema_decay=0.0, schedule="constant", max_steps=20)
    lose_weights(monkeypatch, step=15)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, training = fit(make_flow(), *make_data(), recipe)
    assert training.stopped == "max_steps"
    assert training.history[1]["validation"] < -1e4
    assert not [w for w in caught if "goes on" in str(w.message)]


@pytest.mark.parametrize(
    ("call", "message"), [(1, "is nan after step 10"), (2, "was nan after step 20: training goes on")]
)
def test_a_held_out_likelihood_that_is_not_finite_is_reported(monkeypatch, call, message):
    break_log_likelihood(monkeypatch, steps=[call], training=False)
    with pytest.warns(RuntimeWarning, match=f"the held-out log-likelihood {message}"):
        _, training = fit(make_flow(), *make_data(), TINY)
    assert training.stopped == "max_steps"
    assert len(training.history) == 4


def test_logs(tmp_path):
    fit(make_flow(), *make_data(), TINY, log_dir=tmp_path)
    with open(next(tmp_path.glob("csv/*/metrics.csv"))) as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["10", "20", "30", "40"]
    assert {"validation", "training", "learning_rate"} <= set(rows[0])
    assert list(tmp_path.glob("tensorboard/*/events*"))


def test_the_progress_bar_shows_the_likelihood_and_the_patience_left(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "150")
    fit(make_flow(), *make_data(), replace(TINY, patience=7), verbose=True)
    shown = capsys.readouterr().err
    assert "nats, held out -" in shown
    assert "patience 7/7" in shown


@pytest.mark.slow
def test_context_and_weights():
    """Rows of weight zero do not count."""
    generator = torch.Generator().manual_seed(0)
    c = torch.randn(800, 1, generator=generator)
    x = 2 * c + 0.1 * torch.randn(800, 1, generator=generator)
    x[:400] = 50.0
    weight = torch.cat([torch.zeros(400), 2 * torch.ones(400)])
    flow = elflow.ELF(1, context=1, transforms=1, units=4, hidden_features=(16,))
    flow.initialize(x[400:], c[400:])
    recipe = Recipe(learning_rate=1e-2, max_steps=300, round_steps=100, batch_size=128)
    best, training = fit(flow, Rows(x, c, weight), Rows(x[400:], c[400:], weight[400:]), recipe)
    assert best(torch.tensor([[1.0]])).sample((500,)).mean().item() == pytest.approx(2, abs=0.2)
    assert training.history[-1]["validation"] > 0


def test_batches_are_slices_of_permutations():
    rows = Rows(torch.arange(10.0)[:, None])
    source = RowSource(rows, 5, seed=3)
    batches = [batch.x for batch in source.iter_batches(range(4))]
    assert all(len(batch) == 5 for batch in batches)
    assert sorted(torch.cat(batches[:2]).flatten().tolist()) == list(range(10))
    later = [batch.x for batch in source.iter_batches(range(2, 4))]
    assert torch.equal(torch.cat(later), torch.cat(batches[2:]))
    assert not torch.equal(torch.cat(batches[:2]), torch.cat(batches[2:]))


def test_mixed_precision_trains():
    rows, validation = make_data()
    best, training = fit(make_flow(), rows, validation, TINY, fabric=Fabric(accelerator="cpu", precision="bf16-mixed"))
    exact, _ = fit(make_flow(), rows, validation, TINY)
    assert training.steps == 40
    assert not have_same_state(best, exact)
    scores = [flow().log_prob(validation.x).mean().item() for flow in (best, exact)]
    assert scores[0] == pytest.approx(scores[1], abs=0.1)


def train_on_two(fabric, path):
    """One of two processes, each of which trains on its part of the batches, with and without validation rows."""
    torch.set_num_threads(1)
    rows, validation = make_data()
    best, training = fit(make_flow(), rows, validation, TINY, fabric=fabric)
    torch.save({"state": best.state_dict(), "history": training.history}, f"{path}/{fabric.global_rank}")
    step, rank = processes.LogLikelihood.forward, fabric.global_rank
    calls = [0]

    def refuse_once(self, rows):
        calls[0] += 1
        if rank == 1 and calls[0] == 5:
            raise NonFiniteError("phi must be finite")
        return step(self, rows)

    processes.LogLikelihood.forward = refuse_once
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        best, training = fit(make_flow(), rows, None, replace(TINY, plateau_patience=1), fabric=fabric)
    torch.save({"state": best.state_dict(), "skipped": training.skipped}, f"{path}/alone-{rank}")


@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path):
    """Each batch is shared between them; without noise the gradients are those of one process."""
    launch_two(train_on_two, str(tmp_path))
    first, second = (torch.load(tmp_path / str(rank), weights_only=True) for rank in range(2))
    assert all(torch.equal(value, second["state"][key]) for key, value in first["state"].items())
    rows, validation = make_data()
    alone, training = fit(make_flow(), rows, validation, TINY)
    for key, value in alone.state_dict().items():
        torch.testing.assert_close(first["state"][key], value, atol=1e-4, rtol=1e-3)
    scores = [entry["validation"] for entry in first["history"]]
    assert scores == pytest.approx([entry["validation"] for entry in training.history], abs=1e-4)
    # A kernel that refuses the batch of one process makes both skip the step, and the schedule is the same in both.
    first, second = (torch.load(tmp_path / f"alone-{rank}", weights_only=True) for rank in range(2))
    assert first["skipped"] == second["skipped"] == 1
    assert all(torch.equal(value, second["state"][key]) for key, value in first["state"].items())


def list_rates(recipe, steps):
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=recipe.learning_rate)
    scheduler = recipe.make_scheduler(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_learning_rate_schedules():
    step = list_rates(Recipe(learning_rate=1.0, schedule="step", halve_every=3), 7)
    assert step == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]
    recipe = Recipe(
        learning_rate=1.0, schedule="warmup-exponential", warmup_steps=4, hold_steps=6, gamma=0.5, min_learning_rate=0.2
    )
    assert list_rates(recipe, 11) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1, 0.5, 0.25, 0.2, 0.2])
    assert list_rates(Recipe(learning_rate=1.0, schedule="constant"), 3) == [1, 1, 1]
    assert list_rates(Recipe(learning_rate=1.0, schedule="cosine", max_steps=4), 4) == pytest.approx(
        [1, 0.5 + 0.125**0.5, 0.5, 0.5 - 0.125**0.5]
    )


@pytest.mark.parametrize("level", [-50.0, 0.0, 50.0])
def test_plateaus_do_not_depend_on_the_sign(level):
    """A likelihood that falls slowly, or stays the same, halves the rate; one that grows by little does not."""
    for slope, expected in [(-0.004, 0.25), (0.0, 0.25), (0.004, 1.0)]:
        optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        scheduler = Recipe(learning_rate=1.0, schedule="plateau", plateau_patience=5).make_scheduler(optimizer)
        for round_number in range(12):
            optimizer.step()
            scheduler.step(level + slope * round_number)
        assert optimizer.param_groups[0]["lr"] == expected


def test_a_plateau_has_a_threshold_and_a_floor():
    """Growth of less than the threshold does not count, and the rate stays at the floor."""
    recipe = Recipe(learning_rate=1.0, plateau_patience=2, plateau_threshold=1e-3, plateau_floor=0.3)
    for slope, expected in [(0.0002, 0.3), (0.002, 1.0)]:
        optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        scheduler = recipe.make_scheduler(optimizer)
        for round_number in range(12):
            optimizer.step()
            scheduler.step(slope * round_number)
        assert optimizer.param_groups[0]["lr"] == expected


def test_weight_decay_of_adam_is_part_of_the_gradient():
    """A step of Adam has the size of the learning rate, however small the decay; one of AdamW shrinks the weights.

    Biases are shrunk by Adam only, as in the paper.
    """
    moved = {}
    for optimizer in OPTIMIZERS:
        layer = torch.nn.Linear(2, 2)
        for parameter in layer.parameters():
            torch.nn.init.ones_(parameter)
            parameter.grad = torch.zeros_like(parameter)
        Recipe(learning_rate=0.1, weight_decay=0.01, optimizer=optimizer).make_optimizer(layer).step()
        moved[optimizer] = [1 - layer.weight[0, 0].item(), 1 - layer.bias[0].item()]
    shrunk = pytest.approx([0.001, 0], rel=1e-3)
    assert moved == {"adamw": shrunk, "muon": shrunk, "adam": pytest.approx([0.1, 0.1], rel=1e-3)}


def test_updates_of_muon_are_orthogonal():
    """The step of a matrix has the root mean square of `RMS` times the rate, in all directions; biases follow AdamW."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 12).double() for _ in range(2)]
    before = [layer.weight.detach().clone() for layer in layers]
    gradients = [torch.randn(12, 6).double() * 10.0**k for k in range(2)]  # the scale does not matter
    for layer, gradient in zip(layers, gradients, strict=True):
        layer.weight.grad, layer.bias.grad = gradient, torch.ones(12).double()
    flow = torch.nn.Sequential(*layers)
    bias = layers[0].bias.detach().clone()
    Recipe(learning_rate=0.1, optimizer="muon").make_optimizer(flow).step()
    for layer, start, gradient in zip(layers, before, gradients, strict=True):
        update = (start - layer.weight.detach()) / 0.1
        values = torch.linalg.svdvals(update) / (0.2 * 12**0.5)
        assert 0.4 < values.min() < values.max() < 1.6
        u, _, vh = torch.linalg.svd(gradient, full_matrices=False)
        nearest = u @ vh  # the nearest matrix with orthogonal columns
        assert (update * nearest).sum() / update.norm() / nearest.norm() > 0.85
    assert layers[0].bias.detach() == pytest.approx(bias - 0.1, rel=1e-6)


def test_the_size_of_a_gradient_does_not_matter():
    """The momentum of a layer that no longer has a gradient fades until its squares underflow."""
    torch.manual_seed(0)
    matrix = torch.randn(4, 8)
    for size in (1e-42, 1e-37, 1e-30, 1e-20, 1e18, 1e37):
        torch.testing.assert_close(orthogonalize(size * matrix), orthogonalize(matrix), atol=0.05, rtol=0)
    assert not orthogonalize(0 * matrix).any()


def test_updates_of_convolutions_are_orthogonal():
    """Each is that of the matrix with a row for each output, without the masked weights."""
    torch.manual_seed(0)
    masked = [MaskedConvolution(4, 8, groups) for groups in (1, 2, 2)]
    plain = torch.nn.Conv2d(6, 8, (2, 2))
    flow = torch.nn.ModuleList([*masked, plain]).double()
    before = copy.deepcopy(flow)
    for parameter in flow.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer = Recipe(learning_rate=0.1, optimizer="muon").make_optimizer(flow)
    assert [len(group["params"]) for group in optimizer.param_groups if group["orthogonal"]] == [4]
    optimizer.step()
    for layer, start in zip(flow, before, strict=True):
        gradient = copy.deepcopy(start)
        gradient.weight.data.copy_(layer.weight.grad)
        update, slope = _make_matrix(start) - _make_matrix(layer), _make_matrix(gradient)
        expected = orthogonalize(slope) * (slope != 0) * 0.1 * 0.2 * 24**0.5
        torch.testing.assert_close(update, expected)


def _make_matrix(layer):
    kernel = layer.make_kernel() if isinstance(layer, MaskedConvolution) else layer.weight
    return kernel.detach().permute(0, 2, 3, 1).flatten(1)


def test_networks_without_inputs_are_not_shrunk():
    """The shape of the first column is a network without inputs: decay would pull it towards arbitrary parameters."""
    flow = elflow.ELF(features=2, transforms=1, units=4, hidden_features=(8,), rank=2)
    decayed, others = Recipe(weight_decay=1.0).make_optimizer(flow).param_groups
    names = {id(parameter): name for name, parameter in flow.named_parameters()}
    assert all(names[id(parameter)].endswith("weight") for parameter in decayed["params"])
    assert any(names[id(parameter)].endswith("hyper.first") for parameter in others["params"])
    assert (decayed["weight_decay"], others["weight_decay"]) == (1.0, 0.0)


def test_early_rounds_are_validated():
    x = torch.randn(60, 2)
    recipe = Recipe(max_steps=25, round_steps=10, early_rounds=2, batch_size=20)
    _, training = fit(elflow.ELF(features=2, transforms=1, units=4, hidden_features=(8,)), x, x, recipe)
    assert [entry["step"] for entry in training.history] == [2, 5, 10, 20, 25]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0}, "learning_rate must be positive"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
        ({"halve_every": 0}, "halve_every must be at least 1"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be positive"),
        ({"schedule": "sawtooth"}, "schedule must be one of"),
        ({"time_limit": -1}, "time_limit must be positive"),
        ({"cooldown": 1.0}, r"cooldown must be in \[0, 1\), got 1.0"),
        ({"race_steps": 0}, "race_steps must be at least 1, got 0"),
        ({"ema_decay": 1.0}, r"ema_decay must be in \[0, 1\)"),
        ({"weight_decay": -1}, "weight_decay must not be negative"),
        ({"plateau_floor": -1}, "plateau_floor must not be negative"),
        ({"optimizer": "sgd"}, "optimizer must be one of"),
    ],
)
def test_bad_recipes(options, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**options)


def test_bad_image_recipe():
    with pytest.raises(ValueError, match="size must be one of"):
        image_recipe("large")


@pytest.mark.parametrize("changes", [{"stopped": "boredom"}, {"history": []}, {"seconds": "long"}, {"history": [{}]}])
def test_bad_records(changes):
    state = Training([{"step": 1}], 1.0, "patience").to_dict()
    with pytest.raises((ValueError, TypeError, KeyError)):
        Training.from_dict(state | changes)
