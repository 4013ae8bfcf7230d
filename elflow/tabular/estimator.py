"""`FlowDensity`: the joint density of the columns of a table, as a scikit-learn estimator."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from elflow._checks import warn_user
from elflow._model_file import ModelFile
from elflow.flows.mixture import FlowMixture
from elflow.flows.named import QUICK_INVERSES
from elflow.io import TableStream
from elflow.tabular._flow import (
    N_DRAWS,
    build_model,
    count_components,
    count_parameters,
    get_mixture,
    score_rows,
    stack_members,
    to_single,
)
from elflow.tabular.columns._kinds import Declaration
from elflow.tabular.drift._queries import DriftQueries, count_held_out
from elflow.tabular.fitting._blocks import as_stream
from elflow.tabular.fitting._data import FittedTables, choose_rows_file
from elflow.tabular.fitting._defaults import GAUSSIANS, check_parameters, resolve_settings
from elflow.tabular.fitting._encoded import EncodedTable
from elflow.tabular.fitting._row_hashes import RowHashes
from elflow.tabular.fitting._tilting import tilt_model
from elflow.tabular.frames import ContextTable, Table, digest
from elflow.tabular.memorization._queries import MemorizationQueries
from elflow.tabular.queries._anomaly import summarize_log_density
from elflow.tabular.queries._conditional_queries import ConditionalQueries
from elflow.tabular.queries._explanation_queries import ExplanationQueries
from elflow.tabular.queries._imputation_queries import ImputationQueries
from elflow.tabular.queries._row_queries import RowQueries
from elflow.tabular.queries._sample_queries import SampleQueries
from elflow.tabular.queries._subset_queries import SubsetQueries
from elflow.tabular.saving._config import get_config
from elflow.tabular.saving._density_file import read_density, write_density
from elflow.tabular.saving._known_scores import score_fixed_rows
from elflow.training import fit, make_fabric, sharing_threads

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from lightning_fabric import Fabric

__all__ = ["N_DRAWS", "FlowDensity"]


class FlowDensity(
    RowQueries,
    SampleQueries,
    ImputationQueries,
    SubsetQueries,
    ConditionalQueries,
    ExplanationQueries,
    DriftQueries,
    MemorizationQueries,
    FittedTables,
):
    """Joint density of the columns of a table, as a scikit-learn estimator.

    Tables are of pandas, polars, pyarrow or NumPy, with columns of floats, integers, booleans, categories, strings or
    datetimes. Log-densities are in the units of the data: a continuous column contributes a density per unit, any other
    column a probability, whose estimate is a lower bound in expectation (dequantisation).

    Arguments:
        flow: Name of the flow: `"elf"`, or a flow of zuko in lower case such as `"nsf"`, `"maf"` or `"naf"`.
        flow_options: Arguments of the flow. All others depend on the size of the table.
        columns: Kinds of columns by name: `"continuous"`, `"integer"`, `"boolean"`, `"category"` or `"datetime"`, or
            bounds `(low, high)` of a numeric column, either of which may be None. Inferred for all other columns.
        missing: `"error"` rejects missing values; `"model"` models them, and samples contain them.
        dequantization: Distribution of the points of the cells of discrete and missing values:
            `"gaussian"` for points that follow the correlations of the columns (see
            `elflow.flows.cell_noise.CellNoise`), `"uniform"`, `"variational"` for a learned distribution, or `"auto"`:
            Gaussian if at most 16 features have cells, except those of unordered categories, and uniform otherwise.
        members: Members of the mixture, a list: `"cholesky"` and `"identity"` are flows after a learnable linear layer,
            which starts from a Gaussian with full covariance or from standardised features; `"plain"` is a flow
            without that layer; `"gaussian"` is a mixture of up to 32 Gaussians, or one whose mean is linear in the
            context; `"strata"` is a mixture of Gaussians by groups of categories (see
            `elflow.flows.strata.StratifiedMixture`), for tables with categories and without context. By default one
            each of `"cholesky"`, `"identity"`, `"gaussian"` and `"strata"`, with a second `"identity"`, trained by
            Muon, for 1,000 to 20,000 training rows; `"plain"` and `"gaussian"` for one column without context.
            Validation rows determine their weights.
        schedule: Learning-rate schedule: see `elflow.training.Recipe`.
        learning_rate: Initial learning rate. Here and in the next two, None selects a value by the size of the table.
        weight_decay: Weight decay; more of it reduces overfitting.
        batch_size: Number of rows in a batch.
        max_steps: Number of training steps, each of which trains all members of the mixture. The cosine schedule ends
            with it.
        patience: Number of rounds without a better held-out log-likelihood after which training stops.
        validation: Fraction of the rows that are held out for early stopping and for the weights of the members.
        time_limit: Maximum training time in seconds; None for no limit.
        device: Device of the training: `"cpu"`, `"cuda"`, `"mps"`, or `"auto"`, a CUDA device if there is one and the
            CPU otherwise. The fitted density is on the CPU, where it scores in double precision.
        precision: `"32"`, or `"bf16-mixed"`, in which hypernetworks multiply matrices in bfloat16.
        log_dir: Folder for logs as CSV and for TensorBoard.
        random_state: Seed or generator.
        verbose: Whether to show progress.

    Attributes:
        schema_: The columns, a `Schema`.
        context_schema_: The columns of the context, or None.
        model_: The fitted mixture of flows over encoded rows, in double precision.
        members_: Names and weights of its members.
        training_: The record of the training, an `elflow.training.Training`: history, seconds, reason for stopping.
        warnings_: Texts of the warnings about the table, which the report repeats.
        row_hashes_: Hashes of the fitted rows, by which `row_origin` recognises them; None to store none in a file.
        held_out_: Counts of the validation rows in bins, with which `compare` compares new rows; None to store none.
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, if the table has names.

    Example:
        >>> import pandas as pd
        >>> rng = np.random.default_rng(0)
        >>> table = pd.DataFrame({"size": rng.lognormal(size=500), "kind": rng.choice(["a", "b"], size=500)})
        >>> density = FlowDensity(max_steps=100, random_state=0).fit(table)
        >>> density.score_samples(table).shape
        (500,)
        >>> density.sample(3, random_state=1).dtypes.to_dict() == table.dtypes.to_dict()
        True
    """

    def __init__(
        self,
        flow: str = "elf",
        *,
        flow_options: dict[str, Any] | None = None,
        columns: Mapping[Any, Declaration] | None = None,
        missing: str = "error",
        dequantization: str = "auto",
        members: Sequence[str] | None = None,
        schedule: str = "cosine",
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        batch_size: int | None = None,
        max_steps: int | None = None,
        patience: int | None = None,
        validation: float = 0.1,
        time_limit: float | None = None,
        device: str | torch.device = "auto",
        precision: str = "32",
        log_dir: str | os.PathLike[str] | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.flow = flow
        self.flow_options = flow_options
        self.columns = columns
        self.missing = missing
        self.dequantization = dequantization
        self.members = members
        self.schedule = schedule
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_steps = max_steps
        self.patience = patience
        self.validation = validation
        self.time_limit = time_limit
        self.device = device
        self.precision = precision
        self.log_dir = log_dir
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: Table | TableStream | ds.Dataset | str | os.PathLike[str],
        y: object = None,
        *,
        context: ContextTable | Sequence[str] | None = None,
        sample_weight: ArrayLike | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        rows_file: str | os.PathLike[str] | None = None,
        fabric: Fabric | None = None,
    ) -> FlowDensity:
        """Fit the density of the rows of X by maximum likelihood.

        Arguments:
            X: The table, `(N, columns)`. A table in files may be larger than memory: a `pyarrow.dataset.Dataset`, the
                result of `elflow.io.open_stream`, or the path of a file, a folder, or files that match a pattern. Its
                rows are encoded into a file, from which batches are read.
            y: Ignored; scikit-learn passes it.
            context: Context of the rows, a table of N rows. The density is then p(row | context). If X is in files, a
                list of the names of its columns that are the context.
            sample_weight: Weight of each row in the likelihood, `(N,)`.
            checkpoint: File for the state of training after each round. If it exists, training resumes from it, and
                ends with the weights of an uninterrupted training. It is not deleted at the end.
            rows_file: File for the encoded rows of a table in files; a temporary one by default. If it exists, and
                neither the files nor the settings have changed since, rows are read from it. It is not deleted at the
                end.
            fabric: A launched `lightning_fabric.Fabric` for several processes, instead of `device` and `precision`: see
                `elflow.training.make_fabric`. All processes fit the same table, and end with the same density.

        Returns:
            The estimator.

        Example:
            >>> rng = np.random.default_rng(0)
            >>> c = rng.normal(size=(200, 1))
            >>> density = FlowDensity(max_steps=20, random_state=0).fit(c + rng.normal(size=(200, 2)), context=c)
            >>> density.sample(1, context=c[:3], random_state=0).shape
            (3, 2)
        """
        check_parameters(self.get_params())
        fabric = fabric or make_fabric(self.device, self.precision)
        if getattr(y, "ndim", 1) == 2:
            raise ValueError("y is ignored and must not be a table: pass a context with context=")
        drawn = int(check_random_state(self.random_state).randint(2**31 - 1))
        seed = fabric.broadcast(drawn)  # the same in all processes, also without a random state
        with ExitStack() as stack:
            stream = as_stream(X)
            if stream is None:
                table, content = self._encode_table(X, context, sample_weight, seed)
            else:
                if sample_weight is not None:
                    raise ValueError("sample_weight must be None if X is in files, got weights")
                path = stack.enter_context(choose_rows_file(rows_file))
                blocks = self._as_blocks(stream, context, self.verbose and fabric.is_global_zero)
                table = self._encode_stream(blocks, path, rows_file is not None, seed, fabric)
                content = ("files",)
            return self._train(table, content, seed, checkpoint, fabric)

    def _train(
        self,
        table: EncodedTable,
        content: tuple[object, ...],
        seed: int,
        checkpoint: str | os.PathLike[str] | None,
        fabric: Fabric,
    ) -> FlowDensity:
        """Train the flow on encoded rows; `content` is all that these depend on besides the settings."""
        self.seed_ = seed
        self.row_hashes_: RowHashes | None = table.hashes
        training_rows, validation_rows = table.training, table.validation
        context = 0 if self.context_schema_ is None else self.context_schema_.context_features
        sizes = len(training_rows), self.schema_.features, context
        options, recipe = resolve_settings(self.get_params(), *sizes, bool(self.schema_.category_ends))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = build_model(self.flow, self.schema_, self.context_schema_, options, self.dequantization)
        settings = {
            "flow": [self.flow, options, self.dequantization],
            "recipe": recipe.to_dict() | {"time_limit": None},  # a resumed training may have more time
            "split": [seed, self.validation],
            "schema": self.schema_.to_dict(),
        }
        is_on_cpu = fabric.device.type == "cpu"
        with sharing_threads(model, recipe.batch_size, fabric.world_size) if is_on_cpu else nullcontext():
            trained, self.training_ = fit(
                model,
                training_rows,
                to_single(validation_rows),
                recipe,
                seed=seed,
                checkpoint=checkpoint,
                fingerprint=digest(*content, json.dumps(settings, default=_describe_setting)),
                log_dir=self.log_dir,
                verbose=self.verbose,
                fabric=fabric,
            )
        self.model_, kept = stack_members(trained.cpu(), validation_rows, N_DRAWS)
        if self.flow in QUICK_INVERSES:
            self.model_ = tilt_model(self.model_, self.schema_, training_rows, validation_rows, seed, self.time_limit)
        self._warn_without_flows([options["members"][k][1] for k in kept])
        for name in ("strata", "groups"):  # unless members that need them are kept
            options.pop(name, None)
        kept_members = {"members": [options["members"][k] for k in kept]}
        self.options_ = options | kept_members | count_components(self.model_)
        self.n_parameters_ = count_parameters(self.model_)
        self.reference_scores_ = summarize_log_density(score_rows(self.model_, table.reference, N_DRAWS))
        self.held_out_ = count_held_out(self.model_, self.schema_, self.context_schema_, table)
        return self

    def fit_schema(
        self,
        X: Table | TableStream | ds.Dataset | str | os.PathLike[str],
        context: ContextTable | Sequence[str] | None = None,
    ) -> FlowDensity:
        """Infer the columns of a table and of its context: `schema_` and `context_schema_`.

        `fit` does this itself. It reuses the result if it is called next with the same data, so that a program can
        show the columns before training.

        Arguments:
            X: The table, `(N, columns)`, as for `fit`.
            context: Context of the rows, as for `fit`.

        Returns:
            The estimator.

        Example:
            >>> import pandas as pd
            >>> FlowDensity().fit_schema(pd.DataFrame({"count": [3, 4, 4, 9]})).schema_
            Schema of 1 column
            column  kind     dtype  values
            count   integer  int64  3 to 9
        """
        check_parameters(self.get_params())
        if (stream := as_stream(X)) is not None:
            blocks = self._as_blocks(stream, context, self.verbose)
            self.__dict__.pop("model_", None)
            self._schema_key = self._infer_stream_schemas(blocks)
            return self
        frame = self._as_frame(X, fitting=True)
        context_frame = self._as_context(context, len(frame), fitting=True)
        self.__dict__.pop("model_", None)  # an earlier flow does not fit the new columns
        self._schema_key = self._infer_frame_schemas(X, frame, context_frame)
        return self

    def save(self, path: str | os.PathLike[str], notes: dict[str, Any] | None = None) -> None:
        """Write the fitted density to one safetensors file, atomically; `elflow.load` reads it.

        Arguments:
            path: The file; an existing one is replaced.
            notes: Anything else to store, as JSON: see `elflow.serialization.read_notes`.

        Example:
            >>> import elflow, tempfile
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     density.save(f"{folder}/model.elf")
            ...     same = elflow.load(f"{folder}/model.elf")
            >>> bool((same.score_samples(table) == density.score_samples(table)).all())
            True
        """
        check_is_fitted(self, "model_")
        write_density(self, Path(path), notes)

    def score_fixed_rows(self) -> list[float | None]:
        """Log-densities of a few rows that follow from the columns alone, None where they are not finite.

        A model file stores them, so that `elflow verify` can check the scores of another machine.
        """
        check_is_fitted(self, "model_")
        return score_fixed_rows(self)

    @property
    def members_(self) -> list[tuple[str, float]]:
        """Members of the fitted mixture, with their weights: see `members`.

        Example:
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> round(sum(weight for name, weight in density.members_), 3)
            1.0
        """
        check_is_fitted(self, "model_")
        names = [name for _, name in self.options_["members"]]
        mixture = get_mixture(self.model_)
        weights = mixture.log_weights.exp().tolist() if isinstance(mixture, FlowMixture) and len(names) > 1 else [1.0]
        return list(zip(names, weights, strict=True))

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of a fitted density for JSON: all but its weights and its training record."""
        return get_config(self)

    @classmethod
    def from_file(cls, file: ModelFile) -> FlowDensity:
        """Build a density from the content of a model file."""
        return read_density(cls, file)

    def _warn_without_flows(self, members: Sequence[str]) -> None:
        """Warn if the flows were left out because they could not be trained, which otherwise only the weights show."""
        if self.training_.skipped and set(members) <= set(GAUSSIANS):
            message = (
                f"the loss or gradient of {self.training_.skipped:,} training steps was not finite, and the flows were "
                "left out: the density is a mixture of Gaussians. Look for columns that are functions of others"
            )
            self.warnings_ = [*self.warnings_, message]
            warn_user(message)


def _describe_setting(value: Any) -> Any:
    """A setting for the fingerprint of a checkpoint: all of an activation, not only its name."""
    return value.to_dict() if hasattr(value, "to_dict") else str(value)
