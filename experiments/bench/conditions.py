"""Conditional distributions of any columns given any others, against densities whose conditionals are known.

Three tables: a Gaussian of ten columns, a mixture of four Gaussians of five columns, and a Bayesian network of two
categories and three numbers, whose conditionals follow by enumeration. The error of the fitted density, from many
points, is reported beside the error of sampling, which is the difference between few points and many, and beside the
error of the true family of densities with parameters estimated from as many rows.

A fourth job measures the time of imputation and of conditional quantiles, on a table of ten columns whose relations are
not Gaussian.
"""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats
from scipy.special import logsumexp
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import cross_val_score

from elflow.tabular import FlowDensity
from experiments.framework.experiment import Experiment, Job, Option, Plan, Record, Report, Table
from experiments.framework.options import parse_choices

__all__ = ["EXPERIMENT"]

N_ROWS, N_QUERIES, N_SAMPLES = 10_000, 20, 5_000
PATTERNS = (1, 3, 7)
"""Numbers of unknown columns."""
MAX_CDF_ERROR, MAX_C2ST = 0.02, 0.53
N_POINTS, N_REFERENCE_POINTS = 1024, 2**14
"""Number of points of an answer, and of the reference that has the error of the density alone."""
SETS_PATTERN = "3, range and set"
"""Pattern with three unknown columns, a range of a number and, if there are categories, a set of two categories."""
N_SPEED_ROWS, N_SPEED_STEPS = 1_000, 200
SPEED_THREADS, N_REPETITIONS = (1, 2), 3
PARTS = ["gaussian", "mixture", "network", "speed"]
"""The known densities, and the measurement of time."""


@dataclass(frozen=True)
class Truth:
    """Mixture of Gaussians over numbers, with a combination of categories for each component.

    Example:
        >>> truth = make_truth("network")
        >>> truth.sample(3, np.random.default_rng(0)).columns.tolist()
        ['k', 'm', 'a', 'b', 'c']
    """

    log_weight: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    categories: tuple[tuple[str, ...], ...] = ()
    """Categories of each component."""

    @property
    def names(self) -> list[str]:
        labels = ["k", "m"][: len(self.categories[0]) if self.categories else 0]
        return labels + list("abcdefghij"[: self.mean.shape[1]])

    def sample(self, n: int, rng: np.random.Generator) -> pd.DataFrame:
        """Rows of the density."""
        component = rng.choice(len(self.log_weight), n, p=np.exp(self.log_weight - logsumexp(self.log_weight)))
        roots = np.linalg.cholesky(self.covariance)
        noise = rng.normal(size=(n, self.mean.shape[1]))
        numbers = self.mean[component] + np.einsum("nij,nj->ni", roots[component], noise)
        frame = pd.DataFrame(numbers, columns=self.names[-self.mean.shape[1] :])
        for k in reversed(range(len(self.categories[0]) if self.categories else 0)):
            frame.insert(0, self.names[k], np.array([c[k] for c in self.categories])[component])
        return frame

    def estimate(self, n: int, rng: np.random.Generator) -> Truth:
        """The same mixture with weights, means and covariances estimated from `n` rows with known components.

        No estimate that has to find out the family from the rows can be expected to be better.
        """
        count = rng.multinomial(n, np.exp(self.log_weight - logsumexp(self.log_weight)))
        parts = [rng.multivariate_normal(*part) for part in zip(self.mean, self.covariance, count, strict=True)]
        mean, covariance = np.stack([x.mean(0) for x in parts]), np.stack([np.cov(x.T) for x in parts])
        return Truth(np.log(count / n), mean, covariance, self.categories)

    def condition(self, known: dict[str, Any]) -> Truth:
        """The density of the numbers that are not known; components that contradict known categories are left out.

        A category may be known up to a list.
        """
        labels = self.names[: len(self.names) - self.mean.shape[1]]
        numbers = self.names[len(labels) :]
        allowed = {n: v if isinstance(v, list) else [v] for n, v in known.items() if n in labels}
        agrees = [all(c in allowed.get(n, [c]) for n, c in zip(labels, cs, strict=True)) for cs in self.categories]
        fits = np.array(agrees or [True] * len(self.mean))
        given = [i for i, name in enumerate(numbers) if name in known]
        rest = [i for i in range(len(numbers)) if i not in given]
        value = np.array([known[numbers[i]] for i in given], float)
        log_weight, mean, covariance = self.log_weight[fits].copy(), [], []
        for k, (m, c) in enumerate(zip(self.mean[fits], self.covariance[fits], strict=True)):
            if given:
                log_weight[k] += stats.multivariate_normal(m[given], c[np.ix_(given, given)]).logpdf(value)
                gain = c[np.ix_(rest, given)] @ np.linalg.inv(c[np.ix_(given, given)])
                mean.append(m[rest] + gain @ (value - m[given]))
                covariance.append(c[np.ix_(rest, rest)] - gain @ c[np.ix_(given, rest)])
            else:
                mean.append(m)
                covariance.append(c)
        kept = tuple(cs for cs, fit in zip(self.categories, fits, strict=True) if fit) if self.categories else ()
        return Truth(log_weight - logsumexp(log_weight), np.array(mean), np.array(covariance), kept)

    def cdf(self, at: int, values: np.ndarray, within: tuple[int, float, float] | None = None) -> np.ndarray:
        """Distribution function of number `at` at values, `(K,)`, possibly given that another number is in a range."""
        weight = np.exp(self.log_weight)[:, None]
        if within is None:
            scaled = (values - self.mean[:, at, None]) / np.sqrt(self.covariance[:, at, at, None])
            return (weight * stats.norm.cdf(scaled)).sum(0)
        other, low, high = within
        joint, total = np.zeros(len(values)), 0.0
        for w, mean, covariance in zip(weight[:, 0], self.mean, self.covariance, strict=True):
            both = stats.multivariate_normal(mean[[at, other]], covariance[np.ix_([at, other], [at, other])])
            upper, lower = (both.cdf(np.stack([values, np.full(len(values), end)], 1)) for end in (high, low))
            joint += w * (upper - lower)
            ends = stats.norm(mean[other], np.sqrt(covariance[other, other])).cdf([low, high])
            total += w * (ends[1] - ends[0])
        return joint / total


