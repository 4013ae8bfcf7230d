"""Commands that inspect models: `elflow report`, `elflow info` and `elflow verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elflow.cli import _options
from elflow.cli._options import Data, MaxMemory, Model, NaValues, Seed, Threads
from elflow.cli._terminal import describe_columns, format_mean, format_shape, show, show_columns

if TYPE_CHECKING:
    from elflow.training import Training


def report(
    model: Model,
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write.", show_default=True)] = Path(
        "report.html"
    ),
    na: NaValues = None,
    max_memory: MaxMemory = None,
    explore: Annotated[
        str | None,
        typer.Option(
            help="Address of a running `elflow explore` or `elflow serve`, to link to.",
            metavar="URL",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Write a report on the quality of a model as an HTML page, and print its findings.

    \b
    Example:
      elflow report model.elf data.csv -o report.html
      elflow report model.elf data.csv --explore http://127.0.0.1:8765

    If DATA is the table the model was fitted to, only held-out rows are
    evaluated.
    """
    from elflow import report as reports
    from elflow.io.tables import scan_table

    _options.check_output(output, data, model)
    est = _options.load_density(model)
    _options.set_threads(threads)
    memory = _options.parse_memory(max_memory)
    with _options.rename_argument("path", "DATA"), _options.rename_argument("max_memory", "--max-memory"):
        frame = scan_table(data, _options.list_known_columns(est), na_values=na or []).read(memory)
    rows, context = _options.split_context(est, frame)
    with _options.rename_argument("explore", "--explore"):
        findings = reports.write(est, rows, output, context=context, random_state=seed, explore=explore)
    verdicts = reports.judge(findings)
    show([("report", str(output))])
    show(
        [
            (verdict.title, f"{reports.LEVELS[verdict.level]}: {verdict.value} {verdict.unit}. {verdict.reading}")
            for verdict in verdicts
        ]
    )


