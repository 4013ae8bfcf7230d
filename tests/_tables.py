"""Tables that several tests use."""

import numpy as np
import pandas as pd


def mixed(n=600, seed=0):
    """One column of every kind, some with missing values."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "float": rng.normal(size=n),
            "positive": rng.lognormal(size=n),
            "share": rng.beta(0.5, 0.5, n),
            "rounded": rng.normal(170, 5, n).round(),
            "grid": np.round(rng.normal(20, 2, n), 1),
            "count": rng.poisson(4, n),
            "wide": rng.integers(0, 10**6, n),
            "flag": rng.random(n) < 0.3,
            "text": rng.choice(["a", "b", "<c>"], n),
            "category": pd.Categorical(rng.choice(["x", "y"], n), categories=["z", "y", "x"]),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 100, n), unit="D"),
            "zone": pd.date_range("2021-05-05", periods=n, freq="h", tz="Europe/Paris"),
            "levels": rng.choice([0.0, 1.0865, 2.173], n).astype("float32"),
            "constant": 1.5,
            "single": rng.normal(size=n).astype("float32"),
            "nullable": pd.array(rng.integers(0, 5, n), dtype="Int64"),
        }
    )
    frame.loc[:50, "nullable"] = pd.NA
    frame.loc[20:90, "float"] = np.nan
    frame.loc[7:20, "text"] = None
    return frame
