"""Damaged model files and checkpoints."""

from __future__ import annotations

import json
import math
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

import elflow
from elflow._digest import BLANK, seal_file
from elflow.kernels import NonFiniteError
from elflow.serialization import read_notes, read_training
from elflow.training.checkpoint import read_checkpoint
from experiments.faults.mutations import mutate_bytes, mutate_json
from experiments.faults.outcomes import Case
from experiments.faults.victims import Victims, use_model

__all__ = ["damage_checkpoint", "damage_model_bytes", "damage_model_content", "judge_load", "write_content"]

MAX_SECONDS, MAX_BYTES = 1.0, 200 * 2**20
"""Processor time and memory, beyond the size of the file, within which a file must be loaded or refused."""
CLEAR = (ValueError, FileNotFoundError)
"""Errors that name the file and the reason."""


def damage_model_bytes(rng: random.Random, victims: Victims) -> Case:
    """A model file with some other bytes: the digest must refuse it."""
    model = rng.choice(victims.models)
    fault, data = mutate_bytes(rng, model.data)
    with TemporaryDirectory() as folder:
        path = Path(folder, "damaged.elf")
        path.write_bytes(data)
        return judge_load(f"{model.path.stem}: {fault}", path, lambda scores: scores == model.scores)


def damage_model_content(rng: random.Random, victims: Victims, replacement: Any = ...) -> Case:
    """A model file with another configuration or other tensors, and a digest that fits.

    Such a file is another model. It must be refused, or work without surprises: no NaN, no error in use.
    """
    model = rng.choice(victims.models)
    header, tensors = read_content(model.path)
    if rng.random() < 0.75 or replacement is not ...:
        entry = rng.choice([name for name in ("config", "config", "config", "training", "saved_by") if name in header])
        value = json.loads(header[entry])
        fault = f"{entry}: {mutate_json(rng, value, replacement)}"
        header[entry] = json.dumps(value)
    else:
        fault = mutate_tensors(rng, tensors)
    with TemporaryDirectory() as folder:
        path = Path(folder, "changed.elf")
        write_content(path, header, tensors)
        return judge_load(f"{model.path.stem}: {fault}", path, None)


def damage_checkpoint(rng: random.Random, victims: Victims) -> Case:
    """A checkpoint with some other bytes: the digest must refuse it."""
    fault, data = mutate_bytes(rng, victims.checkpoint_data)
    with TemporaryDirectory() as folder:
        path = Path(folder, "fit.checkpoint")
        path.write_bytes(data)
        try:
            read_checkpoint(path, "")
        except ValueError as error:
            is_digest = "must be a file written by" in str(error)
            return Case(fault, "refused" if is_digest else "wrong", str(error)[:200])
        except Exception as error:
            return Case(fault, "crashed", f"{type(error).__name__}: {error}"[:300])
    return Case(fault, "wrong", "a damaged checkpoint was read")


def judge_load(fault: str, path: Path, is_same: Callable[[list[float | None]], bool] | None) -> Case:
    """Load a file, use the model, and judge the outcome.

    Arguments:
        fault: What was done to the file.
        path: The file.
        is_same: Function of the scores that tells whether they are those of the undamaged model; None if any will do.
    """
    before, start = _peak_memory(), time.process_time()
    try:
        model = elflow.load(path)
        read_training(path)
        read_notes(path)
    except CLEAR as error:
        outcome = Case(fault, "refused" if str(path) in str(error) else "crashed", str(error)[:200])
        model = None
    except Exception as error:
        return Case(fault, "crashed", f"load: {type(error).__name__}: {error}"[:300])
    seconds, memory = time.process_time() - start, _peak_memory() - before
    if memory > MAX_BYTES + path.stat().st_size:
        return Case(fault, "leaked", f"{memory / 2**20:.0f} MB for a file of {path.stat().st_size} bytes")
    if seconds > MAX_SECONDS:
        return Case(fault, "hung", f"{seconds:.1f} s of processor time to load it")
    if model is None:
        return outcome
    try:
        scores = use_model(model)
    except NonFiniteError as error:  # weights that are finite, but overflow
        return Case(fault, "refused", str(error)[:300])
    except Exception as error:
        return Case(fault, "crashed", f"use: {type(error).__name__}: {error}"[:300])
    if is_same is not None:
        return Case(fault, "harmless" if is_same(scores) else "wrong", "" if is_same(scores) else f"scores {scores}")
    if any(score is not None and math.isnan(score) for score in scores):
        return Case(fault, "wrong", f"scores {scores}")
    return Case(fault, "harmless")


def read_content(path: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Header and tensors of a model file."""
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata()), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


def write_content(path: Path, header: dict[str, str], tensors: dict[str, torch.Tensor]) -> None:
    """Write a model file of any content, with a digest that fits."""
    save_file(tensors, path, metadata=header | {"digest": BLANK})
    seal_file(path, path.read_bytes().index(b'"digest":"') + len(b'"digest":"'))


def mutate_tensors(rng: random.Random, tensors: dict[str, torch.Tensor]) -> str:
    """Change a random tensor, and describe the change."""
    key = rng.choice(sorted(tensors))
    value = tensors[key]
    fault = rng.choice(["value", "value", "dtype", "shape", "remove", "add", "huge"])
    if fault == "value" and value.is_floating_point() and value.numel():
        flat = value.flatten().clone()
        flat[rng.randrange(len(flat))] = rng.choice([math.nan, math.inf, -math.inf, 1e38, -1e38, 0.0])
        tensors[key] = flat.reshape(value.shape)
    elif fault == "dtype":
        tensors[key] = value.to(rng.choice([torch.float16, torch.float64, torch.int8, torch.bool, torch.int32]))
    elif fault == "shape":
        tensors[key] = rng.choice([value[None].contiguous(), value.flatten()[:1].clone(), torch.zeros(0)])
    elif fault == "remove":
        del tensors[key]
    elif fault == "add":
        tensors[f"{key}_"] = value.clone()
    elif value.is_floating_point():
        tensors[key] = value * 1e30
    return f"{fault} of {key}"


def _peak_memory() -> int:
    """Peak memory of the process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
