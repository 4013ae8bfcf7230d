"""Log-densities of fitted mixtures of flows by one native kernel, from the rows to the result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from zuko.nn import MaskedLinear

from elflow._checks import check_rows
from elflow.activations import FELU
from elflow.flows.elf import MAX_LOG_SCALE, MaskedELFTransform
from elflow.flows.group_norm import Grouped, GroupNorm
from elflow.flows.layered import LayeredFlow
from elflow.flows.mixture import FlowMixture
from elflow.flows.strata import BoxGaussian
from elflow.flows.tilted import Tilted
from elflow.flows.whitening import Gaussian, Whitened, Whitening
from elflow.functional import bumps, lipschitz
from elflow.kernels import native, select
from elflow.kernels.contract import MAX_LOG
from elflow.nn import ActNorm
from elflow.nn.mlp import BlockMaskedLinear, FactoredHead

__all__ = ["CompiledDensity", "compile_density"]

LINEAR_BLOCK = 8
"""Number of outputs of a linear layer that the kernel computes together."""

Linear = tuple[Tensor, Tensor, bool]
"""Weights with zeros where the mask hides them, biases, and whether a ReLU follows."""


class CompiledDensity:
    """Log-density of a mixture of flows by the native kernel: see `compile_density`.

    Arguments:
        flow: The flow.
        program: The same flow in the memory of the native extension.
        features: The number of features.
        context: The number of context features.
        tilted: The flow with factors of cells, if it has any: `flow` is without.
    """

    def __init__(
        self, flow: nn.Module, program: Any, features: int, context: int, tilted: Tilted | None = None
    ) -> None:
        self.tilted = tilted
        self.flow = flow
        self.program = program
        self.features = features
        self.context = context

    @torch.no_grad()
    def log_prob(self, x: Tensor, c: Tensor | None = None) -> Tensor:
        """Log-density of points `(N, features)`, or D points for each row `(N, D, features)`: `(N,)` or `(N, D)`.

        Each row is computed by itself: its result is the same, to the last bit, in any batch and with any number of
        threads. Points whose networks are numerically unusual take the path through torch.

        Arguments:
            x: The points.
            c: The context of the rows, `(N, context)`, or None for a flow without context.
        """
        check_rows("x", x, self.features, "feature", torch.double)
        if (c is None) != (self.context == 0) or (c is not None and len(c) != len(x)):
            expected = f"a context of the shape ({len(x)}, {self.context})" if self.context else "None"
            raise ValueError(f"c must be {expected}, got {'None' if c is None else f'the shape {tuple(c.shape)}'}")
        if c is not None:
            check_rows("c", c, self.context, "context feature", torch.double)
        x = x.contiguous()
        c = None if c is None else c.contiguous()
        result = x.new_empty(x.shape[:-1])
        context = 0 if c is None else c.data_ptr(), max(1, result[:1].numel())
        self.program.score(result.numel(), x.data_ptr(), *context, result.data_ptr(), torch.get_num_threads())
        is_left = result.isnan()
        if is_left.any():
            given = None if c is None else c[is_left.nonzero()[:, 0]]
            result[is_left] = self.flow(given).log_prob(x[is_left])
        return result if self.tilted is None else result + self.tilted.compute_log_factor(x)


Weights = list[tuple[Tensor, int, int]]
"""All tensors of a flow, each with its version and its address, which change whenever its values do."""
_programs: WeakKeyDictionary[nn.Module, tuple[Weights, Any]] = WeakKeyDictionary()
"""Programs of the native extension, or None for flows that it does not support. No value refers to its key."""


def compile_density(flow: nn.Module) -> CompiledDensity | None:
    """Compile a flow in evaluation mode and double precision for fast log-densities on a CPU.

    The kernel supports mixtures of `ELF`, `Whitened`, `Grouped`, `Gaussian` and `BoxGaussian` in the bump
    parametrisation. Its copy of the weights is stored until one of them changes. Factors of `Tilted` are added to its
    result.

    Arguments:
        flow: The flow.

    Returns:
        The compiled density, or None if the kernel does not support the flow or is not installed.

    Example:
        >>> import elflow
        >>> flow = elflow.ELF(features=3).double().eval()
        >>> x = torch.randn(100, 3).double()
        >>> torch.allclose(compile_density(flow).log_prob(x), flow().log_prob(x))
        True
    """
    if flow.training:
        return None
    if isinstance(flow, Tilted):
        base = compile_density(flow.flow)
        return base and CompiledDensity(base.flow, base.program, base.features, base.context, flow)
    weights: Weights = [(w, w._version, w.data_ptr()) for w in _list_weights(flow)]
    stored, program = _programs.get(flow, ([], None))
    is_same = len(stored) == len(weights) and all(
        a[0] is b[0] and a[1] == b[1] and a[2] == b[2] for a, b in zip(stored, weights, strict=True)
    )
    expected = torch.double, torch.device("cpu")
    if not is_same and any(w.is_floating_point() and (w.dtype, w.device) != expected for w, _, _ in weights):
        return None
    if select(*expected, FELU) is not native.BACKEND:
        return None
    if not is_same:
        try:
            with torch.no_grad():
                program = _compile(flow)
        except _UnsupportedError:
            program = None
        _programs[flow] = weights, program
    return None if program is None else CompiledDensity(flow, *program)


def _list_weights(module: nn.Module) -> list[Tensor]:
    """All parameters and buffers; `Module.parameters` takes milliseconds for a mixture, since it also makes names."""
    found: list[Tensor | None] = []
    modules = [module]
    for parent in modules:  # which grows in the loop
        found += [*parent._parameters.values(), *parent._buffers.values()]
        modules += [child for child in parent._modules.values() if child is not None]
    return [tensor for tensor in found if tensor is not None]


class _UnsupportedError(Exception):
    """The kernel does not support a part of a flow."""


def _compile(flow: nn.Module) -> tuple[Any, int, int]:
    """The program of a flow, and its numbers of features and of context features."""
    members = list(_iter_members(flow, 0.0))
    features, context = {_count_features(*member[3:]) for member in members}.pop()
    program = native.extension.Mixture(features, context)
    for log_weight, box, norm, whitening, layers in members:
        constant = log_weight - features / 2 * math.log(2 * math.pi)
        program.add_member(constant + _sum_constants(whitening, layers))
        if box is not None:
            program.add_box(_to_array(box.lower), _to_array(box.upper))
        if norm is not None:
            log_scale = -norm.log_scale
            parts = map(_to_array, (norm.lower, norm.upper, norm.loc, log_scale.exp(), log_scale))
            gate = norm.gate.to(torch.int32).numpy()
            program.add_groups(*parts, gate, _to_array(norm.gate_lower), _to_array(norm.gate_upper))
        if whitening is not None:
            loc, lower, log_scale, coefficients = whitening.compute_parts()
            order = np.array(whitening.order, np.int32)
            program.add_triangular(order, *map(_to_array, (loc, lower, log_scale.exp(), coefficients)))
        for layer in layers:
            if isinstance(layer, ActNorm):
                program.add_affine(_to_array(layer.loc), _to_array(layer.log_scale.exp()))
            else:
                _add_networks(program, layer)
    program.finish()
    return program, features, context


Member = tuple[float, BoxGaussian | None, GroupNorm | None, Whitening | None, list[ActNorm | MaskedELFTransform]]


def _iter_members(
    flow: nn.Module, log_weight: float, norm: GroupNorm | None = None, whitening: Whitening | None = None
) -> Iterator[Member]:
    """The logarithm of its weight, the box and all layers of each member of nested mixtures."""
    if isinstance(flow, FlowMixture) and whitening is None:
        for member, weight in zip(flow.flows, flow.log_weights.tolist(), strict=True):
            if weight > -math.inf:
                yield from _iter_members(member, log_weight + weight, norm)
    elif isinstance(flow, Grouped) and norm is None and whitening is None:
        yield from _iter_members(flow.flow, log_weight, flow.norm)
    elif isinstance(flow, BoxGaussian) and norm is None and whitening is None:
        yield log_weight - float(flow.log_box), flow, None, flow.whitening, []
    elif isinstance(flow, Gaussian) and whitening is None:
        yield log_weight, None, norm, flow.whitening, []
    elif isinstance(flow, Whitened) and whitening is None:
        yield from _iter_members(flow.flow, log_weight, norm, flow.whitening)
    elif isinstance(flow, LayeredFlow):
        layers = list(flow.transform.transforms)
        normal = flow.base().base_dist
        if not (normal.loc == 0).all() or not (normal.scale == 1).all() or not all(map(_is_supported, layers)):
            raise _UnsupportedError
        yield log_weight, None, norm, whitening, layers
    else:
        raise _UnsupportedError


def _is_supported(layer: nn.Module) -> bool:
    if isinstance(layer, ActNorm):
        return layer.pixels == 1
    has_bumps = type(layer) is MaskedELFTransform and layer.hyper.parametrization == "bumps"
    return has_bumps and layer.activation == FELU


def _count_features(whitening: Whitening | None, layers: list[ActNorm | MaskedELFTransform]) -> tuple[int, int]:
    """The numbers of features and of context features of a member."""
    if whitening is not None:
        return whitening.features, whitening.matrix.shape[1] - 1 - whitening.features
    layer = next(layer for layer in layers if isinstance(layer, MaskedELFTransform))
    return layer.features, layer.hyper.context


def _sum_constants(whitening: Whitening | None, layers: list[ActNorm | MaskedELFTransform]) -> float:
    """The part of the log-determinant that is the same for all rows."""
    total = 0.0 if whitening is None else float(whitening.compute_parts()[2].sum())
    for layer in layers:
        if isinstance(layer, ActNorm):
            total += float(layer.log_scale.sum())
        elif layer.hyper.free and layer.scale:
            total += _squash_scale(float(layer.hyper.first[0, -1]))
    return total


def _squash_scale(raw: float) -> float:
    return raw / (1 + abs(raw) / MAX_LOG_SCALE)


def _add_networks(program: Any, layer: MaskedELFTransform) -> None:
    """Add the hypernetwork of a layer, and the networks that it computes."""
    hyper = layer.hyper
    linears = _reorder_hidden(list(_iter_linears(list(hyper.net)))) if hyper.dependent else []
    size = hyper.first.shape[-1] if hyper.free else len(linears[-1][1]) // len(hyper.dependent)
    index = [hyper.dependent.index(i) if i in hyper.dependent else -1 for i in range(layer.features)]
    largest_scale = MAX_LOG_SCALE if layer.scale else 0.0
    program.add_networks(hyper.units, size, layer.bound, MAX_LOG, largest_scale, np.array(index, np.int32))
    if hyper.free:
        first = hyper.first[0]
        w1, b1, w2, b2 = bumps(first[:-1] if layer.scale else first, hyper.units)
        w2 = w2 * (layer.bound / lipschitz(w1, b1, w2).clamp(min=layer.bound))
        scale = math.exp(_squash_scale(float(first[-1]))) if layer.scale else 1.0
        program.add_shared(scale, *map(_to_array, (w1, b1, w2)), float(b2))
    for weight, bias, relu in linears:
        starts, seen, *values = _pack_linear(weight, bias)
        is_prefix = all((seen[a:b] == np.arange(b - a)).all() for a, b in pairwise(starts))
        program.add_linear(weight.shape[1], is_prefix, starts, seen, *values, relu)


def _iter_linears(layers: list[nn.Module]) -> Iterator[Linear]:
    """The linear layers of a hypernetwork, with dense weights."""
    for layer, following in zip(layers, [*layers[1:], None], strict=True):
        relu = isinstance(following, nn.ReLU)
        if isinstance(layer, MaskedLinear):
            yield layer.mask * layer.weight, layer.bias, relu
        elif type(layer) is nn.Linear:
            yield layer.weight, layer.bias, relu
        elif isinstance(layer, BlockMaskedLinear):
            blocks = [cast(MaskedLinear, block) for block in layer.blocks]
            columns = max(block.in_features for block in blocks)
            parts = [nn.functional.pad(b.mask * b.weight, (0, columns - b.in_features)) for b in blocks]
            yield torch.cat(parts), torch.cat([block.bias for block in blocks]), relu
        elif isinstance(layer, FactoredHead):
            yield torch.block_diag(*layer.weight.transpose(1, 2)), layer.bias.flatten(), relu
        elif not isinstance(layer, nn.ReLU | nn.Unflatten):
            raise _UnsupportedError


def _reorder_hidden(linears: list[Linear]) -> list[Linear]:
    """The same layers with hidden units in the order of the number of their inputs.

    Neighbours then see the same inputs, so that blocks of outputs leave out most weights that the mask hides.
    """
    for i in range(len(linears) - 1):
        (weight, bias, relu), (next_weight, next_bias, next_relu) = linears[i : i + 2]
        order = (weight != 0).sum(1).argsort(stable=True)
        next_weight = nn.functional.pad(next_weight, (0, len(weight) - next_weight.shape[1]))
        linears[i : i + 2] = (weight[order], bias[order], relu), (next_weight[:, order], next_bias, next_relu)
    return linears


def _pack_linear(weight: Tensor, bias: Tensor) -> tuple[NDArray[Any], ...]:
    """A layer as the kernel takes it: see `Linear` in `csrc/kernels.h`."""
    missing = -len(weight) % LINEAR_BLOCK
    blocks = np.pad(_to_array(weight), ((0, missing), (0, 0))).reshape(-1, LINEAR_BLOCK, weight.shape[1])
    seen = [np.flatnonzero(is_seen) for is_seen in (blocks != 0).any(1)]
    starts = np.cumsum([0, *map(len, seen)], dtype=np.int64)
    weights = np.concatenate([block[:, columns].T for block, columns in zip(blocks, seen, strict=True)])
    return starts, np.concatenate(seen).astype(np.int32), weights, np.pad(_to_array(bias), (0, missing))


def _to_array(values: Tensor) -> NDArray[np.float64]:
    return np.ascontiguousarray(values.double().numpy())