def make_truth(name: str) -> Truth:
    """One of the three known densities: `"gaussian"`, `"mixture"` or `"network"`."""
    rng = np.random.default_rng(7)
    if name == "gaussian":
        root = rng.normal(size=(10, 10)) / 3 + 0.5 * np.eye(10)
        return Truth(np.zeros(1), np.zeros((1, 10)), (root @ root.T)[None])
    if name == "mixture":
        roots = rng.normal(size=(4, 5, 5)) * 0.4 + 0.3 * np.eye(5)
        return Truth(np.log([0.4, 0.3, 0.2, 0.1]), rng.normal(size=(4, 5)) * 1.5, roots @ roots.transpose(0, 2, 1))
    # k -> m, (a | k), (b | a, m), (c | a, k): given the categories, the numbers are Gaussian.
    log_weight, mean, covariance, categories = [], [], [], []
    for (i, k), (j, m) in itertools.product(enumerate("xyz"), enumerate("uv")):
        log_weight.append(np.log([0.5, 0.3, 0.2][i]) + np.log([[0.8, 0.2], [0.4, 0.6], [0.5, 0.5]][i][j]))
        a, slope_b, slope_c = [-1.0, 0.5, 2.0][i], [1.0, -1.0][j], [0.5, 0.0, -0.5][i]
        mean.append([a, slope_b * a + j, slope_c * a - i])
        factor = np.array([[0.6, 0, 0], [0.6 * slope_b, 0.5, 0], [0.6 * slope_c, 0, 0.4]])
        covariance.append(factor @ factor.T)
        categories.append((k, m))
    return Truth(np.array(log_weight), np.array(mean), np.array(covariance), tuple(categories))


def jobs(plan: Plan) -> list[Job]:
    settings = {"rows": plan.scaled(N_ROWS), "max_steps": plan.options.get("max_steps")}
    settings |= {"samples": plan.scaled(N_SAMPLES), "queries": plan.scaled(N_QUERIES), "seed": plan.seed}
    accuracy = [Job(name, {"truth": name, **settings}) for name in PARTS if name != "speed"]
    speed = {"rows": plan.scaled(N_SPEED_ROWS), "max_steps": plan.scaled(N_SPEED_STEPS), "seed": plan.seed}
    chosen = plan.options.get("parts", PARTS)
    return [job for job in [*accuracy, Job("speed", {"truth": None, **speed}, exclusive=True)] if job.key in chosen]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """Errors of conditional distribution functions and two-sample tests of conditional samples, or times."""
    if settings["truth"] is None:
        return _measure_speed(settings)
    truth, rng = make_truth(settings["truth"]), np.random.default_rng(settings["seed"])
    density = FlowDensity(random_state=settings["seed"], max_steps=settings["max_steps"])
    density.fit(truth.sample(settings["rows"], rng))
    record: Record = {"truth": settings["truth"], "threads": torch.get_num_threads(), "patterns": {}}
    for n_unknown in PATTERNS:
        if n_unknown < len(truth.names):
            found = _measure_pattern(truth, density, n_unknown, False, settings, rng)
            found["c2st"] = _compare_samples(truth, density, n_unknown, settings["samples"], rng)
            record["patterns"][str(n_unknown)] = found
    n_unknown = min(3, truth.mean.shape[1] - 1)  # one number has a range
    record["patterns"][SETS_PATTERN] = _measure_pattern(truth, density, n_unknown, True, settings, rng)
    return record


