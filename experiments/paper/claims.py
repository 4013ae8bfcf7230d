"""The paper's claims, each with the paper's figure, ours, and a verdict, computed from records of the experiments.

`evaluate` judges the claims of one experiment by its records: every report ends with that table. `render` makes the
table of all claims from the stored results, for the documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import StatisticsError

from experiments.data.images import DATASETS
from experiments.framework.experiment import Experiment, Plan, Record, Report, Table
from experiments.framework.page import render_table
from experiments.framework.results import FOLDER, read_result
from experiments.paper._image_benchmarks import read_image_benchmarks
from experiments.paper.judges import densities, mathematics, toys, training
from experiments.paper.judges.finding import Finding, Records
from experiments.paper.judges.toys import PEERS
from experiments.paper.published import TEXT, TOY_SYSTEMS, find

__all__ = ["CLAIMS", "END", "START", "Claim", "evaluate", "render", "update_page", "with_claims"]

START, END = "<!-- claims -->", "<!-- end of claims -->"
"""Marks around the table in the documentation."""
COLUMNS = ["claim", "paper", "here", "verdict"]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Arguments:
        place: The section, table or appendix.
        text: The claim in our words.
        paper: The paper's figure.
        experiment: The experiment that tests it.
        judge: Judges it by the records of the experiment; None if they do not contain what is needed.
        arrange: Arranges stored results of the experiment: the first that the judge can use decides.
    """

    place: str
    text: str
    paper: str
    experiment: str
    judge: Callable[[Records], Finding | None]
    arrange: Callable[[Sequence[Records]], Sequence[Records]] = tuple

    def row(self, *results: Records) -> list[str]:
        """The row of the table, by the first of the results that has the records that the claim needs."""
        findings = (finding for records in self.arrange(results) if (finding := self._judge(records)) is not None)
        absent = Finding("-", "not run", f"`python -m experiments paper {self.experiment}`")
        finding = next(findings, absent)
        verdict = finding.verdict + (f": {finding.remark}" if finding.remark else "")
        return [f"{self.text} ({self.place})", self.paper, finding.here, verdict]

    def _judge(self, records: Records) -> Finding | None:
        try:
            return self.judge(records)
        except (KeyError, StopIteration, StatisticsError):  # records of failed jobs are missing
            return None


TABLES = ("power", "gas", "hepmass", "miniboone")


def _format_figure(table: int, dataset: str, digits: int = 2) -> str:
    one = find(table, "ELF-AR", dataset)
    error = f" ± {one.error:.2f}" if one.error is not None else ""
    return f"{one.value:.{digits}f}{error}" + (f" ({one.uniform:.2f} uniform)" if one.uniform is not None else "")


def _format_lead(table: int, dataset: str, other: str) -> str:
    """The difference between ELF-AR and another system in the paper; with uniform dequantisation for images."""
    ours, theirs = find(table, "ELF-AR", dataset), find(table, other, dataset)
    if ours.uniform is not None:
        return f"{dataset}: {theirs.value - ours.uniform:.2f} bits"
    return f"{ours.value - theirs.value:+.2f} nats"


def _format_gains() -> str:
    """The bits that learned noise saves in the paper."""
    figures = [find(3, "ELF-AR", name) for name in ("mnist", "cifar10")]
    return ", ".join(f"{one.dataset} {one.uniform - one.value:.2f}" for one in figures if one.uniform is not None)


