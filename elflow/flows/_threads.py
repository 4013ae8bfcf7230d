"""Independent functions with gradients, each on a thread of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

__all__ = ["stack_results"]


def stack_results(functions: Sequence[Callable[[], Tensor]], n_threads: int) -> Tensor:
    """Results of functions of the same shape, stacked; both passes of each function run on a thread.

    Several threads within each operation of a small flow wait for each other too often to be worth it. Functions that
    share nothing wait for each other once in each pass.

    The gradients are added to the leaves that the functions use, such as parameters, when the result is part of a loss
    on which `backward` is called. `torch.autograd.grad` does not see these leaves: with `n_threads` of 1 it does.

    Arguments:
        functions: Functions without arguments, which return tensors of one shape.
        n_threads: The number of threads; 1 computes one after the other, by plain operations of torch.

    Example:
        >>> a, b = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
        >>> stack_results([lambda: a**2, lambda: b**3], n_threads=2).sum().backward()
        >>> a.grad, b.grad
        (tensor(4.), tensor(27.))
    """
    is_plain = n_threads == 1 or len(functions) == 1 or not torch.is_grad_enabled()
    if is_plain or torch.is_autocast_enabled("cpu"):  # a setting of each thread, which others do not have
        return torch.stack([function() for function in functions])
    anchor = torch.zeros((), requires_grad=True)  # without an input that needs a gradient there is no backward pass
    return _Parallel.apply(anchor, functions, n_threads)


class _Parallel(Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, functions: Sequence[Callable[[], Tensor]], n_threads: int) -> Tensor:
        ctx.pool = _get_pool(n_threads)
        ctx.results = list(ctx.pool.map(_call_with_gradients, functions))
        return torch.stack([result.detach() for result in ctx.results])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        list(ctx.pool.map(torch.autograd.backward, ctx.results, grad.unbind()))
        return grad.new_zeros(()), None, None


def _call_with_gradients(function: Callable[[], Tensor]) -> Tensor:
    with torch.enable_grad():  # it is off in a forward pass, and a setting of each thread
        return function()


@cache
def _get_pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, thread_name_prefix="elflow")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_get_pool.cache_clear)
