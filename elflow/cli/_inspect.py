"""`elflow info` and `elflow report`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from elflow.cli._images import by
from elflow.cli._models import check_output, described, known_columns, load_density, split, use_threads, why_stopped
from elflow.cli._options import Data, Missing, Model, Seed, Threads
from elflow.cli._terminal import duration, show, show_columns
from elflow.cli._trained import Trained, load_trained


def report(
    model: Model,
    data: Data,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the page goes, as .html.", show_default=False)
    ] = Path("report.html"),
    na: Missing = None,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Writes a page about how good a model is, and prints its verdicts.

    \b
    elflow report model.elf data.csv -o report.html

    Rows that the model was not trained on are used where the data is what it was fitted to.
    """
    import pandas as pd

    from elflow import report as pages
    from elflow.io.tables import scan_table

    check_output(output, data, model)
    est = load_density(model)
    use_threads(threads)
    frame = pd.concat(scan_table(data, known_columns(est), na_values=na or []), ignore_index=True)
    rows, context = split(est, frame)
    found = pages.write(est, rows, output, context=context, random_state=seed)
    show([(verdict.title, f"{verdict.value} {verdict.unit}. {verdict.reading}") for verdict in pages.judge(found)])
    show([("report", str(output))])


def info(
    model: Model,
    as_json: Annotated[bool, typer.Option("--json", help="Print it for a program to read.")] = False,
) -> None:
    """Says what is in a model.

    \b
    elflow info model.elf
    elflow info model.elf --json
    """
    import elflow

    found = elflow.load(model)
    facts = _facts(model, found)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    lines = [("model", str(model)), ("flow", facts["flow"]), ("parameters", f"{facts['parameters']:,}")]
    if "shape" in facts:
        show([*lines, *_image_lines(facts)])
        return
    if "columns" not in facts:
        show([*lines, ("features", str(facts["features"])), ("context", str(facts["context"]))])
        return
    history = facts["history"]
    took = f"{history['steps']:,} steps in {duration(facts['seconds'])}, until {why_stopped(facts['stopped'])}"
    best = f"{history['validation']:.4f} nats per row, round {history['best']} of {history['rounds']}"
    lines += [
        ("fitted to", f"{facts['rows']:,} rows"),
        ("trained", took),
        ("best held-out bound", best),
        ("elflow", facts["elflow"]),
    ]
    show(lines)
    show_columns(facts["columns"])


def _facts(path: Path, model: Any) -> dict[str, Any]:
    """What there is to know about a model, as JSON has it."""
    import elflow

    if not hasattr(model, "schema_"):
        count = sum(p.numel() for p in model.parameters())
        config = model.config
        facts = {"model": str(path), "flow": type(model).__name__, "parameters": count}
        if isinstance(model, elflow.ImageELF):
            trained = load_trained(path)
            facts |= config | {"activation": config["activation"].name}
            facts |= {"training": None if trained is None else asdict(trained)}
        else:
            facts |= {"features": config["features"], "context": config["context"]}
        return facts | {"elflow": elflow.__version__}
    scores = [entry["validation"] for entry in model.history_]
    best = max(scores)
    return {
        "model": str(path),
        "flow": model.flow,
        "parameters": model.n_parameters_,
        "rows": model.n_rows_,
        "seconds": model.seconds_,
        "stopped": model.stopped_,
        "history": {
            "rounds": len(scores),
            "steps": model.history_[-1]["step"],
            "best": scores.index(best) + 1,
            "validation": best,
        },
        "columns": described(model.schema_, "modelled") + described(model.context_schema_, "context"),
        "elflow": elflow.__version__,
    }


def _image_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    given = f"{facts['classes']} classes" if facts["classes"] else f"{facts['context']} numbers"
    lines = [
        ("images", f"{by(*facts['shape'])}, {facts['levels']} levels"),
        *([("given", given)] if facts["classes"] or facts["context"] else []),
        ("dequantization", f"{facts['dequantization']}, warp {facts['warp']}"),
        ("layers", f"{facts['transforms']} on each of {facts['scales']} scales, {facts['units']} units"),
        ("networks", f"{facts['blocks']} blocks of {facts['channels']} channels"),
    ]
    if facts["training"] is not None:
        trained = Trained(**facts["training"])
        lines += [("fitted to", f"{trained.images:,} images"), ("trained", trained.how), ("held out", trained.held_out)]
    return [*lines, ("elflow", facts["elflow"])]