def info(
    model: Annotated[Path, typer.Argument(help="Model of a table or of images.", metavar="MODEL", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Describe a model: its architecture, columns and training.

    \b
    Examples:
      elflow info model.elf
      elflow info model.elf --json
    """
    from elflow.serialization import read_training

    loaded = _options.load_model(model)
    with _options.rename_argument("path", "MODEL"):
        training = read_training(model)
    facts = _collect_facts(model, loaded, training)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    lines = [("model", str(model)), *_describe_estimator(facts.get("estimator"))]
    lines += [("flow", facts["flow"]), ("parameters", f"{facts['parameters']:,}")]
    if "shape" in facts:
        lines += _describe_images(facts)
    elif "columns" in facts:
        weights = ", ".join(f"{weight:.1%} {name}" for name, weight in facts["members"])
        lines += [("mixture", weights), ("fitted to", f"{facts['rows']:,} rows")]
    else:
        lines += [("features", str(facts["features"])), ("context", str(facts["context"]))]
    if training is not None:
        lines += _describe_training(facts, training)
    show([*lines, ("elflow version", facts["elflow"])])
    if "columns" in facts:
        show_columns(facts["columns"])


def verify(
    model: Annotated[Path, typer.Argument(help="Model of a table or of images.", metavar="MODEL", show_default=False)],
) -> None:
    """Verify a model file: its digest, and that this machine computes the scores it had when it was saved.

    \b
    Example:
      elflow verify model.elf

    The exit code is 2 if a check fails.
    """
    from elflow import __version__
    from elflow.verification import verify as verify_model

    with _options.rename_argument("path", "MODEL"):
        found = verify_model(model)
    versions = ", ".join(f"{name} {version}" for name, version in found.saved_by.items()) or "not stored"
    show(
        [
            ("model", f"{model}, format version {found.format_version}"),
            ("digest", found.digest or "none: files of format version 1 have none; save the model again to add one"),
            ("saved by", versions),
            ("read by", f"elflow {__version__}, torch {found.torch}"),
            ("scores", found.describe_scores()),
            ("round trip", "saving and loading again keeps all weights and scores"),
        ]
    )


def _collect_facts(path: Path, model: Any, training: Training | None) -> dict[str, Any]:
    """Facts about a model, as JSON has them."""
    import elflow
    from elflow.serialization import read_notes

    facts: dict[str, Any] = {"model": str(path)}
    if hasattr(model, "density_"):
        facts["estimator"] = _collect_estimator_facts(model)
        model = model.density_
    if hasattr(model, "schema_"):
        columns = describe_columns(model.schema_, "modelled") + describe_columns(model.context_schema_, "context")
        facts |= {"flow": model.flow, "parameters": model.n_parameters_, "rows": model.n_rows_, "columns": columns}
        facts["members"] = model.members_
    else:
        facts |= {"flow": type(model).__name__, "parameters": sum(p.numel() for p in model.parameters())}
        config = model.config
        if isinstance(model, elflow.ImageELF):
            notes = read_notes(path)
            facts |= config | {"activation": config["activation"]["name"]}
            facts |= {name: notes.get(name) for name in ("images", "bits_per_dim", "standard_error")}
        else:
            facts |= {"features": config["features"], "context": config["context"]}
    return facts | {"training": None if training is None else _summarize(training), "elflow": elflow.__version__}


def _collect_estimator_facts(estimator: Any) -> dict[str, Any]:
    """Facts about an estimator besides those about its density."""
    facts: dict[str, Any] = {"class": type(estimator).__name__}
    if hasattr(estimator, "classes_"):
        facts |= {"classes": estimator.classes_.tolist(), "priors": estimator.class_prior_.tolist()}
        facts["odd_share"] = estimator.odd_share
    return facts | ({"method": estimator.method} if hasattr(estimator, "method") else {})


def _describe_estimator(facts: dict[str, Any] | None) -> list[tuple[str, str]]:
    if facts is None:
        return []
    lines = [("estimator", facts["class"])]
    if "classes" in facts:
        shares = zip(facts["classes"], facts["priors"], strict=True)
        lines.append(("classes", ", ".join(f"{prior:.1%} {label}" for label, prior in shares)))
        lines.append(("odd share", f"{facts['odd_share']:g}"))
    return [*lines, *([("method", facts["method"])] if "method" in facts else [])]


def _summarize(training: Training) -> dict[str, Any]:
    scores = [entry["validation"] for entry in training.history if "validation" in entry]
    return {
        "steps": training.steps,
        "seconds": training.seconds,
        "stopped": training.stopped,
        "rounds": len(training.history),
        "best_round": scores.index(max(scores)) + 1 if scores else None,
        "validation": max(scores) if scores else None,
    }


def _describe_images(facts: dict[str, Any]) -> list[tuple[str, str]]:
    context = f"{facts['classes']} classes" if facts["classes"] else f"{facts['context']} numbers"
    return [
        ("images", f"{format_shape(facts['shape'])}, {facts['levels']} levels"),
        *([("context", context)] if facts["classes"] or facts["context"] else []),
        ("dequantization", f"{facts['dequantization']}, warp {facts['warp']}"),
        ("layers", f"{facts['transforms']} on each of {facts['scales']} scales, {facts['units']} units"),
        ("networks", f"{facts['blocks']} blocks of {facts['channels']} channels"),
        *([("fitted to", f"{facts['images']:,} images")] if isinstance(facts["images"], int) else []),
    ]


def _describe_training(facts: dict[str, Any], training: Training) -> list[tuple[str, str]]:
    lines = [("training", training.describe())]
    bits, error = facts.get("bits_per_dim"), facts.get("standard_error")
    if isinstance(bits, float) and isinstance(error, float | None):
        return [*lines, ("held-out bits/dim", format_mean(bits, error, "bits/dim"))]
    summary = facts["training"]
    if summary["validation"] is not None:
        best = f"{summary['validation']:.4f} nats per row, in round {summary['best_round']} of {summary['rounds']}"
        lines.append(("best validation log-likelihood", best))
    return lines