def _measure_speed(settings: Record) -> Record:
    """Times of imputation with three of ten cells missing and of conditional answers, on one thread and on two."""
    rng, count = np.random.default_rng(settings["seed"]), settings["rows"]
    x = rng.normal(size=(5 * count, 10))
    for k in range(1, 10):
        x[:, k] = 0.6 * x[:, k] + np.sin(2 * x[:, k - 1]) + 0.3 * x[:, k - 1] ** 2
    table = pd.DataFrame(x, columns=list("abcdefghij"))
    density = FlowDensity(random_state=settings["seed"], max_steps=settings["max_steps"]).fit(table[count:])
    rows = table[:count]
    holes = rows.mask(np.argsort(rng.random(rows.shape), 1) < 3)
    density.score_samples(rows)  # compiles the density
    questions: dict[str, Callable[[], object]] = {
        "impute": lambda: density.impute(holes, random_state=0),
        "quantile": lambda: density.conditional_quantile(rows, "e", [0.05, 0.5, 0.95]),
        "cdf": lambda: density.conditional_cdf(rows, "e"),
    }
    record: Record = {"rows": count, "members": density.options_["members"], "load": os.getloadavg()[0], "times": {}}
    for threads in SPEED_THREADS:
        torch.set_num_threads(threads)
        record["times"][str(threads)] = {name: _measure_seconds(ask) for name, ask in questions.items()}
    torch.set_num_threads(1)
    return record


def _measure_seconds(ask: Callable[[], object]) -> dict[str, float]:
    """Wall-clock seconds and CPU seconds of a call: those of the quickest of a few."""
    times = []
    for _ in range(N_REPETITIONS):
        wall, cpu = time.perf_counter(), time.process_time()
        ask()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    return dict(zip(("wall", "cpu"), min(times), strict=True))


def _measure_pattern(
    truth: Truth, density: FlowDensity, n_unknown: int, with_sets: bool, settings: Record, rng: np.random.Generator
) -> Record:
    """Errors for random sets of unknown columns."""
    errors, of_density, of_sampling, of_family, sizes, seconds = [], [], [], [], [], 0.0
    estimate = truth.estimate(settings["rows"], np.random.default_rng(settings["seed"] + 1))
    rows = truth.sample(settings["queries"], rng)
    n_labels = len(truth.names) - truth.mean.shape[1]
    labels, numbers = truth.names[:n_labels], truth.names[n_labels:]
    for k in range(len(rows)):
        name = numbers[rng.integers(len(numbers))]
        unknown = [name, *rng.permutation([n for n in truth.names if n != name])[: n_unknown - 1].tolist()]
        known: dict[str, Any] = {n: rows[n][k] for n in truth.names if n not in unknown}
        ranged = next((n for n in known if n in numbers), None) if with_sets else None
        conditions = dict(known)
        if with_sets and (label := next((n for n in known if n in labels), None)):
            others = sorted({c[labels.index(label)] for c in truth.categories} - {known[label]})
            known[label] = conditions[label] = [known[label], others[0]]
        if ranged is not None:
            value = known.pop(ranged)
            conditions[ranged] = (value - 0.4, value + 0.6)
        exact = truth.condition(known)
        free = [n for n in numbers if n not in known]
        at, within = free.index(name), None
        values = exact.sample(4000, rng)[exact.names[-len(free) :]].to_numpy(float)
        if ranged is not None:
            within = (free.index(ranged), *conditions[ranged])
            inside = (values[:, within[0]] >= within[1]) & (values[:, within[0]] <= within[2])
            values = values[inside] if inside.sum() >= 20 else values
        grid = np.quantile(values[:, at], np.arange(0.05, 1, 0.1))
        expected = exact.cdf(at, grid, within)
        start = time.process_time()
        distribution = density.conditional(None, name, given=conditions, n_points=N_POINTS)
        seconds += time.process_time() - start
        reference = density.conditional(None, name, given=conditions, n_points=N_REFERENCE_POINTS)
        found, limit = (np.array([d.cdf(pd.Series([v]))[0] for v in grid]) for d in (distribution, reference))
        errors.append(np.abs(found - expected).max())
        of_density.append(np.abs(limit - expected).max())
        of_sampling.append(np.abs(found - limit).max())
        of_family.append(np.abs(estimate.condition(known).cdf(at, grid, within) - expected).max())
        assert distribution.effective_sample_size is not None
        sizes.append(distribution.effective_sample_size[0])
    return {
        "mean_error": float(np.mean(errors)),
        "largest_error": float(np.max(errors)),
        "share_within": float(np.mean(np.array(errors) <= MAX_CDF_ERROR)),
        "error_of_density": float(np.mean(of_density)),
        "error_of_sampling": float(np.mean(of_sampling)),
        "error_of_family": float(np.mean(of_family)),
        "effective_sample_size": float(np.median(sizes)),
        "cpu_seconds_per_row": seconds / len(rows),
    }


