"""Example data without a download: `python -m elflow.datasets.example cells.csv`, or `digits.npz` for images."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_digits

__all__ = ["cells", "digits"]

TEST_DIGITS = 300


def cells() -> pd.DataFrame:
    """569 samples of breast tissue: ten measures of their cells' nuclei, and the diagnosis (scikit-learn's copy).

    Example:
        >>> cells().shape
        (569, 11)
    """
    bunch = load_breast_cancer(as_frame=True)
    frame = bunch.frame[[name for name in bunch.feature_names if name.startswith("mean")]]
    frame = frame.rename(columns=lambda name: name.removeprefix("mean ").replace(" ", "_"))
    return frame.assign(diagnosis=bunch.target.map(dict(enumerate(bunch.target_names))))


def digits() -> dict[str, Any]:
    """1797 handwritten digits of 8x8 pixels from 0 to 16 (scikit-learn's copy), 300 of them for tests.

    Returns:
        `x_train` and `x_test`, uint8 of shape `(N, 1, 8, 8)`; `y_train` and `y_test`, which digits they are, `(N,)`.
        The parts are drawn at random, and always the same.

    Example:
        >>> {name: array.shape for name, array in digits().items() if name.startswith("x")}
        {'x_train': (1497, 1, 8, 8), 'x_test': (300, 1, 8, 8)}
    """
    bunch = load_digits()
    order = np.random.RandomState(0).permutation(len(bunch.target))
    parts = {"train": np.sort(order[TEST_DIGITS:]), "test": np.sort(order[:TEST_DIGITS])}
    x, y = bunch.images[:, None].astype(np.uint8), bunch.target.astype(np.int64)
    return {f"{name}_{part}": a[index] for part, index in parts.items() for name, a in (("x", x), ("y", y))}


if __name__ == "__main__":
    if sys.argv[1].endswith(".npz"):
        np.savez_compressed(sys.argv[1], **digits())
    else:
        cells().to_csv(sys.argv[1], index=False)
