"""Example data without a download, from scikit-learn.

`python -m elflow.datasets.example cells.csv` writes the table, and `digits.npz` in place of `cells.csv` the images.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits

__all__ = ["cells", "digits"]

N_TEST_DIGITS = 300
"""Number of digits in the test set."""


def cells() -> pd.DataFrame:
    """Breast cancer data of scikit-learn: 569 rows of ten measurements of cell nuclei, and the diagnosis.

    Example:
        >>> cells().shape
        (569, 11)
    """
    bunch = load_breast_cancer(as_frame=True)
    frame = bunch.frame[[name for name in bunch.feature_names if name.startswith("mean")]]
    frame = frame.rename(columns=lambda name: name.removeprefix("mean ").replace(" ", "_"))
    return frame.assign(diagnosis=bunch.target.map(dict(enumerate(bunch.target_names))))


def digits() -> dict[str, NDArray[Any]]:
    """Handwritten digits of scikit-learn: 1497 training and 300 test images of 8x8 pixels from 0 to 16.

    Returns:
        Images `x_train` and `x_test`, uint8 of shape `(N, 1, 8, 8)`, and their digits `y_train` and `y_test`, `(N,)`.
        The split is random with a fixed seed.

    Example:
        >>> {name: array.shape for name, array in digits().items() if name.startswith("x")}
        {'x_train': (1497, 1, 8, 8), 'x_test': (300, 1, 8, 8)}
    """
    bunch = load_digits()
    order = np.random.RandomState(0).permutation(len(bunch.target))
    splits = {"train": np.sort(order[N_TEST_DIGITS:]), "test": np.sort(order[:N_TEST_DIGITS])}
    x, y = bunch.images[:, None].astype(np.uint8), bunch.target.astype(np.int64)
    return {f"{name}_{split}": a[index] for split, index in splits.items() for name, a in (("x", x), ("y", y))}


if __name__ == "__main__":
    if sys.argv[1].endswith(".npz"):
        arrays: dict[str, Any] = digits()
        np.savez_compressed(sys.argv[1], **arrays)
    else:
        cells().to_csv(sys.argv[1], index=False)
