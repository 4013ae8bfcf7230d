"""A table to try things on, without a download: `python -m elflow.data.example cells.csv`."""

from __future__ import annotations

import sys

import pandas as pd
from sklearn.datasets import load_breast_cancer

__all__ = ["cells"]


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


if __name__ == "__main__":
    cells().to_csv(sys.argv[1], index=False)
