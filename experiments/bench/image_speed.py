"""A training step of an image flow against its convolutions alone.

python -m experiments.bench.image_speed

The convolutions are those of the flow's hypernetworks with the same kernels, nothing masked and nothing else between
them but ReLU and the residual sums, forward and backward. The step is the log-probability, its gradient, clipping and
Adam.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad, relu

import elflow
from experiments.bench._measure import RESULTS, interleaved, machine, write
from elflow.nn import ImageHypernetwork, MaskedConvolution

SIZES: dict[str, dict[str, Any]] = {
    "mnist-small": {"shape": (1, 28, 28), "transforms": 4, "channels": 48, "blocks": 3},
    "half of cifar10-small": {"shape": (3, 32, 32), "transforms": 2, "channels": 46, "blocks": 3},
    "cpu scale": {"shape": (1, 28, 28), "transforms": 4, "channels": 16, "blocks": 2},
}


class Plain(nn.Module):
    """The convolutions of a hypernetwork, unmasked."""

    def __init__(self, hyper: ImageHypernetwork) -> None:
        super().__init__()
        convolutions = [module for module in hyper.modules() if isinstance(module, MaskedConvolution)]
        self.first, *self.blocks, self.head = convolutions
        self.weights = nn.ParameterList([self._kernel(module) for module in convolutions])

    @staticmethod
    def _kernel(module: MaskedConvolution) -> Tensor:
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


def measure(sizes: dict[str, Any], units: int, batch: int, seconds: float) -> dict[str, float]:
    model = elflow.ImageELF(units=units, **sizes)
    x = torch.randint(256, (batch, *sizes["shape"]))
    model.initialize(x)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        (-model.log_prob(x).mean()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    hypers = [module for module in model.modules() if isinstance(module, ImageHypernetwork)]
    plain = [Plain(hyper) for hyper in hypers]
    inputs = [torch.randn(batch, *hyper.shape, requires_grad=True) for hyper in hypers]

    def convolutions() -> None:
        for net, image in zip(plain, inputs, strict=True):
            phi = net(image)
            phi.backward(torch.ones_like(phi))

    times = interleaved({"step": step, "convolutions": convolutions}, seconds)
    return {**times, "ratio": times["step"] / times["convolutions"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS / "image_speed.json")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = {}
    for name, sizes in SIZES.items():
        torch.manual_seed(0)
        found[name] = measure(sizes, given.units, given.batch, given.seconds)
        print(f"{name:24}", {key: round(value, 3) for key, value in found[name].items()}, flush=True)
    settings = {"units": given.units, "batch": given.batch, "threads": given.threads}
    write(given.output, {"machine": machine(), "settings": settings, "models": found})


if __name__ == "__main__":
    main()
