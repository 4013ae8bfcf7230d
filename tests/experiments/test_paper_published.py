"""The published figures."""

from elflow.datasets import toy
from experiments.data.images import DATASETS
from experiments.data.maf import MAF_SETS
from experiments.paper.published import ELF_AR, IMAGES, TABULAR, UNSEEN

UNPUBLISHED = {"digits"}
"""Image sets of the experiments without published figures."""


def values(figures, dataset):
    return {one.system: one.value for one in figures if one.dataset == dataset}


def test_each_figure_has_one_value_a_source_and_a_known_data_set():
    for figures, datasets in [(TABULAR, set(MAF_SETS)), (IMAGES, set(DATASETS) - UNPUBLISHED)]:
        assert {one.dataset for one in figures} == datasets
        assert len({(one.system, one.dataset) for one in figures}) == len(figures)
        assert all(one.reference[-4:].isdigit() for one in figures)


def test_figures_of_a_data_set_are_of_its_scale():
    """A figure in the wrong column, or with the wrong sign, would stand out."""
    ranges = {"power": (-4, 1), "gas": (3, 14), "hepmass": (-21, -13), "miniboone": (-16, -8), "bsds300": (148, 160)}
    ranges |= {"mnist": (0.9, 1.1), "cifar10": (3, 3.5), "imagenet32": (3.8, 4.3), "imagenet64": (3.6, 4)}
    for one in TABULAR + IMAGES:
        low, high = ranges[one.dataset]
        assert low < one.value < high, one
    systems = {one.system for one in TABULAR} - {"ELF-AR"}
    assert all(values(TABULAR, dataset).keys() >= systems for dataset in MAF_SETS)


def test_a_more_expressive_flow_is_better():
    for dataset in MAF_SETS:
        nats = values(TABULAR, dataset)
        assert nats["MADE MoG"] > nats["MADE"]
        assert nats["MAF"] > nats["MADE"]
        assert nats["FFJORD"] > nats["RealNVP"]
        assert nats["NAF (DDSF)"] > nats["MAF"]
    for dataset in ("mnist", "cifar10", "imagenet32", "imagenet64"):
        bits = values(IMAGES, dataset)
        assert bits["Residual Flow"] < bits["Glow"] < bits["RealNVP"]
        assert bits.get("Flow++", 0) < bits["Residual Flow"]


def test_the_same_images_cost_more_bits_at_a_lower_resolution():
    small, large = values(IMAGES, "imagenet32"), values(IMAGES, "imagenet64")
    for system in small.keys() & large.keys():
        assert small[system] > large[system], system


def test_the_papers_own_figures():
    own = {one.dataset: one.value for one in ELF_AR}
    assert {one.reference for one in ELF_AR} == {"Gopal 2021"}
    for name in ("eight-gaussians", "checkerboard"):  # no model exceeds the entropy bound, to the digits of the paper
        bound = -toy.DISTRIBUTIONS[name]().entropy().item()
        assert bound - 0.1 < own.pop(name) < bound + 0.05
    assert own["bsds300"] == values(TABULAR, "bsds300")["ELF-AR"]
    assert own["bsds300"] > max(values(TABULAR, "bsds300")[name] for name in ("MAF", "RQ-NSF (AR)", "Block-NAF"))
    assert own["mnist"] == min(values(IMAGES, "mnist").values())
    assert own.keys() == {"bsds300", "mnist"}


def test_systems_without_figures_have_none():
    assert UNSEEN.keys().isdisjoint(one.system for one in IMAGES)
