"""`FlowClassifier`: classification by the density of each class, as a scikit-learn estimator."""

from __future__ import annotations

import re
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_y, _num_samples, check_is_fitted

from elflow._json_types import check_json
from elflow.tabular._arrays import BoolArray, FloatArray
from elflow.tabular._clones import check_weights, clone_density, copy_features
from elflow.tabular._saved import PATH, SavedEstimator, SavedState
from elflow.tabular.columns import Column
from elflow.tabular.estimator import FlowDensity
from elflow.tabular.fitting._split import Split
from elflow.tabular.frames import Table, as_frame, as_plain_array
from elflow.tabular.queries._anomaly import rank_log_density, summarize_log_density
from elflow.tabular.saving._known_scores import check_reference_scores
from elflow.tabular.schema import MAX_ONE_HOT, Schema

__all__ = ["FlowClassifier"]

CLASS = "class"
"""Name of the column of the context."""
CLASS_TYPES = {"b": list[bool], "i": list[int], "u": list[int], "f": list[float], "U": list[str], "O": list[str]}
"""Types of classes in a file, by the kind of their dtype; objects are strings, of pandas for example."""
SAVED_DTYPE = re.compile(r"\|b1|[<>|][iu][1248]|[<>]f[248]|[<>]U\d{1,5}|\|O")
"""Dtypes of classes in a file, as NumPy writes them. Text has at most 99,999 characters: a file must not choose how
much memory is allocated."""


class ClassifierState(SavedState):
    """What a classifier has besides its fitted density, in a model file."""

    priors: list[float] | None
    odd_share: float
    classes: list[Any]
    classes_dtype: str
    class_prior: list[float]
    reference_scores: list[float]


