"""Training and scoring of image models, with the same record for all of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import elflow
from elflow._files import replacing
from elflow.tabular import digest
from elflow.training import Recipe, Rows, Training, fit, make_fabric
from experiments.data.images import spread
from experiments.framework.experiment import Record
from experiments.framework.measure import count_parameters, sample_mean_and_error

__all__ = [
    "GLOW",
    "GLOW_RECIPE",
    "MODEL_FILE",
    "SAMPLES_FILE",
    "make_glow",
    "save_samples",
    "score_histogram",
    "score_images",
    "shorten_recipe",
    "summarize_training",
    "train_images",
]

MODEL_FILE, SAMPLES_FILE = "model.elf", "samples.npz"
N_ROUNDS = 8
"""Number of validations of a training run at the scale of CPUs."""
MAX_DIGEST_IMAGES = 1_000
BLOCK = 250
"""Number of test images that are scored at a time."""
GLOW: dict[str, Any] = {"scales": 2, "steps": 8, "hidden_channels": 64}
GLOW_RECIPE: dict[str, Any] = {"batch_size": 128, "learning_rate": 6e-3}
"""Size, batch size and learning rate of Glow: the best on the digits in short runs."""


def make_glow(shape: tuple[int, int, int], levels: int, x: Tensor, sizes: Record) -> nn.Module:
    """A Glow of normflows for images `x`, whose share of zeros sets its first transformation."""
    from experiments.systems.glow import build_glow  # normflows is optional

    return build_glow(shape, levels, zeros=float((x == 0).double().mean()), **sizes)


def shorten_recipe(recipe: Recipe, steps: int, rounds: int | None = N_ROUNDS) -> Recipe:
    """A recipe for a number of steps in place of a time limit.

    At the scale of CPUs, a tenth of the steps warms up, and over the last third the learning rate falls to a tenth:
    there are too few steps for schedules that count in thousands.

    Arguments:
        recipe: The recipe of a preset.
        steps: The number of steps.
        rounds: The number of rounds; None to keep the rounds and the schedule of the recipe.

    Example:
        >>> from elflow.training import image_recipe
        >>> recipe = shorten_recipe(image_recipe("cpu"), 160)
        >>> recipe.max_steps, recipe.round_steps, recipe.warmup_steps, recipe.time_limit
        (160, 20, 16, None)
    """
    recipe = replace(recipe, max_steps=steps, time_limit=None)
    if rounds is None:
        return recipe
    last = max(1, steps // 3)
    return replace(
        recipe,
        round_steps=math.ceil(steps / rounds),
        patience=rounds,
        warmup_steps=max(1, min(recipe.warmup_steps, steps // 10)),
        hold_steps=steps - last,
        gamma=0.1 ** (1 / last),
    )


def train_images(
    flow: nn.Module,
    recipe: Recipe,
    x: Tensor,
    labels: Tensor | None,
    n_validation: int,
    seed: int,
    folder: Path,
    settings: Record,
    device: str = "cpu",
) -> tuple[Any, Training]:
    """Train an image model. Resume from the checkpoint in the folder if it is of the same data and settings.

    Arguments:
        flow: The model before training.
        recipe: The training settings.
        x: Training images, `(N, C, H, W)`.
        labels: Their classes `(N,)`, for a model of images given their class.
        n_validation: The number of images that are held out, to find the best weights.
        seed: The seed for the choice of these images, for batches and noise.
        folder: The folder for the checkpoint and for `model.elf`.
        settings: Everything else that training depends on.
        device: `"cpu"` or `"cuda"`.

    Returns:
        The model with the best averaged weights, and the training history.
    """
    images = spread(x, MAX_DIGEST_IMAGES).numpy()
    fingerprint = digest(images, len(x), "" if labels is None else labels.numpy(), json.dumps(settings, sort_keys=True))
    checkpoint = folder / f"{fingerprint[:16]}.ckpt"
    for other in folder.glob("*.ckpt"):
        if other != checkpoint:  # of other settings
            other.unlink()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    rows = Rows(x, labels)
    best, training = fit(
        flow,
        rows.take(order[n_validation:]),
        rows.take(order[:n_validation]),
        recipe,
        seed=seed,
        checkpoint=checkpoint,
        fingerprint=fingerprint,
        fabric=make_fabric(device),
    )
    if isinstance(best, elflow.ImageELF):
        elflow.save(best, folder / MODEL_FILE, training)
    checkpoint.unlink(missing_ok=True)
    return best, training


def summarize_training(flow: nn.Module, training: Training, recipe: Recipe, pixels: int) -> Record:
    """The record of a training run. Its curve has steps, seconds and validation bits/dim."""
    nats_per_bit = pixels * math.log(2)
    return {
        "parameters": count_parameters(flow),
        "steps": int(training.history[-1]["step"]),
        "batch_size": recipe.batch_size,
        "training_seconds": training.seconds,
        "stopped": training.stopped,
        "skipped": training.skipped,
        "curve": [
            [int(e["step"]), e["seconds"], -e["validation"] / nats_per_bit]
            for e in training.history
            if math.isfinite(e["validation"])
        ],
    }


def score_images(flow: Any, x: Tensor, labels: Tensor | None = None, seed: int = 0) -> Record:
    """Mean bits per dimension of test images and its standard error, with one noise sample for each image."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        contexts = [()] * len(x) if labels is None else [(some,) for some in labels.split(BLOCK)]
        blocks = zip(x.split(BLOCK), contexts, strict=labels is not None)
        bits = torch.cat([flow.bits_per_dim(some, *context).double().cpu() for some, context in blocks])
    if not bits.isfinite().all():
        raise FloatingPointError(f"test images must have finite bits, got {int((~bits.isfinite()).sum())} without")
    return _summarize_bits(bits)


def score_histogram(x: Tensor, test: Tensor, levels: int) -> Record:
    """The same for a model of independent pixels: add-one-smoothed frequencies of the levels in the training images.

    Example:
        >>> x = torch.tensor([0, 0, 1]).reshape(3, 1, 1, 1)
        >>> round(score_histogram(x, x[:2], levels=2)["bits"], 3)
        0.737
    """
    offsets = levels * torch.arange(x[0].numel())
    counts = torch.ones(levels * len(offsets), dtype=torch.long)
    for some in x.flatten(1).split(BLOCK):  # as int64, all images together would not fit into memory
        counts += torch.bincount((some.long() + offsets).flatten(), minlength=len(counts))
    share = counts.double().view(-1, levels)
    log_share = (share / share.sum(-1, keepdim=True)).log2().flatten()
    return _summarize_bits(
        torch.cat([-log_share[some.long() + offsets].mean(-1) for some in test.flatten(1).split(BLOCK)])
    )


def _summarize_bits(bits: Tensor) -> Record:
    mean, error = sample_mean_and_error(bits)
    return {"bits": mean, "error": error, "test_images": len(bits)}


def save_samples(path: Path, x: Tensor, levels: int) -> None:
    """Write sampled images and the number of levels of their pixels."""
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, x=x.cpu().numpy(), levels=np.array(levels))
