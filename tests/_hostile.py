"""Seeded generator of hostile tables, and an attack on `FlowDensity` with one of them.

    python tests/_hostile.py 1000 --first 0            # 1,000 tables with fits of two steps
    python tests/_hostile.py 20000 --schema            # columns only: encoded and decoded, without flows

Every table must give an error that a user can understand, or numbers that are right: finite log-densities of the fitted
rows, samples of the same columns and dtypes, probabilities in [0, 1].
"""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import fractions
import traceback
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa

import elflow
from elflow.tabular import Schema

SMALL = {"transforms": 1, "units": 4, "hidden_features": (8,)}
"""Arguments of a flow that is built and trained at once."""
FLOAT = np.finfo(np.float64)


def scaled_normal(rng, n):
    with np.errstate(over="ignore", under="ignore"):
        return np.clip(rng.normal(size=n) * 10.0 ** rng.uniform(-320, 308), FLOAT.min, FLOAT.max)


def shifted_normal(rng, n):
    with np.errstate(over="ignore", under="ignore"):
        return 10.0 ** rng.uniform(-20, 300) + 10.0 ** rng.uniform(-300, 300) * rng.normal(size=n)


def with_values(rng, x, values, share=0.2):
    """Replace some of the numbers."""
    x = np.array(x, np.float64)
    where = rng.random(len(x)) < share
    x[where] = rng.choice(values, where.sum())
    return x