def _list_toy_claims(name: str, title: str, table: int, digits: int, rank: str) -> list[Claim]:
    """The claims about a toy distribution."""
    peers = ", ".join(f"{TOY_SYSTEMS[m]} {find(table, TOY_SYSTEMS[m], name).value:.{digits}f}" for m in PEERS)
    printed = _format_figure(table, name, digits)
    claims: list[tuple[str, str, Callable[[Records], Finding | None], Callable[..., Sequence[Records]]]] = [
        (f"ELF-AR on {title}, with our bumps", printed, toys.judge_toy(name, "elf", digits), tuple),
        (
            f"ELF-AR on {title}, with the paper's weights",
            _format_figure(table, name, digits),
            toys.judge_toy(name, "elf-paper", digits),
            tuple,
        ),
        (f"ELF-AR is first on {title}", rank, toys.judge_rank(name), toys.prefer_most_systems),
        (f"Compared systems on {title}", peers, toys.judge_peers(name, digits), toys.fill_in_models),
        (
            f"ELF-AR trains fastest on {title}, but for Affine Coupling",
            toys.print_times(name, table),
            toys.judge_speed(name),
            tuple,
        ),
    ]
    return [Claim(f"table {table}", text, paper, name, judge, arrange) for text, paper, judge, arrange in claims]


CLAIMS: Sequence[Claim] = [
    Claim("4.1", "The Lipschitz constant of a network is exact", "proof", "networks", mathematics.judge_networks),
    Claim("B", "Computing it takes O(H^2)", "H^2", "runtime", mathematics.judge_cost),
    Claim(
        "B",
        "Time is quadratic in units and linear in networks, R^2 of the fits",
        f"{TEXT['r2_units']} and {TEXT['r2_networks']}",
        "runtime",
        mathematics.judge_fits,
    ),
    Claim(
        "5.1",
        "Exact constants learn abs(x), spectral norms do not",
        "figure 4",
        "absolute-value",
        mathematics.judge_absolute,
    ),
    Claim("D", "ELF with ReLU learns nothing", "figure 7", "relu-flow", mathematics.judge_relu("elf-relu", False)),
    Claim(
        "D",
        "Residual flows with ReLU learn nothing",
        "figure 7",
        "relu-flow",
        mathematics.judge_relu("residual-relu", False),
    ),
    Claim("D", "Residual flows with ELU learn", "figure 7", "relu-flow", mathematics.judge_relu("residual-elu", True)),
    Claim(
        "eq. 3.2",
        "The fixed-point iteration converges as Lip^n / (1 - Lip)",
        "bound",
        "theory",
        mathematics.judge_convergence,
    ),
    Claim("4.3", "The iteration also converges over the whole vector", "stated", "theory", mathematics.judge_vectors),
    Claim(
        "4",
        "Log-determinants lie between d ln(1 - Lip) and d ln(1 + Lip)",
        "bound",
        "theory",
        mathematics.judge_determinants,
    ),
    Claim(
        "lemma A.2",
        "Increasing maps are affine maps of x + g",
        "proof",
        "theory",
        mathematics.judge_epsilon("lemma-a2"),
    ),
    Claim(
        "lemma A.5",
        "FELU networks approximate 1-Lipschitz functions",
        "proof",
        "theory",
        mathematics.judge_epsilon("lemma-felu", "with the sign corrected"),
    ),
    Claim(
        "theorem A.1",
        "Hypernetworks of them do so for every context",
        "proof",
        "theory",
        mathematics.judge_epsilon("theorem-a1", "d = 2"),
    ),
    Claim("5.4.1", "The one-dimensional map has no closed-form inverse", "none", "sampling", mathematics.judge_inverse),
    Claim(
        "4.3",
        "The iteration over the vector is an efficient inverse",
        "stated",
        "sampling",
        mathematics.judge_fixed_point,
    ),
    Claim(
        "5.4.1",
        "Evaluations of a sample, and speed-up over one value at a time",
        f"{TEXT['sampling_calls']} instead of {TEXT['cifar10_dimensions']:,}, {TEXT['sampling_speedup']:.0f} times",
        "sampling",
        mathematics.judge_speedup,
    ),
    *_list_toy_claims("eight-gaussians", "eight Gaussians", 1, 1, "tied with CP-Flow"),
    *_list_toy_claims("checkerboard", "the checkerboard", 6, 2, "tied with NAF"),
    Claim(
        "table 2",
        "ELF-AR on POWER, GAS, HEPMASS, MINIBOONE",
        ", ".join(_format_figure(2, name) for name in TABLES),
        "tabular",
        densities.judge_tables(TABLES),
    ),
    Claim("table 2", "ELF-AR on BSDS300", _format_figure(2, "bsds300"), "tabular", densities.judge_patches),
    Claim(
        "table 2",
        "ELF-AR is ahead of MAF on BSDS300",
        _format_lead(2, "bsds300", "MAF"),
        "tabular",
        densities.judge_table_rank,
    ),
    *(
        Claim(
            "table 3",
            f"ELF-AR on {DATASETS[name].title}",
            _format_figure(3, name),
            "images",
            densities.judge_images(name),
        )
        for name in ("mnist", "cifar10", "imagenet32", "imagenet64")
    ),
    Claim("table 3", "Bits that learned noise saves", _format_gains(), "images", densities.judge_variational),
    Claim("table 3", "ELF-AR is ahead of Glow", _format_lead(3, "mnist", "Glow"), "images", densities.judge_glow),
    Claim(
        "tables 4, 5",
        "Parameters of the small models",
        "1.9M, 1.9M, 4.1M",
        "parameter-efficiency",
        densities.judge_counts,
    ),
    Claim(
        "table 4",
        "MNIST with 1.9M parameters",
        _format_figure(4, "mnist"),
        "parameter-efficiency",
        densities.judge_small,
    ),
    Claim("H", "Samples look like the data", "figures 11, 12", "samples", densities.judge_samples),
    Claim("6", "Narrow modes lead to bad local minima", "stated", "ablation", training.judge_minima),
    Claim(
        "6",
        "There is no bias towards simple solutions where data are few",
        "stated",
        "limits",
        training.judge_simplicity,
    ),
    Claim("F", "Averaged weights and clipped gradients help", "used", "limits", training.judge_averaging),
    Claim("6", "Parameters grow fast with the dimension", "stated", "theory", mathematics.judge_growth),
]


