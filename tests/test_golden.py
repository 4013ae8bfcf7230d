"""Golden files: model files of all format versions load, with the scores that they had when they were saved."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from golden.make import answer

import elflow
from elflow._model_file import VERSION, read_model

FOLDER = Path(__file__).parent / "golden"
FILES = sorted(FOLDER.glob("v*/*.elf"))
ESTIMATORS = [FOLDER / "v2" / f"table-{name}.elf" for name in ("classifier", "regressor", "imputer")]
MODELS = [path for path in FILES if path not in ESTIMATORS]
TOLERANCE = {"double": 1e-9, "single": 1e-4}
"""Absolute tolerance of scores, which round differently on other processors and with other versions of torch."""


def score(model, facts):
    """Scores of the stored inputs."""
    if "noise" in facts:
        given = (torch.tensor(facts[name]) for name in ("x", "c", "noise"))
        return model.log_prob(*given).tolist()
    if "x" in facts:
        x, c = (None if facts[name] is None else torch.tensor(facts[name], dtype=model.dtype) for name in ("x", "c"))
        return model(c).log_prob(x).tolist()
    rows = pd.DataFrame(facts["rows"])
    context = rows[facts["context"]] if facts["context"] else None
    return model.score_samples(rows.drop(columns=facts["context"]), context=context)


def test_all_versions_have_golden_files():
    versions = {int(path.parent.name[1:]) for path in FILES}
    assert versions == set(range(1, VERSION + 1))
    assert all(path.stat().st_size < 100_000 for path in FILES)


@pytest.mark.parametrize("path", MODELS, ids=[f"{path.parent.name}-{path.stem}" for path in MODELS])
def test_scores_are_those_of_the_day_of_saving(path):
    assert read_model(path, header_only=True).version == int(path.parent.name[1:])
    facts, model = json.loads(path.with_suffix(".json").read_text()), elflow.load(path)
    is_single = not isinstance(model, elflow.FlowDensity) and model.dtype == torch.float32
    found = score(model, facts)
    np.testing.assert_allclose(found, facts["scores"], rtol=0, atol=TOLERANCE["single" if is_single else "double"])
    if isinstance(model, elflow.FlowDensity):
        np.testing.assert_allclose(model.percentiles(facts["scores"]), facts["anomaly"], rtol=1e-9)
        rows = pd.DataFrame(facts["rows"]).drop(columns=facts["context"])
        assert model.row_origin(rows).tolist() == facts["origins"]


@pytest.mark.parametrize("path", ESTIMATORS, ids=lambda path: path.stem)
def test_answers_of_estimators_are_those_of_the_day_of_saving(path):
    facts = json.loads(path.with_suffix(".json").read_text())
    found = answer(elflow.load(path), pd.DataFrame(facts["rows"]))
    for name, expected in facts["answers"].items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, atol=1e-9, err_msg=name)
