"""Published figures: every number of tables 1 to 6 of the paper, those in its text, and those of the original papers.

`PAPER` has the paper's tables, in their own order. `ORIGINAL` has figures of other papers for the same data: systems
that the paper leaves out, and rows that the paper gives otherwise. Nothing of it was measured here.

Log-likelihoods of tables are in nats, for test rows prepared as by Papamakarios et al. (2017), and those of images are
in bits per dimension, for 8-bit test images. Figures in `ORIGINAL` were looked up in one of these sources:

* Tables 3 and 5 of Kobyzev, Prince and Brubaker, "Normalizing Flows: An Introduction and Review" (2020), which lists
  figures "as they were presented in the corresponding papers": all but those of the next two lines.
* The README of Transformation Autoregressive Networks (github.com/lupalab/tan): MADE.
* The main table of Durkan et al., "Neural Spline Flows" (2019), in a public write-up of that paper.

If a paper has a flow with 5 and with 10 layers, the better one of each data set is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["IMAGES", "ORIGINAL", "PAPER", "SMALL_IMAGES", "TABULAR", "TEXT", "TOYS", "TOY_SYSTEMS", "Published", "find"]


Times = tuple[float, float, float | None]
"""Minutes of training, seconds of inference, and seconds of sampling, or None."""


@dataclass(frozen=True)
class Published:
    """A published figure.

    Arguments:
        system: The model.
        dataset: The data set: `"power"`, `"gas"`, `"hepmass"`, `"miniboone"`, `"bsds300"`, `"mnist"`, `"cifar10"`,
            `"imagenet32"`, `"imagenet64"`, `"checkerboard"` or `"eight-gaussians"`.
        value: The mean test log-likelihood in nats, or the bits per dimension of images.
        reference: The paper that reports it.
        table: The number of the table of the paper; 0 for other papers.
        error: The printed error: the standard deviation over three models.
        parameters: The printed number of parameters.
        uniform: For variational dequantisation, the bits per dimension with uniform dequantisation.
        variational: Whether the value is with variational dequantisation.
        times: Minutes of training, seconds of inference, and seconds of sampling, for toy distributions.
        footnote: A printed remark on the figure.

    Example:
        >>> best = max((one for one in TABULAR if one.dataset == "power"), key=lambda one: one.value)
        >>> best.system, best.value, best.reference
        ('RQ-NSF (AR)', 0.66, 'Durkan et al. 2019')
    """

    system: str
    dataset: str
    value: float
    reference: str
    table: int = 0
    error: float | None = None
    parameters: int | None = None
    uniform: float | None = None
    variational: bool = False
    times: Times | None = None
    footnote: str = ""


SELF = "Gopal 2021"
TABLE_SETS = ["power", "gas", "hepmass", "miniboone", "bsds300"]
IMAGE_SETS = ["mnist", "cifar10", "imagenet32", "imagenet64"]
CODE = "implementation from github.com/CW-Huang/CP-Flow"
TAKEN = "taken from Huang et al. 2021"
OFFICIAL = "obtained from the official code"
OTHER_SET = "on 10,000 training images, not on the test images; taken from Chen et al. 2020"


# --- the paper --------------------------------------------------------------------------------------------------------


def _make_toy(dataset: str, table: int, system: str, value: float, times: Times, footnote: str = "") -> Published:
    return Published(system, dataset, value, SELF, table, times=times, footnote=footnote)


def _make_tables(system: str, *pairs: tuple[float, float]) -> list[Published]:
    cells = zip(TABLE_SETS, pairs, strict=True)
    return [Published(system, name, value, SELF, 2, error=error) for name, (value, error) in cells]


def _make_images(system: str, values: Sequence[float | None], kind: str = "uniform") -> list[Published]:
    uniform = {("ELF-AR", "mnist"): 0.87, ("ELF-AR", "cifar10"): 3.24, ("Flow++", "cifar10"): 3.29}
    return [
        Published(system, name, value, SELF, 3, uniform=uniform.get((system, name)), variational=kind == "variational")
        for name, value in zip(IMAGE_SETS, values, strict=True)
        if value is not None
    ]


Cell = tuple[float | None, int | None]
"""Bits per dimension and number of parameters."""


def _make_small_images(system: str, mnist: Cell, cifar10: Cell, *footnotes: str) -> list[Published]:
    cells = zip(("mnist", "cifar10"), (mnist, cifar10), footnotes, strict=True)
    return [
        Published(system, name, value, SELF, 4, parameters=parameters, footnote=footnote)
        for name, (value, parameters), footnote in cells
        if value is not None
    ]


def _make_variational(system: str, value: float, parameters: int, footnote: str = "") -> Published:
    return Published(system, "cifar10", value, SELF, 5, parameters=parameters, variational=True, footnote=footnote)


PAPER = [
    # Table 1: eight Gaussians, about 250,000 parameters
    _make_toy("eight-gaussians", 1, "Affine Coupling", -4.0, (1.8, 0.005, 0.003)),
    _make_toy("eight-gaussians", 1, "NAF", -3.0, (15.5, 0.02, None), footnote=CODE),
    _make_toy("eight-gaussians", 1, "Residual Flow", -3.5, (10.1, 0.06, 0.23)),
    _make_toy("eight-gaussians", 1, "CP-Flow", -2.8, (33.7, 0.2, 3.2), footnote=CODE),
    _make_toy("eight-gaussians", 1, "ELF-AR", -2.8, (4.2, 0.04, 0.27)),
    # Table 2: tables
    *_make_tables("RealNVP", (0.17, 0.01), (8.33, 0.14), (-18.71, 0.02), (-13.55, 0.49), (153.28, 1.78)),
    *_make_tables("Glow", (0.17, 0.01), (8.15, 0.40), (-18.92, 0.08), (-11.35, 0.07), (155.07, 0.03)),
    *_make_tables("MADE MoG", (0.40, 0.01), (8.47, 0.02), (-15.15, 0.02), (-12.27, 0.47), (153.71, 0.28)),
    *_make_tables("MAF", (0.24, 0.01), (10.08, 0.02), (-17.73, 0.02), (-12.24, 0.45), (155.69, 0.28)),
    *_make_tables("MAF MoG", (0.30, 0.01), (9.59, 0.02), (-17.39, 0.02), (-11.68, 0.44), (156.36, 0.28)),
    *_make_tables("FFJORD", (0.46, 0.01), (8.59, 0.12), (-14.92, 0.08), (-10.43, 0.04), (157.40, 0.19)),
    *_make_tables("CP-Flow", (0.52, 0.01), (10.36, 0.03), (-16.93, 0.08), (-10.58, 0.07), (154.99, 0.08)),
    *_make_tables("NAF", (0.62, 0.01), (11.96, 0.33), (-15.09, 0.40), (-8.86, 0.15), (157.43, 0.30)),
    *_make_tables("BNAF", (0.61, 0.01), (12.06, 0.09), (-14.71, 0.38), (-8.95, 0.07), (157.36, 0.03)),
    *_make_tables("TAN", (0.60, 0.01), (12.06, 0.02), (-13.78, 0.02), (-11.01, 0.48), (159.80, 0.07)),
    *_make_tables("ELF-AR", (0.62, 0.01), (12.55, 0.03), (-14.05, 0.03), (-9.60, 0.04), (157.81, 0.09)),
    # Table 3: images
    *_make_images("RealNVP", [1.06, 3.49, 4.28, 3.98]),
    *_make_images("Glow", [1.05, 3.35, 4.09, 3.81]),
    *_make_images("FFJORD", [0.99, 3.40, None, None]),
    *_make_images("MALI", [0.87, 3.26, None, None]),
    *_make_images("Residual Flow", [0.97, 3.28, 4.01, 3.76]),
    *_make_images("Flow++", [None, 3.08, 3.86, 3.69], "variational"),
    *_make_images("MaCow", [None, 3.16, None, 3.69], "variational"),
    *_make_images("ANF", [0.93, 3.05, 3.92, 3.66], "variational"),
    *_make_images("VFlow", [None, 2.98, 3.83, 3.66], "variational"),
    *_make_images("ELF-AR", [0.85, 3.06, 3.92, 3.63], "variational"),
    # Table 4: few parameters, uniform dequantisation. Glow has 1.06 on MNIST here and 1.05 in table 3.
    *_make_small_images("Glow", (1.06, None), (3.35, 44_000_000), "", TAKEN),
    *_make_small_images("RQ-NSF (C)", (None, None), (3.38, 11_800_000), "", TAKEN),
    *_make_small_images("Residual Flow", (0.97, 16_600_000), (3.28, 25_200_000), OFFICIAL, OFFICIAL),
    *_make_small_images("CP-Flow", (1.02, 2_900_000), (3.40, 1_900_000), TAKEN, TAKEN),
    *_make_small_images("ELF-AR", (0.92, 1_900_000), (3.33, 1_900_000), "", ""),
    # Table 5: few parameters, variational dequantisation
    _make_variational("Flow++, 3 channels", 3.23, 4_020_000, OTHER_SET),
    _make_variational("VFlow, 4 channels", 3.16, 4_030_000, OTHER_SET),
    _make_variational("VFlow, 6 channels", 3.13, 4_010_000, OTHER_SET),
    _make_variational("ELF-AR", 3.18, 4_100_000),
    # Table 6: checkerboard, about 500,000 parameters
    _make_toy("checkerboard", 6, "Affine Coupling", -3.60, (6.4, 0.04, 0.004)),
    _make_toy("checkerboard", 6, "NAF", -3.56, (20.7, 0.06, None)),
    _make_toy("checkerboard", 6, "Residual Flow", -3.90, (21.1, 0.10, 0.31)),
    _make_toy("checkerboard", 6, "CP-Flow", -3.60, (143, 0.69, 3.5)),
    _make_toy("checkerboard", 6, "ELF-AR", -3.56, (12.6, 0.20, 0.54)),
]
"""Every figure of the paper's tables. -2.8 is minus the entropy of the eight Gaussians, to two digits."""

