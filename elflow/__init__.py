"""Exact-Lipschitz flows: density models with closed-form densities and an exact inverse.

Models and their files:

* `ELF`: flow over vectors, optionally given a context; a zuko flow.
* `ImageELF`: flow over images of integers.
* `FlowDensity`: scikit-learn estimator for tables with columns of any kind.
* `FlowClassifier`, `FlowRegressor`: scikit-learn estimators of classes and numbers, by a `FlowDensity` with a context.
* `FlowImputer`: scikit-learn transformer that fills missing cells by a `FlowDensity`; `MISSING`: a condition.
* `save`, `load`: model files of all of these.

Modules:

* `activations`: piecewise quadratic activation functions of the one-dimensional networks.
* `datasets`: toy distributions and an example table.
* `flows`: flows, dequantisation, and the paper's image models by name.
* `functional`: the one-dimensional network, its Lipschitz constant and its inverse, as differentiable functions.
* `integrations`: adapters for sbi and PyOD.
* `io`: tables and images in files, and grids of images.
* `kernels`: choice of the implementation that computes the networks.
* `nn`: hypernetworks and ActNorm.
* `report`: HTML report on a fitted density.
* `serialization`: training records and notes in model files.
* `tabular`: the estimator, schemas and columns of tables.
* `testing`: test cases for a new backend.
* `training`: training loop, its settings and its record.
* `transforms`: torch transforms without parameters, and their inverse.
* `verification`: checks of a model file on the machine that uses it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elflow import (
        activations,
        datasets,
        flows,
        functional,
        integrations,
        io,
        kernels,
        nn,
        report,
        serialization,
        tabular,
        testing,
        training,
        transforms,
        verification,
    )
    from elflow.flows import ELF, ImageELF
    from elflow.serialization import load, save
    from elflow.tabular import MISSING, FlowClassifier, FlowDensity, FlowImputer, FlowRegressor

__all__ = [
    "ELF",
    "MISSING",
    "FlowClassifier",
    "FlowDensity",
    "FlowImputer",
    "FlowRegressor",
    "ImageELF",
    "activations",
    "datasets",
    "flows",
    "functional",
    "integrations",
    "io",
    "kernels",
    "load",
    "nn",
    "report",
    "save",
    "serialization",
    "tabular",
    "testing",
    "training",
    "transforms",
    "verification",
]

__version__ = "0.1.0"

_MODULES = {
    "ELF": "elflow.flows",
    "FlowClassifier": "elflow.tabular",
    "FlowDensity": "elflow.tabular",
    "FlowImputer": "elflow.tabular",
    "FlowRegressor": "elflow.tabular",
    "MISSING": "elflow.tabular",
    "ImageELF": "elflow.flows",
    "load": "elflow.serialization",
    "save": "elflow.serialization",
}
"""Modules of the names that are not modules themselves."""


def __getattr__(name: str) -> Any:
    """Import a public name on first use, because torch, pandas and scikit-learn take long to import."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name in __all__:
        return import_module(f"elflow.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
