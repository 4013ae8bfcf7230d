"""Small models, a checkpoint and a table, which the campaign damages."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import elflow
from elflow.flows.known_scores import score_fixed_points
from elflow.training import Recipe, fit

__all__ = ["Model", "Victims", "make_table", "make_victims"]

SMALL = {"transforms": 2, "units": 4, "hidden_features": [8]}
SMALL_NSF = {"transforms": 1, "bins": 4, "hidden_features": [8]}
FINGERPRINT = "victim"


@dataclass(frozen=True)
class Model:
    """A model file, and how the model is used."""

    path: Path

    @cached_property
    def data(self) -> bytes:
        """The file."""
        return self.path.read_bytes()

    @cached_property
    def scores(self) -> list[float | None]:
        """What the undamaged model computes."""
        return use_model(elflow.load(self.path))


@dataclass(frozen=True)
class Victims:
    """Everything that the campaign damages."""

    models: list[Model]
    checkpoint: Path
    table: pd.DataFrame

    @cached_property
    def checkpoint_data(self) -> bytes:
        """The checkpoint."""
        return self.checkpoint.read_bytes()

    @cached_property
    def density(self) -> Any:
        """A density of the table."""
        return elflow.load(self.models[0].path)


def use_model(model: Any) -> list[float | None]:
    """Score fixed points with a model, sample from it and describe it; scores must not be NaN."""
    if isinstance(model, elflow.FlowDensity):
        scores = model.score_fixed_rows()
        context = model.context_schema_
        if context is None:
            model.row_origin(model.sample(2, random_state=0))
        model.schema_.describe()
        model.training_.describe()
        repr(model.schema_)
        return list(scores)
    if isinstance(model, elflow.FlowClassifier):
        rows = model.density_.sample(1, context=pd.DataFrame({"class": ["0", "0"]}), random_state=0)
        model.predict(rows, odd="none")
        return [*model.density_.score_fixed_rows(), *model.predict_proba(rows).ravel(), *model.anomaly_score(rows)]
    if isinstance(model, elflow.FlowImputer):
        model.get_feature_names_out()
        return use_model(model.density_)
    return list(score_fixed_points(model))


def make_table(rows: int = 120, seed: int = 0) -> pd.DataFrame:
    """A table with columns of all kinds."""
    rng = np.random.default_rng(seed)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), "D")
    return pd.DataFrame(
        {
            "size": rng.lognormal(size=rows),
            "count": rng.poisson(3, rows),
            "amount": np.where(rng.random(rows) < 0.3, 0.0, rng.lognormal(size=rows)),
            "kind": rng.choice(["a", "b", "c"], rows),
            "day": days,
        }
    )


def make_victims(folder: Path) -> Victims:
    """Fit the models, unless the folder has them already."""
    folder.mkdir(parents=True, exist_ok=True)
    table = make_table()
    options: dict[str, dict[str, Any]] = {
        "table": {"members": ["cholesky", "gaussian"], "flow_options": SMALL},
        "nsf": {"flow": "nsf", "members": ["plain"], "flow_options": SMALL_NSF},
        "realnvp": {"flow": "realnvp", "members": ["plain"], "flow_options": {"transforms": 2, "hidden_features": [8]}},
        "variational": {"members": ["plain"], "flow_options": SMALL, "dequantization": "variational"},
    }
    paths = [folder / f"{name}.elf" for name in [*options, "classifier", "imputer", "elf", "images"]]
    checkpoint = folder / "fit.checkpoint"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path, settings in zip(paths, options.values(), strict=False):
            if not path.exists():
                elflow.FlowDensity(max_steps=20, random_state=0, **settings).fit(table).save(path)
        density = elflow.FlowDensity(max_steps=20, members=["plain"], flow_options=SMALL)
        if not paths[-4].exists():
            classifier = elflow.FlowClassifier(density, priors=[0.5, 0.2, 0.3], random_state=0)
            classifier.fit(table.drop(columns="kind"), table["kind"]).save(paths[-4])
        if not paths[-3].exists():
            elflow.FlowImputer(density, random_state=0).fit(table.mask(table["amount"] > 2)).save(paths[-3])
        torch.manual_seed(0)
        if not paths[-2].exists():
            elflow.save(elflow.ELF(3, 2, transforms=2, units=4, hidden_features=(8,)), paths[-2])
        if not paths[-1].exists():
            images = elflow.ImageELF(
                (1, 4, 4), levels=8, classes=3, scales=2, transforms=1, units=4, channels=4, blocks=1
            )
            elflow.save(images, paths[-1])
        if not checkpoint.exists():
            flow = elflow.ELF(2, transforms=1, units=4, hidden_features=(8,))
            recipe = Recipe(max_steps=20, round_steps=10, batch_size=16)
            fit(flow, torch.randn(64, 2), torch.randn(16, 2), recipe, checkpoint=checkpoint, fingerprint=FINGERPRINT)
    return Victims([Model(path) for path in paths], checkpoint, table)
