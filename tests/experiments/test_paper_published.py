"""The published figures: what is there has a source, and no more than one value."""

from experiments.paper.published import ELF_AR, IMAGES, TABULAR

TABLES = {"power", "gas", "hepmass", "miniboone", "bsds300"}
PICTURES = {"mnist", "cifar10", "imagenet32", "imagenet64"}


def values(figures, dataset):
    return {one.system: one.value for one in figures if one.dataset == dataset}


def test_each_figure_has_one_value_and_a_source():
    for figures, datasets in [(TABULAR, TABLES), (IMAGES, PICTURES)]:
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
    assert all(values(TABULAR, dataset).keys() >= systems for dataset in TABLES)


def test_a_mixture_is_better_than_a_gaussian():
    for dataset in TABLES:
        found = values(TABULAR, dataset)
        assert found["MADE MoG"] > found["MADE"]
        assert found["MAF"] > found["MADE"]
        assert found["FFJORD"] > found["RealNVP"]


def test_the_papers_own():
    assert {one.dataset: one.value for one in ELF_AR} == {
        "bsds300": 157.8,
        "checkerboard": -3.56,
        "eight-gaussians": -2.8,
        "mnist": 0.92,
    }
    assert values(TABULAR, "bsds300")["ELF-AR"] == 157.8