TEXT = {
    "r2_units": 0.998,
    "r2_networks": 0.993,
    "sampling_calls": 70,
    "sampling_seconds": 70.0,
    "sampling_seconds_sequential": 2600.0,
    "sampling_images": 100,
    "sampling_speedup": 37.0,
    "cifar10_dimensions": 3072,
    "relu_units": 2048,
    "small_models_hours": 24,
    "image_weeks": 2,
    "gpus": 1,
    "gpus_imagenet32": 4,
    "gpus_imagenet64": 8,
}
"""Figures in the text: appendix B (R^2 of a quadratic and of a linear fit), section 5.4.1 (CIFAR-10: evaluations,
seconds for 100 images, and for one evaluation for each of the 3,072 values), appendix D, section 5.4.2 and appendix F.
The GPUs are Tesla V100 with 32 GB."""


# --- other papers -----------------------------------------------------------------------------------------------------


def _make_row(
    system: str, reference: str, datasets: Sequence[str], values: Sequence[float | None], variational: bool = False
) -> list[Published]:
    """Figures of a system, with None for data sets without a figure."""
    pairs = zip(datasets, values, strict=True)
    return [
        Published(system, dataset, value, reference, variational=variational)
        for dataset, value in pairs
        if value is not None
    ]


_MAF, _FFJORD = "Papamakarios et al. 2017", "Grathwohl et al. 2019"