NUMBERS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "scaled": scaled_normal,
    "shifted": shifted_normal,
    "largest": lambda rng, n: rng.uniform(0.5, 1, n) * 1.7e308,
    "largest, both signs": lambda rng, n: rng.uniform(-1, 1, n) * FLOAT.max,
    "subnormal": lambda rng, n: rng.integers(-50, 50, n) * FLOAT.smallest_subnormal,
    "smallest": lambda rng, n: rng.normal(size=n) * FLOAT.tiny,
    "extremes": lambda rng, n: rng.choice([0.0, -0.0, FLOAT.max, FLOAT.min, FLOAT.tiny, 1.0, 1e-320], n),
    "all magnitudes": lambda rng, n: rng.choice([-1, 1], n) * 10.0 ** rng.uniform(-307, 308, n),
    "neighbouring floats": lambda rng, n: 1.0 + rng.integers(0, 40, n) * FLOAT.eps,
    "neighbouring large floats": lambda rng, n: 1e16 + 2.0 * rng.integers(0, 40, n),
    "heavy tails": lambda rng, n: np.clip(rng.standard_cauchy(n) ** 9, FLOAT.min, FLOAT.max),
    "lognormal": lambda rng, n: np.clip(rng.lognormal(sigma=rng.uniform(1, 200), size=n), 0, FLOAT.max),
    "fill values": lambda rng, n: with_values(rng, rng.normal(size=n), [1e20, 1e36, -999.0, 9999.0, 1e300], 0.1),
    "one outlier": lambda rng, n: np.append(rng.normal(size=n - 1), rng.choice([1e13, 1e300, -1e300, FLOAT.max])),
    "infinite": lambda rng, n: with_values(rng, rng.normal(size=n), [np.inf, -np.inf]),
    "missing": lambda rng, n: with_values(rng, rng.normal(size=n), [np.nan], rng.choice([0.1, 0.5, 0.95])),
    "all missing": lambda rng, n: np.full(n, np.nan),
    "constant": lambda rng, n: np.full(n, rng.choice([0.0, -0.0, 1e308, 5e-324, 0.1, -1e-300])),
    "two values": lambda rng, n: rng.choice(rng.normal(size=2) * 10.0 ** rng.uniform(-300, 300), n),
    "zeros": lambda rng, n: with_values(rng, rng.lognormal(size=n), [0.0], 0.6),
    "atoms": lambda rng, n: with_values(rng, rng.normal(size=n) * 1e300, [0.0, 1e300, -1e300], 0.5),
    "clipped": lambda rng, n: np.clip(rng.normal(size=n), -1, 1),
    "clusters": lambda rng, n: rng.choice([0.0, 1e9, -1e300, 1e15], n) + rng.normal(size=n),
    "thirds": lambda rng, n: rng.integers(-10, 10, n) / 3,
    "cents": lambda rng, n: np.round(rng.lognormal(10, 2, n), 2),
    "fine grid": lambda rng, n: rng.integers(0, 10**9, n) * 1e-12,
    "unit interval": lambda rng, n: with_values(rng, rng.beta(0.1, 0.1, n), [0.0, 1.0], 0.1),
    "float16": lambda rng, n: (rng.normal(size=n) * 3e4).clip(-65504, 65504).astype(np.float16),
    "float32": lambda rng, n: (rng.normal(size=n) * 1e38).clip(-3.4e38, 3.4e38).astype(np.float32),
    "long double": lambda rng, n: rng.normal(size=n).astype(np.longdouble) * np.longdouble("1e400"),
    "complex": lambda rng, n: rng.normal(size=n) + 1j,
}
INTEGERS = {
    "counts": lambda rng, n: rng.poisson(rng.choice([0.1, 3, 1000]), n),
    "bytes": lambda rng, n: rng.integers(-128, 128, n).astype(np.int8),
    "unsigned": lambda rng, n: rng.integers(0, 2**16, n).astype(np.uint16),
    "64 bits": lambda rng, n: rng.integers(-(2**63), 2**63 - 1, n),
    "unsigned 64 bits": lambda rng, n: rng.integers(0, 2**64 - 1, n, dtype=np.uint64),
    "ends": lambda rng, n: rng.choice(np.array([-(2**63), 2**63 - 1, 0, 1]), n),
    "near 2**53": lambda rng, n: 2**53 + rng.integers(-40, 40, n),
    "row numbers": lambda rng, n: np.arange(n) * rng.integers(1, 2**40),
    "nullable": lambda rng, n: pd.array(np.where(rng.random(n) < 0.2, None, rng.integers(0, 9, n)), dtype="Int64"),
    "nullable, 64 bits": lambda rng, n: pd.array(
        [None, 2**63 - 1, *rng.integers(-(2**62), 2**62, n - 2)], dtype="Int64"
    ),
    "huge objects": lambda rng, n: [int(k) * 10**30 for k in rng.integers(-9, 9, n)],
    "huger objects": lambda rng, n: [int(k) * 10**400 for k in rng.integers(-9, 9, n)],
    "some huge objects": lambda rng, n: [*map(int, rng.integers(-9, 9, n - 1)), 10**30],
}
TEXTS = [
    "",
    " ",
    "\0",
    "a\nb",
    "=1+1",
    "<script>alert(1)</script>",
    "\u202eabc",
    "\U0001f600",
    "nan",
    "é",
    "1e400",
    "x" * 5000,
]
OBJECTS = {
    "text": lambda rng, n: rng.choice(TEXTS, n).tolist(),
    "surrogates": lambda rng, n: pd.Series(rng.choice(np.array(["\ud800", "b"], dtype=object), n), dtype=object),
    "unique text": lambda rng, n: [f"id {i}" for i in range(n)],
    "text or missing": lambda rng, n: rng.choice(np.array(["a", None, np.nan, pd.NA], dtype=object), n),
    "numbers as text": lambda rng, n: [str(x) for x in rng.normal(size=n)],
    "mixed": lambda rng, n: rng.choice(np.array([1, "a", 2.5, None, b"x", (1, 2)], dtype=object), n),
    "bytes": lambda rng, n: rng.choice(np.array([b"a", b"\xff"], dtype=object), n),
    "lists": lambda rng, n: [[1, 2]] * n,
    "dictionaries": lambda rng, n: [{"a": 1}] * n,
    "arrays": lambda rng, n: [np.zeros(2)] * n,
    "decimals": lambda rng, n: [decimal.Decimal(int(k)) / 7 for k in rng.integers(-99, 99, n)],
    "huge decimals": lambda rng, n: [decimal.Decimal(f"{k}e400") for k in rng.integers(-9, 9, n)],
    "odd decimals": lambda rng, n: [
        decimal.Decimal("sNaN"),
        *map(decimal.Decimal, map(int, rng.integers(0, 9, n - 1))),
    ],
    "fractions": lambda rng, n: [fractions.Fraction(int(k), 7) for k in rng.integers(-99, 99, n)],
    "booleans": lambda rng, n: rng.random(n) < 0.5,
    "boolean objects": lambda rng, n: rng.choice(np.array([True, False, None], dtype=object), n),
    "nullable booleans": lambda rng, n: pd.array(rng.choice(np.array([True, False, None]), n), dtype="boolean"),
    "category": lambda rng, n: pd.Categorical(rng.choice(["a", "b"], n), categories=["c", "b", "a"], ordered=True),
    "numeric category": lambda rng, n: pd.Categorical(rng.choice([1e300, -0.0, 5e-324], n)),
    "empty category": lambda rng, n: pd.Categorical([None] * n, categories=[]),
    "category of intervals": lambda rng, n: pd.cut(rng.normal(size=n), 3),
    "category of times": lambda rng, n: pd.Categorical(rng.choice(pd.date_range("2020", periods=3), n)),
    "intervals": lambda rng, n: pd.arrays.IntervalArray.from_breaks(np.arange(n + 1)),
    "periods": lambda rng, n: pd.period_range("2020-01", periods=n, freq="M").array,
    "durations": lambda rng, n: pd.to_timedelta(rng.integers(0, 10**6, n), "s").array,
    "sparse": lambda rng, n: pd.arrays.SparseArray(with_values(rng, np.zeros(n), [1.5, 2.5])),
    "arrow numbers": lambda rng, n: pd.array(rng.normal(size=n), dtype="double[pyarrow]"),
    "arrow text": lambda rng, n: pd.array(rng.choice(["a", "b"], n), dtype="string[pyarrow]"),
    "arrow decimals": lambda rng, n: pd.array(
        [decimal.Decimal(int(k)) for k in rng.integers(0, 99, n)], dtype=pd.ArrowDtype(pa.decimal128(10, 2))
    ),
}
TIMES = {
    "days": lambda rng, n: pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 999, n), "D"),
    "seconds, far away": lambda rng, n: rng.integers(-(10**14), 10**14, n).astype("datetime64[s]"),
    "nanoseconds": lambda rng, n: rng.integers(-(2**62), 2**62, n).astype("datetime64[ns]"),
    "ends": lambda rng, n: rng.choice(np.array([-(2**63) + 1, 2**63 - 1, 0]), n).astype("datetime64[ns]"),
    "same time": lambda rng, n: np.full(n, np.datetime64("2020-01-01", "us")),
    "some missing": lambda rng, n: np.where(
        rng.random(n) < 0.3, np.datetime64("NaT"), np.datetime64("2020-01-01", "s")
    ),
    "zone": lambda rng, n: pd.date_range("2023-03-25", periods=n, freq="7h", tz="Europe/Berlin").array,
    "local days": lambda rng, n: pd.date_range("2023-01-01", periods=n, tz="America/Sao_Paulo").array,
    "date objects": lambda rng, n: [
        datetime.date(1, 1, 1) + datetime.timedelta(int(k)) for k in rng.integers(0, 10**6, n)
    ],
    "mixed zones": lambda rng, n: [
        pd.Timestamp("2020-01-01", tz=rng.choice(["UTC", "Asia/Tokyo"])) + pd.Timedelta(int(k), "h") for k in range(n)
    ],
    "zone and none": lambda rng, n: [pd.Timestamp("2020-01-01", tz=rng.choice(["UTC", None])) for _ in range(n)],
    "times as text": lambda rng, n: [f"2020-01-{1 + k % 28:02}" for k in range(n)],
}
COLUMNS = {
    f"{kind}: {name}": make
    for kind, makers in {"numbers": NUMBERS, "integers": INTEGERS, "objects": OBJECTS, "times": TIMES}.items()
    for name, make in makers.items()
}
REFUSED = [
    *(f"numbers: {name}" for name in ("largest", "largest, both signs", "extremes", "infinite", "all missing")),
    *(f"numbers: {name}" for name in ("heavy tails", "long double", "complex")),
    *(f"integers: {name}" for name in ("64 bits", "unsigned 64 bits", "ends", "nullable, 64 bits")),
    *(f"integers: {name}" for name in ("huge objects", "huger objects", "some huge objects")),
    *(f"objects: {name}" for name in ("surrogates", "mixed", "bytes", "lists", "dictionaries", "arrays")),
    *(f"objects: {name}" for name in ("huge decimals", "odd decimals", "fractions", "empty category")),
    *(f"objects: {name}" for name in ("category of intervals", "category of times", "intervals", "periods")),
    *("objects: durations", "times: nanoseconds", "times: ends", "times: mixed zones", "times: zone and none"),
]
"""Columns that are refused mostly: few tables have them, and mostly no others."""
NAMES = [
    "",
    " ",
    "a",
    "self",
    "<b>x</b>",
    "é\n",
    "=1",
    0,
    1.5,
    None,
    ("a", "b"),
    "x" * 300,
    "index",
    "\0",
    float("nan"),
]
"""Column labels; all others are plain."""


