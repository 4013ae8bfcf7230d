"""The same scores and samples from any number of threads and processes, however these were started."""

import multiprocessing
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import elflow

pytestmark = pytest.mark.slow
TOLERANCE = 1e-9
"""Nats by which scores may differ: matrix products of other thread counts may add in another order."""


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    a = rng.normal(size=1600)
    return pd.DataFrame({"a": a, "b": a + rng.normal(size=1600), "n": rng.poisson(3, 1600)})


@pytest.fixture(scope="module")
def path(table, tmp_path_factory):
    path = tmp_path_factory.mktemp("concurrency") / "model.elf"
    options = {"transforms": 1, "units": 8, "hidden_features": (32,)}
    members = ["cholesky", "gaussian"]
    elflow.FlowDensity(max_steps=20, flow_options=options, members=members, random_state=0).fit(table).save(path)
    return path


@pytest.fixture(scope="module")
def density(path):
    return elflow.load(path)


@pytest.fixture(scope="module")
def expected(density, table):
    """Scores on one thread."""
    with threads(1):
        return density.score_samples(table)


class threads:  # noqa: N801
    """Context manager that sets the number of threads of torch."""

    def __init__(self, number):
        self.number = number

    def __enter__(self):
        self.before = torch.get_num_threads()
        torch.set_num_threads(self.number)

    def __exit__(self, *_):
        torch.set_num_threads(self.before)


def split(table, count):
    """Parts of a table with equal numbers of rows."""
    size = len(table) // count
    return [table[start : start + size] for start in range(0, len(table), size)]


def check(scores, expected):
    assert np.abs(np.concatenate(scores) - expected).max() < TOLERANCE


def score_part(part, path=None, density=None):
    """Scores of a part of a table by a worker, and the warnings that it issued."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scores = (elflow.load(path) if density is None else density).score_samples(part)
    return scores, [str(warning.message) for warning in caught], torch.get_num_threads()


@pytest.mark.parametrize("number", [2, 4, 16])
def test_threads_of_torch(density, table, expected, number):
    with threads(number):
        check([density.score_samples(table)], expected)


def test_threads_of_callers(density, table, expected):
    """Sixteen of them, on one and on two threads of torch."""
    parts = split(table, 16)
    first = density.sample(50, random_state=0)
    given = table[:20]
    cdf = density.conditional_cdf(given, "b")
    for number in (1, 2):
        with threads(number), ThreadPoolExecutor(16) as pool:
            check(list(pool.map(density.score_samples, parts)), expected)
            # The generator of torch belongs to the process; samples of one thread must not disturb another's.
            for sample in pool.map(lambda _: density.sample(50, random_state=0), range(16)):
                pd.testing.assert_frame_equal(sample, first)
            for other in pool.map(lambda _: density.conditional_cdf(given, "b"), range(4)):
                np.testing.assert_allclose(other, cdf, atol=TOLERANCE)


def test_spawned_workers(path, table, expected):
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(score_part, split(table, 2), [path] * 2))
    check([scores for scores, _, _ in results], expected)
    assert not any(messages for _, messages, _ in results)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_forked_workers_do_not_hang(density, table, expected):
    """Those of a process that has used several threads, as plain torch would: its threads do not survive a fork."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with threads(2):
        (torch.ones(1000, 1000) @ torch.ones(1000, 1000)).sum()  # starts the threads
        density.score_samples(table)
        process = context.Process(
            target=lambda: sender.send([score_part(part, density=density) for part in split(table, 2)])
        )
        process.start()
        assert receiver.poll(240), "the forked process hangs"
        results = receiver.recv()
        process.join()
        assert torch.get_num_threads() == 2
    check([scores for scores, _, _ in results], expected)
    (first, second) = (messages for _, messages, _ in results)
    assert len(first) == 1
    assert "this process was forked after torch may have started threads" in first[0]
    assert not second, "one warning is enough"
    assert [number for _, _, number in results] == [1, 1]


class Parts(Dataset):
    def __init__(self, density, table):
        self.density, self.parts = density, split(table, 4)

    def __len__(self):
        return len(self.parts)

    def __getitem__(self, index):
        return self.density.score_samples(self.parts[index])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:this process was forked:RuntimeWarning")
def test_data_loader(density, table, expected):
    with threads(2):
        loader = DataLoader(Parts(density, table), batch_size=None, num_workers=2, timeout=240)
        check([scores.numpy() if isinstance(scores, torch.Tensor) else scores for scores in loader], expected)


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_joblib(density, table, expected, backend):
    parts = split(table, 4)
    run = joblib.Parallel(n_jobs=2, backend=backend)
    check(run(joblib.delayed(density.score_samples)(part) for part in parts), expected)