class FlowClassifier(ClassifierMixin, SavedEstimator):
    """Generative classifier: the density p(row | class) of each class, the prior of the classes, and Bayes' rule.

    One flow with the class as context models all classes. Because it models the rows as well, it tells which rows fit
    none of the classes: see `is_odd`.

    Arguments:
        density: The density to fit, a `FlowDensity`; None for the default one.
        priors: Probabilities of the classes, in the order of `classes_`; None for their frequencies.
        odd_share: Share of ordinary rows that `is_odd` takes for odd, in (0, 1).
        random_state: Seed or generator of the fit.

    Attributes:
        density_: The fitted density, with the class as context.
        classes_: The classes.
        class_prior_: Their probabilities.
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, if the table has names.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat(["a", "b"], 100)
        >>> X = rng.normal(size=(200, 2)) + 4 * (y == "b")[:, None]
        >>> classifier = FlowClassifier(FlowDensity(max_steps=30), random_state=0).fit(X, y)
        >>> classifier.predict(np.array([[0.0, 0.0], [4.0, 4.0], [40.0, -40.0]]), odd="none of these").tolist()
        ['a', 'b', 'none of these']
        >>> classifier.predict_proba(X).shape
        (200, 2)
        >>> import elflow, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     classifier.save(f"{folder}/classifier.elf")
        ...     same = elflow.load(f"{folder}/classifier.elf")
        >>> bool((same.predict_proba(X) == classifier.predict_proba(X)).all())
        True
    """

    _state_type = ClassifierState

    def __init__(
        self,
        density: FlowDensity | None = None,
        *,
        priors: ArrayLike | None = None,
        odd_share: float = 0.01,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.density = density
        self.priors = priors
        self.odd_share = odd_share
        self.random_state = random_state

    def fit(self, X: Table, y: ArrayLike, sample_weight: ArrayLike | None = None) -> FlowClassifier:
        """Fit the density of the rows of X given their classes.

        Arguments:
            X: The table, `(N, columns)`.
            y: Classes of the rows, `(N,)`: at most 32 different ones.
            sample_weight: Weight of each row in the likelihood and in the frequencies of the classes, `(N,)`. A row of
                weight zero has no effect, and a class that has only such rows is none of `classes_`.

        Returns:
            The classifier.
        """
        if not 0 < self.odd_share < 1:
            raise ValueError(f"odd_share must be in (0, 1), got {self.odd_share!r}")
        if y is None:  # scikit-learn's contract asks for the first words
            raise ValueError("requires y to be passed, but the target y is None")
        labels = _check_y(y, estimator=self)
        check_classification_targets(labels)
        weight = check_weights(sample_weight, len(labels))
        is_used = np.ones(len(labels), bool) if weight is None else weight > 0
        self.classes_, used_codes = np.unique(labels[is_used], return_inverse=True)
        if len(self.classes_) > MAX_ONE_HOT:
            raise ValueError(f"y must have at most {MAX_ONE_HOT} classes, got {len(self.classes_)}")
        mass = np.bincount(used_codes, None if weight is None else weight[is_used])
        self.class_prior_ = self._check_priors(mass / max(mass.sum(), np.finfo(np.float64).tiny))
        codes = np.zeros(len(labels), np.int64)  # the density leaves out the rows of weight zero, whatever their codes
        codes[is_used] = used_codes
        density = clone_density(self.density, self.random_state)
        self.density_ = density.fit(X, context=self._make_context(codes), sample_weight=weight)
        copy_features(self, self.density_)
        split = Split(len(used_codes), self.density_.validation, self.density_.seed_)
        used = as_frame(X, self.density_.schema_.names)[is_used]
        self.reference_scores_ = summarize_log_density(self.score_samples(used[split.is_reference(0, len(used))]))
        return self

    def predict(self, X: Table, odd: Any = None) -> NDArray[Any]:
        """The most probable class of each row, `(N,)`.

        Arguments:
            X: The table, `(N, columns)`.
            odd: Label of rows that fit none of the classes: see `is_odd`. None gives every row a class.
        """
        log_joint = self._score_classes(X)
        labels: NDArray[Any] = self.classes_[self._replace_impossible(log_joint).argmax(1)]
        if odd is None:
            return labels
        is_odd = self._find_odd(logsumexp(log_joint, 1))
        # Text and numbers have no common type but that of objects.
        has_common = np.issubdtype(np.asarray(odd).dtype, np.number) == np.issubdtype(labels.dtype, np.number)
        return np.where(is_odd, odd, labels if has_common else labels.astype(object))

    def predict_proba(self, X: Table) -> FloatArray:
        """Probabilities of the classes in each row, `(N, classes)`."""
        return np.asarray(softmax(self._replace_impossible(self._score_classes(X)), 1))

    def predict_log_proba(self, X: Table) -> FloatArray:
        """Logarithms of `predict_proba`, `(N, classes)`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def decision_function(self, X: Table) -> FloatArray:
        """Log p(row, class) in nats, `(N, classes)`; for two classes, that of the second minus that of the first."""
        log_joint = self._replace_impossible(self._score_classes(X))
        return log_joint[:, 1] - log_joint[:, 0] if len(self.classes_) == 2 else log_joint

    def score_samples(self, X: Table) -> FloatArray:
        """Log-density of each row over all classes, log p(row), in nats, `(N,)`."""
        return np.asarray(logsumexp(self._score_classes(X), 1))

    def anomaly_score(self, X: Table) -> FloatArray:
        """Anomaly score of each row, `(N,)`: see `FlowDensity.anomaly_score`, here by log p(row) over all classes."""
        return rank_log_density(self.score_samples(X), self.reference_scores_)

    def is_odd(self, X: Table) -> BoolArray:
        """Whether each row fits none of the classes, `(N,)`: whether it is less likely than nearly all rows in fit.

        About a share `odd_share` of ordinary rows is taken for odd.
        """
        return self._find_odd(self.score_samples(X))

    def _replace_impossible(self, log_joint: FloatArray) -> FloatArray:
        """Log-densities in which rows that are impossible in every class have those of the prior."""
        is_impossible = np.isneginf(log_joint).all(1, keepdims=True)
        return np.where(is_impossible, np.log(self.class_prior_), log_joint)

    def _find_odd(self, log_density: FloatArray) -> BoolArray:
        return np.asarray(rank_log_density(log_density, self.reference_scores_) > 100 * (1 - self.odd_share))

    def _score_classes(self, X: Table) -> FloatArray:
        """Log p(row, class) of each row and class, `(N, classes)`."""
        check_is_fitted(self, "density_")
        count = _num_samples(as_plain_array(X))
        scores = []
        for code, prior in enumerate(self.class_prior_):
            context = self._make_context(np.full(count, code))
            scores.append(self.density_.score_samples(X, context=context) + np.log(prior))
        return np.stack(scores, 1)

    def _make_context(self, codes: NDArray[Any]) -> pd.DataFrame:
        return pd.DataFrame({CLASS: pd.Categorical.from_codes(codes, _name_classes(len(self.classes_)))})

    def _check_priors(self, frequencies: FloatArray) -> FloatArray:
        if self.priors is None:
            return frequencies
        priors = np.asarray(self.priors, np.float64)
        if priors.shape != frequencies.shape or not (priors > 0).all() or not np.isclose(priors.sum(), 1):
            raise ValueError(
                f"priors must be {len(frequencies)} positive probabilities that add up to 1, got {self.priors!r}"
            )
        return priors

    def _get_state(self) -> dict[str, Any]:
        dtype = self.classes_.dtype
        if SAVED_DTYPE.fullmatch(dtype.str) is None:
            raise TypeError(f"classes_ must be strings, integers, booleans or floats to be saved, got {dtype}")
        return super()._get_state() | {
            "priors": None if self.priors is None else np.asarray(self.priors, np.float64).tolist(),
            "odd_share": self.odd_share,
            "classes": self.classes_.tolist(),
            "classes_dtype": dtype.str,
            "class_prior": self.class_prior_.tolist(),
            "reference_scores": self.reference_scores_.tolist(),
        }

    @classmethod
    def _from_state(cls, state: dict[str, Any], density: FlowDensity) -> Self:
        classifier = super()._from_state(state, density)
        classifier.priors, classifier.odd_share = state["priors"], state["odd_share"]
        if not 0 < classifier.odd_share < 1:
            raise ValueError(f"{PATH}.odd_share must be in (0, 1), got {classifier.odd_share!r}")
        classifier.classes_ = _decode_classes(state["classes"], state["classes_dtype"])
        known = _name_classes(len(classifier.classes_))
        if cls._find_class_column(density).levels != tuple(known):
            raise ValueError(
                f"{PATH}.classes must be as many as the classes of config.context_schema, got {len(known)}"
            )
        classifier.class_prior_ = prior = np.array(state["class_prior"], np.float64)
        if len(prior) != len(known) or not (prior >= 0).all() or not np.isclose(prior.sum(), 1):
            raise ValueError(f"{PATH}.class_prior must be {len(known)} probabilities that add up to 1, got {prior[:9]}")
        classifier.reference_scores_ = np.array(state["reference_scores"], np.float64)
        check_reference_scores(classifier.reference_scores_, f"{PATH}.reference_scores")
        return classifier

    @classmethod
    def _find_input_schema(cls, density: FlowDensity) -> Schema:
        cls._find_class_column(density)
        return density.schema_

    @classmethod
    def _find_class_column(cls, density: FlowDensity) -> Column:
        """Column of the classes in the context of a density."""
        columns = () if density.context_schema_ is None else density.context_schema_.columns
        if [(column.name, column.kind) for column in columns] != [(CLASS, "category")]:
            raise ValueError(f"config.context_schema must have one column of categories {CLASS!r} for a {cls.__name__}")
        return columns[0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.density is not None and self.density.missing == "model"
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags


def _name_classes(count: int) -> list[str]:
    """Names of the classes in the context of the density."""
    return [str(code) for code in range(count)]


def _decode_classes(values: list[Any], dtype: str) -> NDArray[Any]:
    """Classes from JSON as an array of the dtype that they had in `fit`."""
    if SAVED_DTYPE.fullmatch(dtype) is None:
        raise ValueError(
            f"{PATH}.classes_dtype must be one of strings, integers, booleans or floats, got {dtype[:20]!r}"
        )
    if not 1 <= len(values) <= MAX_ONE_HOT:  # before a long dtype takes memory for each of them
        raise ValueError(f"{PATH}.classes must be 1 to {MAX_ONE_HOT}, got {len(values)}")
    check_json(values, CLASS_TYPES[np.dtype(dtype).kind], f"{PATH}.classes")
    try:
        with np.errstate(over="ignore"):
            classes = np.array(values, dtype)
    except OverflowError as error:
        raise ValueError(f"{PATH}.classes must be values of dtype {dtype}: {error}") from None
    if classes.tolist() != values or np.unique(classes).tolist() != values:
        raise ValueError(f"{PATH}.classes must be different values of dtype {dtype}, in increasing order")
    return classes