def make_table(seed: int) -> pd.DataFrame:
    """A table of up to four columns, most of which are hostile."""
    rng = np.random.default_rng(seed)
    n = int(rng.choice([5, 6, 12, 50, 200]))
    kinds = REFUSED if rng.random() < 0.1 else [name for name in COLUMNS if name not in REFUSED]
    chosen = rng.choice(kinds, int(rng.integers(1, 5)), replace=False)
    columns = [pd.Series(COLUMNS[name](rng, n), name=name) for name in chosen]
    frame = pd.concat(columns, axis=1)
    if rng.random() < 0.3:
        labels = frame.columns.tolist()
        labels[0] = NAMES[rng.integers(len(NAMES))]
        frame.columns = pd.Index(labels, tupleize_cols=False)
    if rng.random() < 0.2:
        frame.index = rng.integers(0, 3, n)
    return frame


def check_columns(frame: pd.DataFrame, missing: str) -> str:
    """Encode and decode the columns of a table; the outcome in words."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning)
            schema = Schema.fit(frame, missing=missing)
    except (ValueError, TypeError) as error:
        check_message(error)
        return "refused"
    cells = schema.encode(frame)
    for name, part in cells._asdict().items() if hasattr(cells, "_asdict") else vars(cells).items():
        if part is not None:
            assert np.isfinite(part).all(), f"{name} of the encoded rows must be finite"
    z = np.random.default_rng(0).normal(size=(40, schema.features)) * np.geomspace(1, 1e3, 40)[:, None]
    check_samples(schema, frame, schema.decode(z))
    return "fitted"


def check_samples(schema: Schema, frame: pd.DataFrame, samples: pd.DataFrame) -> None:
    """Check the labels, dtypes and values of samples."""
    kept = [label for label in frame.columns if str(label) not in schema.ignored]
    assert [str(label) for label in samples.columns] == [str(label) for label in kept]
    for column, label in zip(schema.columns, kept, strict=True):
        values = samples.iloc[:, kept.index(label)]
        if not column.missing:
            assert not values.isna().any(), f"samples of {label!r} must not be missing"
        if values.dtype.kind == "f":
            assert not np.isinf(values.dropna()).any(), f"samples of {label!r} must be finite"
        if not column.missing and str(values.dtype) != "object":
            assert str(values.dtype) == str(frame[label].dtype), f"samples of {label!r} must have its dtype"


def attack(frame: pd.DataFrame, missing: str, seed: int) -> str:
    """Fit a table, score, sample and condition; the outcome in words."""
    density = elflow.FlowDensity(
        max_steps=2, flow_options=SMALL, missing=missing, random_state=seed % 1000, batch_size=64
    )
    try:
        density.fit(frame)
    except (ValueError, TypeError) as error:
        check_message(error)
        return "refused"
    scores = density.score_samples(frame)
    assert np.isfinite(scores).all(), f"log-densities must be finite, got {scores[~np.isfinite(scores)][0]}"
    check_samples(density.schema_, frame, density.sample(20, random_state=0))
    column = density.schema_.columns[seed % len(density.schema_.columns)]
    label = next(label for label in frame.columns if str(label) == column.name)
    present = frame[frame[label].notna()][:8]
    conditional = density.conditional_cdf(present, label)
    assert ((conditional >= 0) & (conditional <= 1)).all(), "probabilities must be in [0, 1]"
    quantiles = density.conditional_quantile(frame[:3], label, [0.1, 0.9])
    assert quantiles.shape == (min(3, len(frame)), 2)
    return "fitted"


def check_message(error: Exception) -> None:
    """Check that an error is raised by elflow itself, with one of its texts."""
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    assert "elflow" in last or "sklearn" in last, f"{type(error).__name__} from {last}: {error}"
    text = str(error)
    assert "must" in text or "Expected 2D array" in text, f"unclear: {text}"


def main() -> None:
    """Attack with many tables, and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--schema", action="store_true", help="columns only")
    options = parser.parse_args()
    outcomes: collections.Counter[str] = collections.Counter()
    bugs: dict[str, int] = {}
    for seed in range(options.first, options.first + options.count):
        frame, missing = make_table(seed), ["error", "model"][seed % 2]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.filterwarnings("ignore", category=UserWarning)
                outcomes[check_columns(frame, missing) if options.schema else attack(frame, missing, seed)] += 1
        except Exception as error:
            where = [
                f"{step.filename.rpartition('/')[2]}:{step.lineno}"
                for step in traceback.extract_tb(error.__traceback__)
            ]
            text = f"{type(error).__name__}: {str(error)[:150]!r} at {' '.join(where)}"
            outcomes["bug"] += 1
            if text not in bugs:
                bugs[text] = seed
                print(f"seed {seed}: {text}\n    {frame.dtypes.to_dict()} missing={missing}", flush=True)
    print(dict(outcomes))


if __name__ == "__main__":
    main()