def evaluate(experiment: str, records: Records) -> Table | None:
    """The table of the claims that an experiment tests, by its records; None if it tests none. Claims whose jobs were
    skipped, failed or have no data are not run."""
    rows = [claim.row(records) for claim in CLAIMS if claim.experiment == experiment]
    note = (
        "Verdicts are computed: figures are reproduced, better, worse or not comparable, statements reproduced or not."
    )
    return Table("Paper, here, verdict", COLUMNS, rows, note) if rows else None


def with_claims(experiment: Experiment) -> Experiment:
    """The experiment with the table of its claims at the end of its report."""

    def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
        made = experiment.report(plan, records, folder)
        table = evaluate(experiment.name, records)
        return made if table is None else replace(made, tables=[*made.tables, table])

    return replace(experiment, report=report)


def render(results: Path | None = None) -> str:
    """The table of all claims as Markdown, from the stored results.

    Arguments:
        results: The folder of stored results; None for that of the repository.
    """
    stored = {name: _read_records(name, results or FOLDER) for name in {claim.experiment for claim in CLAIMS}}
    rows = [claim.row(*stored[claim.experiment]) for claim in CLAIMS]
    return render_table({"title": "", "columns": COLUMNS, "rows": rows, "note": ""}).removeprefix("### ").strip()


def _read_records(name: str, results: Path) -> list[Records]:
    """The stored records of an experiment. Those with the paper's number of steps, `NAME-long`, come first, and those
    of image models after an hour. They are not mixed with the others: models must not be ranked after different numbers
    of steps."""
    found: list[Records] = [read_image_benchmarks(results)] if name == "images" else []
    for each in (f"{name}-long", name):
        with suppress(FileNotFoundError):
            found.append(read_result("paper", each, results)["records"])
    return found


def update_page(path: Path) -> bool:
    """Replace the table between the marks of a Markdown file; return whether it changed."""
    text = path.read_text(encoding="utf-8")
    if START not in text or END not in text:
        raise ValueError(f"{path} must contain the lines {START} and {END}")
    before, rest = text.split(START, 1)
    new = f"{before}{START}\n\n{render()}\n\n{END}{rest.split(END, 1)[1]}"
    if new != text:
        path.write_text(new, encoding="utf-8")
    return new != text
