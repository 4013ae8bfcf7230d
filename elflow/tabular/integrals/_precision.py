"""Log-densities of many points: by the native kernel, or by torch in the precision that is accurate enough."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from elflow.flows.compiled import compile_density
from elflow.kernels import NonFiniteError

__all__ = ["N_CHECKED", "choose_precision", "evaluate_points"]

MAX_SINGLE_ERROR = 1e-3
"""Maximum error of log-densities in single precision, up to which it replaces double precision."""
N_CHECKED = 64
"""Number of points at which single and double precision are compared."""


@torch.no_grad()
def choose_precision(flow: nn.Module, z: Tensor, context: Tensor | None = None) -> nn.Module:
    """A copy of a flow in single precision if that is faster and accurate at the points, and the flow itself otherwise.

    In torch, single precision takes half the time. Its rounding is far smaller than the errors of sampling and
    interpolation. The native kernel is faster than both, in double precision.

    Arguments:
        flow: The flow, in double precision.
        z: Points, `(..., features)`.
        context: Their context, `(..., context)`.
    """
    z = z.reshape(-1, z.shape[-1])
    if not len(z) or compile_density(flow) is not None:
        return flow
    index = torch.linspace(0, len(z) - 1, min(N_CHECKED, len(z))).long()
    c = None if context is None else context.reshape(-1, context.shape[-1])[index]
    single = deepcopy(flow).float()
    try:
        error = evaluate_points(single, z[index], c) - evaluate_points(flow, z[index], c)
    except NonFiniteError:
        return flow
    return single if bool(error.abs().nan_to_num(nan=torch.inf).max() <= MAX_SINGLE_ERROR) else flow


@torch.no_grad()
def evaluate_points(flow: nn.Module, z: Tensor, context: Tensor | None = None) -> Tensor:
    """Log-densities of points in the precision of the flow, as doubles.

    Arguments:
        flow: The flow, in single or double precision.
        z: Points, `(..., features)`.
        context: Their context, which broadcasts to `(..., context)`.
    """
    compiled = compile_density(flow)
    if compiled is not None:
        c = None if context is None else context.expand(*z.shape[:-1], -1).reshape(-1, context.shape[-1]).double()
        return compiled.log_prob(z.double().reshape(-1, z.shape[-1]), c).reshape(z.shape[:-1])
    dtype = next((t.dtype for t in (*flow.parameters(), *flow.buffers()) if t.is_floating_point()), z.dtype)
    log_density: Tensor = flow(None if context is None else context.to(dtype)).log_prob(z.to(dtype))
    return log_density.double()
