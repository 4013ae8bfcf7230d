"""Write golden model files of the present format version: `python tests/golden/make.py tests/golden/v2`.

Each model is stored beside a JSON file with inputs and the scores that it had when it was saved. The files of a version
are made once, by the code that introduced the version, and never again: `tests/test_golden.py` loads all of them.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import elflow
from elflow.activations import QELU

SMALL = {"transforms": 2, "units": 4, "hidden_features": [8]}
N_ROWS, N_SCORED = 200, 12


def make_table() -> pd.DataFrame:
    """A table with columns of all kinds, atoms and missing values."""
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, N_ROWS), "D")
    amount = np.where(rng.random(N_ROWS) < 0.3, 0.0, rng.lognormal(size=N_ROWS))
    table = pd.DataFrame(
        {
            "size": rng.lognormal(size=N_ROWS),
            "height": np.round(rng.normal(170, 10, N_ROWS)),
            "amount": amount,
            "count": rng.poisson(3, N_ROWS),
            "kind": rng.choice(["a", "b", "c"], N_ROWS),
            "day": days,
            "ok": rng.random(N_ROWS) < 0.3,
        }
    )
    table.loc[::9, "size"] = np.nan
    return table


def make_payments() -> pd.DataFrame:
    """A table with a category on which the distribution of a number depends."""
    rng = np.random.default_rng(3)
    currency = rng.choice(["EUR", "JPY", "USD"], N_ROWS, p=[0.55, 0.15, 0.3])
    scale = pd.Series(currency).map({"EUR": 40.0, "JPY": 5_000.0, "USD": 400.0})
    return pd.DataFrame({"amount": scale * rng.lognormal(sigma=0.6, size=N_ROWS), "currency": currency})


def make_bent_payments() -> pd.DataFrame:
    """The same table with a second number that no mixture of a few Gaussians fits, so that the flow is kept."""
    table = make_payments()
    bend = np.log(table["amount"]).groupby(table["currency"]).transform(lambda x: x - x.mean())
    return table.assign(fee=8 * bend**2 + 0.1 * np.random.default_rng(4).standard_normal(N_ROWS))


def to_records(table: pd.DataFrame) -> list[dict[str, object]]:
    """Rows as JSON, with all digits; missing values are null."""
    text = table.assign(**{name: table[name].astype(str) for name in table.select_dtypes("datetime")})
    return [{k: None if v != v else v for k, v in row.items()} for row in text.to_dict("records")]


def save_density(folder: Path, name: str, table: pd.DataFrame, context: list[str], **options: object) -> None:
    """Fit and store a density of a table."""
    density = elflow.FlowDensity(random_state=0, missing="model", **{"max_steps": 60, "members": ["plain"]} | options)
    given = table[context] if context else None
    rows = table.drop(columns=context)
    density.fit(rows, context=given)
    density.save(folder / f"{name}.elf", notes={"golden": name})
    density = elflow.load(folder / f"{name}.elf")
    some = slice(0, N_SCORED)
    scores = density.score_samples(rows[some], context=None if given is None else given[some])
    facts = {
        "context": context,
        "rows": to_records(table[some]),
        "scores": scores.tolist(),
        "anomaly": density.percentiles(scores).tolist(),
        "origins": density.row_origin(rows[some]).tolist(),
        "sample": to_records(density.sample(1, random_state=0, context=None if given is None else given[some]).head(3)),
    }
    (folder / f"{name}.json").write_text(json.dumps(facts) + "\n")


def save_estimators(folder: Path, table: pd.DataFrame) -> None:
    """Fit and store a classifier, a regressor and an imputer."""
    density = elflow.FlowDensity(flow_options=SMALL, max_steps=60, members=["plain"])
    numbers, labels = table[["height", "amount", "count"]], table["kind"].map({"a": 1, "b": 2, "c": 4}).astype("int16")
    holes = numbers.mask(np.random.default_rng(1).random(numbers.shape) < 0.1)
    estimators = {
        "table-classifier": elflow.FlowClassifier(density, odd_share=0.1, random_state=0).fit(numbers, labels),
        "table-regressor": elflow.FlowRegressor(density, random_state=0).fit(
            numbers[["amount", "count"]], table["height"]
        ),
        "table-imputer": elflow.FlowImputer(density, random_state=0).fit(holes),
    }
    for name, estimator in estimators.items():
        estimator.save(folder / f"{name}.elf", notes={"golden": name})
        rows = (holes if name == "table-imputer" else numbers)[:N_SCORED]
        facts = {"rows": to_records(rows), "answers": answer(elflow.load(folder / f"{name}.elf"), rows)}
        (folder / f"{name}.json").write_text(json.dumps(facts) + "\n")


def answer(
    estimator: elflow.FlowClassifier | elflow.FlowRegressor | elflow.FlowImputer, rows: pd.DataFrame
) -> dict[str, list[object]]:
    """Answers of a fitted estimator for some rows."""
    if isinstance(estimator, elflow.FlowClassifier):
        answers = {"predict": estimator.predict(rows), "proba": estimator.predict_proba(rows)}
        answers["anomaly"] = estimator.anomaly_score(rows)
    elif isinstance(estimator, elflow.FlowRegressor):
        answers = {"quantiles": estimator.predict_quantiles(rows[["amount", "count"]], [0.1, 0.5, 0.9])}
    else:
        answers = {"transform": estimator.transform(rows).to_numpy()}
    return {name: values.tolist() for name, values in answers.items()}


def save_flow(folder: Path, name: str, flow: elflow.ELF) -> None:
    """Store a flow of vectors."""
    torch.manual_seed(1)
    x = torch.randn(64, flow.features, dtype=flow.dtype)
    c = torch.randn(64, flow.context, dtype=flow.dtype) if flow.context else None
    flow.train()(c).log_prob(x)  # sets the ActNorms
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    elflow.save(flow, folder / f"{name}.elf")
    flow = elflow.load(folder / f"{name}.elf")
    x, c = x[:N_SCORED], None if c is None else c[:N_SCORED]
    facts = {
        "x": x.tolist(),
        "c": None if c is None else c.tolist(),
        "scores": flow(c).log_prob(x).tolist(),
    }
    (folder / f"{name}.json").write_text(json.dumps(facts) + "\n")


def save_images(folder: Path, name: str) -> None:
    """Store a flow of images."""
    torch.manual_seed(2)
    flow = elflow.ImageELF(
        (1, 4, 4), levels=8, scales=2, transforms=1, units=4, channels=4, blocks=1, classes=3, warp="histogram",
    )  # fmt: skip
    x, c = torch.randint(8, (40, 1, 4, 4)), torch.arange(40) % 3
    flow.train().log_prob(x, c)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    elflow.save(flow, folder / f"{name}.elf")
    flow = elflow.load(folder / f"{name}.elf")
    noise = flow.draw_noise(4)
    scores = flow.log_prob(x[:4], c[:4], noise).tolist()
    facts = {"x": x[:4].tolist(), "c": c[:4].tolist(), "noise": noise.tolist(), "scores": scores}
    (folder / f"{name}.json").write_text(json.dumps(facts) + "\n")


def main(folder: Path) -> None:
    """Write all golden files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    table = make_table()
    numbers = table[["height", "amount", "count"]]
    save_density(folder, "table", table, [], flow_options=SMALL, members=None, max_steps=400)
    save_density(
        folder, "table-context", table, ["kind", "height"], flow_options=SMALL, members=["cholesky", "identity"]
    )
    save_density(folder, "table-variational", numbers, [], flow_options=SMALL, dequantization="variational")
    save_density(folder, "table-gaussian", table, [], flow_options=SMALL, dequantization="gaussian")
    hidden = {"transforms": 2, "hidden_features": [8]}
    save_density(folder, "table-nsf", numbers, [], flow="nsf", flow_options=hidden | {"bins": 4})
    save_density(folder, "table-maf", numbers, ["count"], flow="maf", flow_options=hidden | {"randperm": True})
    save_density(folder, "table-realnvp", numbers, [], flow="realnvp", flow_options=hidden)
    save_density(folder, "table-strata", make_payments(), [], flow_options=SMALL, members=["plain", "strata"])
    bent = {"max_steps": 800, "learning_rate": 0.01, "flow_options": SMALL | {"hidden_features": [16]}}
    save_density(folder, "table-groups", make_bent_payments(), [], members=["plain", "strata"], **bent)
    save_estimators(folder, table)
    torch.manual_seed(0)
    save_flow(folder, "elf", elflow.ELF(3, 2, **SMALL))
    weights = elflow.ELF(4, order=(1, 0, 3, 2), rank=3, activation=QELU, parametrization="weights", **SMALL)
    save_flow(folder, "elf-weights", weights.double())
    save_images(folder, "images")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
