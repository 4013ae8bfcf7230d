"""Training step of an image model beside its convolutions alone.

The convolutions are those of the hypernetworks with the same kernels, unmasked, with nothing but ReLU and residual sums
between them, forward and backward. The step is the log-probability, its gradient, clipping and Adam.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad, relu

import elflow
from elflow.nn import ImageHypernetwork, MaskedConvolution
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.measure import median_times
from experiments.paper.toys import make_step

__all__ = ["EXPERIMENT"]

SIZES: dict[str, dict[str, Any]] = {
    "mnist-small": {"shape": [1, 28, 28], "transforms": 4, "channels": 48, "blocks": 3},
    "half of cifar10-small": {"shape": [3, 32, 32], "transforms": 2, "channels": 46, "blocks": 3},
    "cpu preset": {"shape": [1, 28, 28], "transforms": 4, "channels": 16, "blocks": 2},
}
UNITS, BATCH_SIZE, SECONDS = 32, 32, 60.0


class _Convolutions(nn.Module):
    """The convolutions of a hypernetwork, unmasked."""

    def __init__(self, hyper: ImageHypernetwork) -> None:
        super().__init__()
        convolutions = [module for module in hyper.modules() if isinstance(module, MaskedConvolution)]
        self.weights = nn.ParameterList([self._make_kernel(module) for module in convolutions])

    @staticmethod
    def _make_kernel(module: MaskedConvolution) -> Tensor:
        shape = (module.outputs, module.rows, module.columns, module.inputs)
        return torch.randn(shape).mul_(0.02).permute(0, 3, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        first, *inner, head = self.weights
        x = conv2d(pad(x, (1, 1, 1, 0)), first).contiguous(memory_format=torch.channels_last)
        for narrow, mix, widen in zip(inner[::3], inner[1::3], inner[2::3], strict=True):
            y = conv2d(pad(relu(x), (1, 1, 1, 0)), narrow)
            y = conv2d(relu(y), mix)
            x = x + conv2d(pad(relu(y), (1, 1, 1, 0)), widen)
        return conv2d(relu(x), head)


def jobs(plan: Plan) -> list[Job]:
    same = {"units": UNITS, "batch_size": BATCH_SIZE, "seconds": plan.seconds(SECONDS), "seed": plan.seed}
    return [Job(name.replace(" ", "-"), {"name": name, "sizes": sizes, **same}) for name, sizes in SIZES.items()]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    torch.manual_seed(settings["seed"])
    sizes, batch = settings["sizes"], settings["batch_size"]
    model = elflow.ImageELF(units=settings["units"], **sizes)
    x = torch.randint(256, (batch, *sizes["shape"]))
    model.initialize(x)
    hypers = [module for module in model.modules() if isinstance(module, ImageHypernetwork)]
    networks = [_Convolutions(hyper) for hyper in hypers]
    inputs = [torch.randn(batch, *hyper.shape, requires_grad=True) for hyper in hypers]

    def convolve() -> None:
        for network, image in zip(networks, inputs, strict=True):
            phi = network(image)
            phi.backward(torch.ones_like(phi))

    functions = {"step": make_step(model, x, 1e-4), "convolutions": convolve}
    return {"name": settings["name"], "times": median_times(functions, settings["seconds"])}


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    rows, ratios = [], []
    for record in records.values():
        step, convolutions = record["times"]["step"], record["times"]["convolutions"]
        ratios.append(step / convolutions)
        rows.append([f"ELF, {record['name']}", f"{step:.3f}", f"{convolutions:.3f}", f"{ratios[-1]:.2f}"])
    text = f"A training step takes {min(ratios):.2f} to {max(ratios):.2f} times as long as its convolutions alone."
    columns = ["model", "step, s", "convolutions, s", "ratio"]
    note = f"Batches of {BATCH_SIZE}, {UNITS} units, one thread; medians of interleaved calls."
    return Report(text, [Table("Training steps of image models", columns, rows, note)])


EXPERIMENT = Experiment("image-speed", "Training steps of image models", jobs, work, report, exclusive=True)