ORIGINAL = [
    *_make_row("MADE", _MAF, TABLE_SETS, [-3.08, 3.56, -20.98, -15.59, 148.85]),
    *_make_row("MAF", _MAF, TABLE_SETS, [0.24, 10.08, -17.70, -11.75, 155.69]),
    *_make_row("NAF", "Huang et al. 2018", TABLE_SETS, [0.62, 11.96, -15.09, -8.86, 157.73]),
    *_make_row("SOS", "Jaini et al. 2019", TABLE_SETS, [0.60, 11.99, -15.15, -8.90, 157.48]),
    *_make_row("RQ-NSF (AR)", "Durkan et al. 2019", TABLE_SETS, [0.66, 13.09, -14.01, -9.22, 157.31]),
    *_make_row("UMNN", "Wehenkel and Louppe 2019", TABLE_SETS, [0.63, 10.89, -13.99, -9.67, 157.98]),
    *_make_row("i-ResNet", "Behrmann et al. 2019", IMAGE_SETS, [1.06, 3.45, None, None]),
    *_make_row("RQ-NSF (C)", "Durkan et al. 2019", IMAGE_SETS, [None, 3.38, None, 3.82]),
]
"""Systems that the paper leaves out, and the rows of MAF and NAF: the paper has MAF with ten layers on HEPMASS and
MINIBOONE, where five are better, and NAF with five on BSDS300, where ten are better."""

_PRINTED = {(one.system, one.dataset, one.value) for one in PAPER}
_DIFFERENT = [one for one in ORIGINAL if (one.system, one.dataset, one.value) not in _PRINTED]

TABULAR = [one for one in PAPER + _DIFFERENT if one.dataset in TABLE_SETS]
"""Mean test log-likelihoods in nats: higher is better."""
IMAGES = [one for one in PAPER + _DIFFERENT if one.dataset in IMAGE_SETS and one.table in (0, 3)]
"""Bits per dimension of test images: lower is better."""
SMALL_IMAGES = [one for one in PAPER if one.table in (4, 5)]
"""The same for models with few parameters."""
TOYS = [one for one in PAPER if one.table in (1, 6)]
TOY_SYSTEMS = {
    "elf": "ELF-AR",
    "elf-paper": "ELF-AR",
    "realnvp": "Affine Coupling",
    "naf": "NAF",
    "residual": "Residual Flow",
    "cpflow": "CP-Flow",
}
"""The paper's names of the systems in `experiments.systems`."""


def find(table: int, system: str, dataset: str) -> Published:
    """A figure of the paper.

    Example:
        >>> find(2, "ELF-AR", "gas").value
        12.55
    """
    (one,) = [one for one in PAPER if (one.table, one.system, one.dataset) == (table, system, dataset)]
    return one
