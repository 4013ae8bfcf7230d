"""Training on Lightning: any flow, exact resume, the best weights, schedules, limits and the guard."""

import csv
import math
import os
import warnings
from dataclasses import replace

import pytest
import torch
import zuko
from torch.optim import SGD

import elflow
from elflow.training import Recipe, Rows, fit
from elflow.training.batches import Batches
from elflow.training.module import FlowModule
from elflow.training.recipe import SCHEDULES

TINY = Recipe(max_steps=40, round_steps=10, batch_size=64)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def data(count=600, features=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator)
    x[:, 0] += x[:, -1] ** 2
    return Rows(x[: count * 5 // 6]), Rows(x[count * 5 // 6 :])


def small(**options):
    torch.manual_seed(0)
    return elflow.ELF(2, transforms=1, units=4, hidden_features=(8,), **options)


def same(a, b):
    return all(torch.equal(value, b.state_dict()[key]) for key, value in a.state_dict().items())


@pytest.mark.parametrize("kind", [elflow.ELF, zuko.flows.NSF, zuko.flows.MAF, zuko.flows.NICE, zuko.flows.NAF])
def test_every_flow_learns(kind):
    torch.manual_seed(0)
    rows, held_out = data()
    flow = kind(features=2)
    before = -flow().log_prob(held_out.x).mean().item()
    best, training = fit(flow, rows, held_out, Recipe(max_steps=60, round_steps=20, batch_size=64))
    assert not best.training
    assert -best().log_prob(held_out.x).mean().item() < before
    assert [entry["step"] for entry in training.history] == [20, 40, 60]
    assert training.stopped == "max_steps"


def test_after_each_round_it_is_told_and_may_draw_what_it_likes():
    rows, held_out = data()
    seen = []

    def look(flow, entry):
        assert not flow.training
        torch.rand(100)
        seen.append((entry["step"], float(flow().log_prob(held_out.x).mean().detach())))

    quiet, _ = fit(small(), rows, held_out, TINY)
    told, training = fit(small(), rows, held_out, TINY, after_round=look)
    assert [step for step, _ in seen] == [10, 20, 30, 40]
    assert [score for _, score in seen] == pytest.approx([entry["validation"] for entry in training.history], abs=1e-4)
    assert same(quiet, told)


def test_the_flow_that_is_given_stays_as_it_is():
    flow = small()
    state = {key: value.clone() for key, value in flow.state_dict().items()}
    fit(flow, *data(), TINY)
    assert all(torch.equal(value, state[key]) for key, value in flow.state_dict().items())


def test_the_held_out_likelihood_is_that_of_the_weights_returned():
    rows, held_out = data()
    best, training = fit(small(), rows, held_out, TINY)
    score = best().log_prob(held_out.x).mean().item()
    assert score == pytest.approx(max(entry["validation"] for entry in training.history), abs=1e-5)


def test_same_seed_same_weights_and_other_seed_others():
    rows, held_out = data()
    runs = [fit(small(), rows, held_out, TINY, seed=seed)[0] for seed in (1, 1, 2)]
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


def test_random_numbers_of_the_caller_are_left_alone():
    flow = small()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit(flow, *data(), TINY)
    assert torch.equal(torch.rand(3), expected)


class CrashError(Exception):
    pass


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("crash", [3, 10, 27])
def test_resume_is_exact(schedule, crash, tmp_path, monkeypatch):
    rows, held_out = data()
    recipe = Recipe(
        max_steps=45,
        round_steps=10,
        batch_size=64,
        schedule=schedule,
        halve_every=15,
        warmup_steps=5,
        plateau_patience=1,
    )
    whole, _ = fit(small(), rows, held_out, recipe)
    step = FlowModule.training_step

    def crashing(self, batch, index):
        if self.steps == crash:
            raise CrashError
        return step(self, batch, index)

    path = tmp_path / "checkpoint"
    monkeypatch.setattr(FlowModule, "training_step", crashing)
    with pytest.raises(CrashError):
        fit(small(), rows, held_out, recipe, checkpoint=path)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == (["checkpoint"] if crash >= 10 else [])
    resumed, training = fit(small(), rows, held_out, recipe, checkpoint=path)
    assert same(resumed, whole)
    assert [entry["step"] for entry in training.history] == [10, 20, 30, 40, 45]
    finished, _ = fit(small(), rows, held_out, recipe, checkpoint=path)
    assert same(finished, whole)


def test_early_stopping_resumes_as_stopped(tmp_path):
    """A training that had run out of patience does not go on when it is resumed."""
    rows, held_out = data(60)
    recipe = Recipe(learning_rate=0.05, max_steps=2000, round_steps=10, batch_size=16, patience=2)
    best, training = fit(small(), rows, held_out, recipe, checkpoint=tmp_path / "c")
    assert training.stopped == "patience"
    scores = [entry["validation"] for entry in training.history]
    assert len(scores) - 1 - scores.index(max(scores)) == 2
    again, second = fit(small(), rows, held_out, recipe, checkpoint=tmp_path / "c")
    assert same(best, again)
    assert second.history == training.history


def test_checkpoints_of_others_are_refused(tmp_path):
    rows, held_out = data()
    fit(small(), rows, held_out, TINY, checkpoint=tmp_path / "c", fingerprint="one")
    with pytest.raises(ValueError, match="checkpoint must be of the same data"):
        fit(small(), rows, held_out, TINY, checkpoint=tmp_path / "c", fingerprint="two")
    (tmp_path / "d").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="checkpoint must be one that elflow wrote"):
        fit(small(), rows, held_out, TINY, checkpoint=tmp_path / "d")


def test_time_limit_keeps_what_there_is():
    best, training = fit(small(), *data(), Recipe(max_steps=100_000, round_steps=5_000, batch_size=64, time_limit=1.0))
    assert training.stopped == "time_limit"
    assert training.seconds < 30
    assert math.isfinite(training.history[-1]["validation"])
    assert not best.training


def test_a_step_that_is_not_finite_is_skipped_and_reported(monkeypatch):
    import elflow.training.module as module

    real = module.likelihood

    def broken(flow, batch):
        total, weight = real(flow, batch)
        broken.count += flow.training
        return (total * float("nan"), weight) if flow.training and broken.count == 5 else (total, weight)

    broken.count = 0
    monkeypatch.setattr(module, "likelihood", broken)
    with pytest.warns(RuntimeWarning, match="loss was nan .* at step 5: it is skipped and the rate halved"):
        best, training = fit(small(), *data(), TINY)
    assert training.skipped == 1
    assert training.history[-1]["learning_rate"] == pytest.approx(TINY.learning_rate / 2)
    assert all(torch.isfinite(p).all() for p in best.parameters())


def test_training_gives_up_when_nothing_is_finite():
    class Broken(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def forward(self, c=None):
            return self

        def log_prob(self, x):
            return x.sum(-1) * self.weight * float("inf")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(FloatingPointError, match="lower the rate"):
            fit(Broken(), *data(), TINY)


def test_logs(tmp_path):
    fit(small(), *data(), TINY, log=tmp_path)
    with open(next(tmp_path.glob("csv/*/metrics.csv"))) as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    assert {"validation", "training", "learning_rate"} <= set(rows[0])
    assert list(tmp_path.glob("tensorboard/*/events*"))


def test_progress_shows_likelihoods(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    fit(small(), *data(), TINY, progress=True)
    assert "nats" in capsys.readouterr().err


def test_context_and_weights():
    """Rows of weight zero have no say."""
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
    batches = [batch.x for batch in Batches(rows, 5, lambda: range(4), seed=3)]
    assert all(len(batch) == 5 for batch in batches)
    assert sorted(torch.cat(batches[:2]).flatten().tolist()) == list(range(10))
    later = [batch.x for batch in Batches(rows, 5, lambda: range(2, 4), seed=3)]
    assert torch.equal(torch.cat(later), torch.cat(batches[2:]))
    assert not torch.equal(torch.cat(batches[:2]), torch.cat(batches[2:]))


def rates(recipe, steps):
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=recipe.learning_rate)
    scheduler = recipe.scheduler(optimizer)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_schedules_of_the_paper():
    step = rates(Recipe(learning_rate=1.0, schedule="step", halve_every=3), 7)
    assert step == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]
    recipe = Recipe(
        learning_rate=1.0, schedule="warmup-exponential", warmup_steps=4, hold_steps=6, gamma=0.5, min_learning_rate=0.2
    )
    assert rates(recipe, 11) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1, 0.5, 0.25, 0.2, 0.2])
    assert rates(Recipe(learning_rate=1.0, schedule="constant"), 3) == [1, 1, 1]
    assert rates(Recipe(learning_rate=1.0, schedule="cosine", max_steps=4), 4) == pytest.approx(
        [1, 0.5 + 0.125**0.5, 0.5, 0.5 - 0.125**0.5]
    )