def _compare_samples(truth: Truth, density: FlowDensity, n_unknown: int, n: int, rng: np.random.Generator) -> float:
    """Accuracy of a classifier between conditional samples and those of the truth: 0.5 if they agree."""
    numbers = truth.names[len(truth.names) - truth.mean.shape[1] :]
    unknown = rng.permutation(numbers)[: min(n_unknown, len(numbers))].tolist()
    row = truth.sample(1, rng)
    known = {name: row[name][0] for name in truth.names if name not in unknown}
    exact = truth.condition(known).sample(n, rng)
    exact = exact[exact.columns[-len(unknown) :]].set_axis([n for n in numbers if n in unknown], axis=1)
    drawn = density.sample(n, given=known, random_state=0)[list(exact.columns)]
    both = np.concatenate([exact.to_numpy(float), drawn.to_numpy(float)])
    label = np.repeat([0, 1], n)
    classifier = HistGradientBoostingClassifier(max_iter=60, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        order = rng.permutation(2 * n)
        return float(cross_val_score(classifier, both[order], label[order], cv=3).mean())


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    rows, speed, n_good, n_all = [], [], 0, 0
    for record in records.values():
        if "patterns" not in record:
            speed += _list_times(record)
            continue
        for pattern, found in record["patterns"].items():
            c2st = found.get("c2st")
            n_good += found["mean_error"] <= MAX_CDF_ERROR and (c2st is None or c2st <= MAX_C2ST)
            n_all += 1
            parts = ("mean_error", "error_of_density", "error_of_sampling", "error_of_family", "largest_error")
            errors = [f"{found[name]:.4f}" for name in parts]
            rest = [f"{100 * found['share_within']:.0f} %", f"{found['effective_sample_size']:.0f}"]
            rest += ["-" if c2st is None else f"{c2st:.3f}", f"{found['cpu_seconds_per_row']:.3f}"]
            rows.append([record["truth"], pattern, *errors, *rest])
    columns = ["density", "unknown", "error", "of the density", "of sampling", "of the true family", "largest error"]
    columns += ["within 0.02", "sample size", "C2ST", "CPU s a row"]
    note = (
        "Error: largest deviation of the conditional distribution function of one unknown column from the exact one, "
        "over ten values; its mean, maximum and share within 0.02 over rows with random unknown columns. Of the "
        f"density: the same with {N_REFERENCE_POINTS:,} points; of sampling: difference between {N_POINTS:,} points "
        "and these; of the true family: that of the true mixture with parameters estimated from as many rows. "
        "C2ST: accuracy of a classifier between conditional samples and exact ones."
    )
    text = f"Mean error at most {MAX_CDF_ERROR} and C2ST at most {MAX_C2ST} in {n_good} of {n_all} cases."
    headers = ["threads", "time", "imputation of 3 of 10 cells, s", "quantiles given 9 columns, rows/s"]
    headers += ["distribution function given 9 columns, rows/s"]
    note_speed = f"Quickest of {N_REPETITIONS} calls with {N_SPEED_ROWS:,} rows each."
    tables = [
        Table("Conditional distributions against the truth", columns, rows, note),
        Table("Speed", headers, speed, note_speed),
    ]
    return Report(text if n_all else "", [table for table in tables if table.rows])


def _list_times(record: Record) -> list[list[str]]:
    """Rows of the table of times."""
    rows = []
    for (threads, times), (name, title) in itertools.product(
        record["times"].items(), (("wall", "wall clock"), ("cpu", "CPU"))
    ):
        rates = [f"{record['rows'] / times[question][name]:,.0f}" for question in ("quantile", "cdf")]
        rows.append([threads, title, f"{times['impute'][name]:.2f}", *rates])
    return rows


EXPERIMENT = Experiment(
    "conditions",
    "Conditional distributions against known densities",
    jobs,
    work,
    report,
    options={
        "max_steps": Option(int, "training steps (default: that of FlowDensity)"),
        "parts": Option(parse_choices(PARTS), f"known densities, and speed (default: {','.join(PARTS)})"),
    },
)
