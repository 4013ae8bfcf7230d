"""The published figures."""

from experiments.data.images import DATASETS
from experiments.data.maf import MAF_SETS
from experiments.paper.published import IMAGES, TABULAR


def test_each_figure_has_one_value_a_source_and_a_known_data_set():
    for figures, datasets in [(TABULAR, MAF_SETS), (IMAGES, DATASETS)]:
        assert {one.dataset for one in figures} <= set(datasets)
        assert len({(one.system, one.dataset) for one in figures}) == len(figures)
        assert all(one.reference[-4:].isdigit() for one in figures)