@pytest.mark.parametrize("level", [-50.0, 0.0, 50.0])
def test_plateaus_are_seen_whatever_the_sign(level):
    """A likelihood that falls slowly, or stands still, halves the rate; one that grows by little does not."""
    for slope, expected in [(-0.004, 0.25), (0.0, 0.25), (0.004, 1.0)]:
        optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        scheduler = Recipe(learning_rate=1.0, schedule="plateau", plateau_patience=5).scheduler(optimizer)
        for round_number in range(12):
            optimizer.step()
            scheduler.step(level + slope * round_number)
        assert optimizer.param_groups[0]["lr"] == expected


def test_more_time_goes_on(tmp_path):
    rows, held_out = data()
    recipe = Recipe(max_steps=60, round_steps=20, batch_size=64)
    short = replace(recipe, time_limit=1e-3)
    _, first = fit(small(), rows, held_out, short, checkpoint=tmp_path / "c")
    assert first.stopped == "time_limit"
    _, second = fit(small(), rows, held_out, recipe, checkpoint=tmp_path / "c")
    assert second.stopped == "max_steps"
    assert second.history[-1]["step"] == 60


def test_a_held_out_likelihood_that_is_not_finite_is_reported(monkeypatch):
    import elflow.training.module as module

    real = module.likelihood

    def broken(flow, batch):
        total, weight = real(flow, batch)
        broken.rounds += not flow.training
        return (total * float("nan"), weight) if not flow.training and broken.rounds == 2 else (total, weight)

    broken.rounds = 0
    monkeypatch.setattr(module, "likelihood", broken)
    with pytest.warns(RuntimeWarning, match="held-out likelihood is nan after step 20"):
        _, training = fit(small(), *data(), TINY)
    assert training.stopped == "max_steps"
    assert len(training.history) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0}, "learning_rate must be positive"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"schedule": "sawtooth"}, "schedule must be one of"),
        ({"time_limit": -1}, "time_limit must be positive"),
        ({"ema_decay": 1.0}, r"ema_decay must be in \[0, 1\)"),
        ({"weight_decay": -1}, "weight_decay must not be negative"),
    ],
)
def test_bad_recipes(options, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**options)
