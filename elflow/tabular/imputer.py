"""`FlowImputer`: imputation of missing values as a scikit-learn transformer."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import TransformerMixin
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from elflow._checks import check_choice
from elflow.tabular._clones import clone_density, copy_features
from elflow.tabular._saved import PATH, SavedEstimator, SavedState
from elflow.tabular.estimator import FlowDensity
from elflow.tabular.frames import Table
from elflow.tabular.queries._imputation_queries import IMPUTATION_METHODS

__all__ = ["FlowImputer"]


class ImputerState(SavedState):
    """What an imputer has besides its fitted density, in a model file."""

    method: str


class FlowImputer(TransformerMixin, SavedEstimator):
    """Imputation of missing values by the joint density of the columns, as a scikit-learn transformer.

    The density is fitted to the table with its missing values, which need not be complete. `transform` fills the
    missing cells of each row from their conditional distribution given the observed cells of the row.

    Arguments:
        density: The density to fit, a `FlowDensity`; None for the default one. Missing values are modelled, whatever
            its parameter `missing` is.
        method: `"sample"` draws values, jointly for all missing cells of a row; `"median"`, `"mean"` and `"mode"` fill
            each cell by a summary of its distribution: see `FlowDensity.impute`.
        random_state: Seed or generator of the fit and of the draws. With a seed, `transform` draws the same values in
            every call.

    Attributes:
        density_: The fitted density.
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, if the table has names.

    Example:
        >>> import pandas as pd
        >>> rng = np.random.default_rng(0)
        >>> table = pd.DataFrame(rng.normal(size=(200, 2)), columns=["a", "b"])
        >>> table.loc[:20, "b"] = np.nan
        >>> imputer = FlowImputer(FlowDensity(max_steps=20), random_state=0)
        >>> int(imputer.fit_transform(table)["b"].isna().sum())
        0
        >>> imputer.get_feature_names_out().tolist()
        ['a', 'b']
        >>> import elflow, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     imputer.save(f"{folder}/imputer.elf")
        ...     same = elflow.load(f"{folder}/imputer.elf")
        >>> same.transform(table).equals(imputer.transform(table))
        True
    """

    _state_type = ImputerState

    def __init__(
        self,
        density: FlowDensity | None = None,
        *,
        method: str = "median",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.density = density
        self.method = method
        self.random_state = random_state

    def fit(self, X: Table, y: object = None, *, sample_weight: ArrayLike | None = None) -> FlowImputer:
        """Fit the density of the rows of X.

        Arguments:
            X: The table, `(N, columns)`, with or without missing values; each column has at least one value.
            y: Ignored; scikit-learn passes it.
            sample_weight: Weight of each row in the likelihood, `(N,)`.

        Returns:
            The imputer.
        """
        check_choice("method", self.method, IMPUTATION_METHODS)
        density = clone_density(self.density, self.random_state, missing="model")
        self.density_ = density.fit(X, sample_weight=sample_weight)
        copy_features(self, density)
        return self

    def transform(self, X: Table) -> Any:
        """Fill the missing cells of X.

        Arguments:
            X: The table, `(N, columns)`.

        Returns:
            A table of the library of the fitted table, with its columns and dtypes.
        """
        check_is_fitted(self, "density_")
        frame = self.density_._as_frame(X)  # checks the number of columns of a matrix
        if absent := [name for name in self.density_.schema_.names if name not in frame.columns]:
            raise ValueError(f"X must have the columns {self.density_.schema_.names}, got none named {absent}")
        return self.density_.impute(X, method=self.method, random_state=self.random_state)

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[Any]:
        """Names of the output columns: those of the fitted density, which leaves out identifiers.

        Arguments:
            input_features: Names of the input columns; those of the fitted table if left out.
        """
        check_is_fitted(self, "density_")
        names = np.asarray(_check_feature_names_in(self, input_features), dtype=object)
        ignored = set(self.density_.schema_.ignored)
        return np.array([name for name in names if str(name) not in ignored], dtype=object)

    def _get_state(self) -> dict[str, Any]:
        return super()._get_state() | {"method": self.method}

    @classmethod
    def _from_state(cls, state: dict[str, Any], density: FlowDensity) -> Self:
        imputer = super()._from_state(state, density)
        imputer.method = state["method"]
        check_choice(f"{PATH}.method", imputer.method, IMPUTATION_METHODS)
        return imputer

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags
