"""Published test likelihoods for the data sets of the paper.

`TABULAR` is in nats, for test rows prepared as by Papamakarios et al. (2017); `IMAGES` is in bits per dimension, for
8-bit test images. `ELF_AR` contains the paper's own figures. Nothing of it was measured here.

Each figure was looked up in one of these sources:

* Tables 3 and 5 of Kobyzev, Prince and Brubaker, "Normalizing Flows: An Introduction and Review" (2020), which lists
  figures "as they were presented in the corresponding papers": all but those of the next two lines.
* The README of Transformation Autoregressive Networks (github.com/lupalab/tan): TAN, MADE and MADE MoG. It asks to
  report these figures of TAN, which are the published ones; FFJORD's table has earlier ones of a preprint.
* The main table of Durkan et al., "Neural Spline Flows" (2019), in a public write-up of that paper: Block-NAF.

Figures that are in two of these sources agree, except that Durkan et al. trained stronger versions of Glow and MAF.
If a paper has a flow with 5 and with 10 layers, the better one of each data set is given, as in FFJORD's table and
later ones.

Left out, because no source was available: CP-Flow on tables; MaCow, ANF, VFlow and MALI on images; and the paper's own
figures except the four in `ELF_AR`.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ELF_AR", "IMAGES", "TABULAR", "UNSEEN", "Published"]


@dataclass(frozen=True)
class Published:
    """A published figure.

    Arguments:
        system: The model.
        dataset: The data set: `"power"`, `"gas"`, `"hepmass"`, `"miniboone"`, `"bsds300"`, `"mnist"`, `"cifar10"`,
            `"imagenet32"`, `"imagenet64"`, `"checkerboard"` or `"eight-gaussians"`.
        value: The mean test log-likelihood in nats, or the bits per dimension of images.
        reference: The paper that reports it.

    Example:
        >>> best = max((one for one in TABULAR if one.dataset == "power"), key=lambda one: one.value)
        >>> best.system, best.value, best.reference
        ('RQ-NSF (AR)', 0.66, 'Durkan et al. 2019')
    """

    system: str
    dataset: str
    value: float
    reference: str


def _row(system: str, reference: str, datasets: list[str], values: list[float | None]) -> list[Published]:
    """Figures of a system, with None for data sets without a figure."""
    pairs = zip(datasets, values, strict=True)
    return [Published(system, dataset, value, reference) for dataset, value in pairs if value is not None]


_TABLES = ["power", "gas", "hepmass", "miniboone", "bsds300"]
_IMAGES = ["mnist", "cifar10", "imagenet32", "imagenet64"]
_MAF = "Papamakarios et al. 2017"

ELF_AR = [
    *_row("ELF-AR", "Gopal 2021", ["bsds300", "checkerboard", "eight-gaussians"], [157.8, -3.56, -2.8]),
    *_row("ELF-AR, 1.9M parameters", "Gopal 2021", ["mnist"], [0.92]),
]
"""The paper's own figures; -2.8 is minus the entropy of the eight Gaussians, to two digits."""

UNSEEN = {
    "MaCow": "Ma et al. 2019",
    "ANF": "Huang et al. 2020",
    "VFlow": "Chen et al. 2020",
    "MALI": "Zhuang et al. 2021",
}
"""Systems that the paper compares with on images and whose figures are not included here."""

TABULAR = [
    *_row("MADE", _MAF, _TABLES, [-3.08, 3.56, -20.98, -15.59, 148.85]),
    *_row("MADE MoG", _MAF, _TABLES, [0.40, 8.47, -15.15, -12.27, 153.71]),
    *_row("RealNVP", _MAF, _TABLES, [0.17, 8.33, -18.71, -13.55, 153.28]),
    *_row("MAF", _MAF, _TABLES, [0.24, 10.08, -17.70, -11.75, 155.69]),
    *_row("MAF MoG", _MAF, _TABLES, [0.30, 9.59, -17.39, -11.68, 156.36]),
    *_row("Glow", "Grathwohl et al. 2019", _TABLES, [0.17, 8.15, -18.92, -11.35, 155.07]),
    *_row("FFJORD", "Grathwohl et al. 2019", _TABLES, [0.46, 8.59, -14.92, -10.43, 157.40]),
    *_row("NAF (DDSF)", "Huang et al. 2018", _TABLES, [0.62, 11.96, -15.09, -8.86, 157.73]),
    *_row("TAN", "Oliva et al. 2018", _TABLES, [0.60, 12.06, -13.78, -11.01, 159.80]),
    *_row("Block-NAF", "De Cao et al. 2019", _TABLES, [0.61, 12.06, -14.71, -8.95, 157.36]),
    *_row("SOS", "Jaini et al. 2019", _TABLES, [0.60, 11.99, -15.15, -8.90, 157.48]),
    *_row("RQ-NSF (AR)", "Durkan et al. 2019", _TABLES, [0.66, 13.09, -14.01, -9.22, 157.31]),
    *_row("UMNN", "Wehenkel and Louppe 2019", _TABLES, [0.63, 10.89, -13.99, -9.67, 157.98]),
    *(one for one in ELF_AR if one.dataset in _TABLES),
]
"""Mean test log-likelihoods in nats: higher is better."""

IMAGES = [
    *_row("RealNVP", "Grathwohl et al. 2019", _IMAGES, [1.06, None, None, None]),
    *_row("RealNVP", "Dinh et al. 2017", _IMAGES, [None, 3.49, 4.28, 3.98]),
    *_row("Glow", "Grathwohl et al. 2019", _IMAGES, [1.05, None, None, None]),
    *_row("Glow", "Kingma and Dhariwal 2018", _IMAGES, [None, 3.35, 4.09, 3.81]),
    *_row("FFJORD", "Grathwohl et al. 2019", _IMAGES, [0.99, 3.40, None, None]),
    *_row("i-ResNet", "Behrmann et al. 2019", _IMAGES, [1.06, 3.45, None, None]),
    *_row("RQ-NSF (C)", "Durkan et al. 2019", _IMAGES, [None, 3.38, None, 3.82]),
    *_row("Residual Flow", "Chen et al. 2019", _IMAGES, [0.97, 3.28, 4.01, 3.76]),
    *_row("Flow++", "Ho et al. 2019", _IMAGES, [None, 3.08, 3.86, 3.69]),
    *(one for one in ELF_AR if one.dataset in _IMAGES),
]
"""Bits per dimension of test images: lower is better. Flow++ has variational dequantisation, the others uniform."""
