"""How the experiments train models of images: by steps, from a checkpoint on, with the same record for all."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import elflow
from elflow._files import replacing
from elflow.tabular import digest
from elflow.training import Recipe, Rows, Training, fit
from experiments.data.images import spread
from experiments.framework.experiment import Record

__all__ = ["MODEL_FILE", "SAMPLES_FILE", "bits_of", "histogram_bits", "keep_samples", "shortened", "trained"]

MODEL_FILE, SAMPLES_FILE = "model.elf", "samples.npz"
ROUNDS = 8
"""How often a training at the scale of CPUs scores held-out images."""
DIGESTED = 1_000
"""How many images tell data apart."""
AT_ONCE = 250
"""How many test images are scored at a time."""


def shortened(recipe: Recipe, steps: int, rounds: int | None = ROUNDS) -> Recipe:
    """A recipe for so many steps instead of so many minutes.

    At the scale of CPUs there are too few steps for what a recipe counts in thousands: a tenth of them warms up, and
    over the last third the rate falls to a tenth.

    Arguments:
        recipe: That of a preset.
        steps: How many.
        rounds: In how many rounds; None for rounds and schedule as the recipe has them.

    Example:
        >>> from elflow.training import image_recipe
        >>> recipe = shortened(image_recipe("cpu"), 160)
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


def trained(
    flow: nn.Module,
    recipe: Recipe,
    x: Tensor,
    labels: Tensor | None,
    held_out: int,
    seed: int,
    folder: Path,
    settings: Record,
    accelerator: str = "cpu",
) -> tuple[Any, Training]:
    """Trains a model of images; goes on from the checkpoint in the folder, if that is of the same data and settings.

    Arguments:
        flow: The model before training.
        recipe: How to train it.
        x: Images for training, `(N, C, H, W)`.
        labels: Their classes `(N,)`, for a model of images given their class.
        held_out: How many of them are held out, to find the best weights.
        seed: What decides about them, and about batches and noise.
        folder: Where the checkpoint is, and where `model.elf` goes in the end.
        settings: What the training follows from besides.
        accelerator: Lightning's name of the device.

    Returns:
        The model with the best averaged weights, and how it went.
    """
    some = spread(x, DIGESTED).numpy()
    print_of = digest(some, len(x), "" if labels is None else labels.numpy(), json.dumps(settings, sort_keys=True))
    checkpoint = folder / f"{print_of[:16]}.ckpt"
    for other in folder.glob("*.ckpt"):  # of other settings: nothing goes on from it any more
        if other != checkpoint:
            other.unlink()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    rows = Rows(x, labels)
    best, training = fit(
        flow,
        rows.take(order[held_out:]),
        rows.take(order[:held_out]),
        recipe,
        seed=seed,
        checkpoint=checkpoint,
        fingerprint=print_of,
        trainer_options={"accelerator": accelerator},
    )
    if isinstance(best, elflow.ImageELF):
        elflow.save(best, folder / MODEL_FILE)
    checkpoint.unlink(missing_ok=True)
    return best, training


def record_of(flow: nn.Module, training: Training, recipe: Recipe, pixels: int) -> Record:
    """What every training leaves in its record; the curve has steps, seconds and held-out bits/dim."""
    bit = pixels * math.log(2)
    return {
        "parameters": sum(p.numel() for p in flow.parameters()),
        "steps": int(training.history[-1]["step"]),
        "batch_size": recipe.batch_size,
        "training_seconds": training.seconds,
        "stopped": training.stopped,
        "skipped": training.skipped,
        "curve": [
            [int(e["step"]), e["seconds"], -e["validation"] / bit]
            for e in training.history
            if math.isfinite(e["validation"])
        ],
    }


def bits_of(flow: Any, x: Tensor, labels: Tensor | None = None, seed: int = 0) -> Record:
    """The mean bits per dimension of test images and its standard error, each image from one point of its cells."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parts: Sequence[tuple[Tensor, ...]] = [
            (some,) if labels is None else (some, labels[at * AT_ONCE : (at + 1) * AT_ONCE])
            for at, some in enumerate(x.split(AT_ONCE))
        ]
        bits = torch.cat([flow.bits_per_dim(*part).double().cpu() for part in parts])
    if not bits.isfinite().all():
        raise FloatingPointError(f"test images must have finite bits, got {int((~bits.isfinite()).sum())} without")
    return {"bits": float(bits.mean()), "error": _standard_error(bits), "test_images": len(bits)}


def histogram_bits(x: Tensor, test: Tensor, levels: int) -> Record:
    """The same of a model in which each number of an image is for itself: its levels are as often as in training, and
    one more of each.

    Example:
        >>> x = torch.tensor([0, 0, 1]).reshape(3, 1, 1, 1)
        >>> round(histogram_bits(x, x[:2], levels=2)["bits"], 3)
        0.737
    """
    places = levels * torch.arange(x[0].numel())
    counts = torch.ones(levels * len(places), dtype=torch.long)
    for some in x.flatten(1).split(AT_ONCE):  # as numbers of eight bytes all images would not fit into memory
        counts += torch.bincount((some.long() + places).flatten(), minlength=len(counts))
    share = counts.double().view(-1, levels)
    log_share = (share / share.sum(-1, keepdim=True)).log2().flatten()
    bits = torch.cat([-log_share[some.long() + places].mean(-1) for some in test.flatten(1).split(AT_ONCE)])
    return {"bits": float(bits.mean()), "error": _standard_error(bits), "test_images": len(bits)}


def keep_samples(path: Path, x: Tensor, levels: int) -> None:
    """Writes images that were drawn, and how many levels their pixels have."""
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, x=x.cpu().numpy(), levels=np.array(levels))


def _standard_error(bits: Tensor) -> float:
    return float(bits.std()) / math.sqrt(len(bits)) if len(bits) > 1 else 0.0
