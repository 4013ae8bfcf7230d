"""Optimizer for flows: orthogonalised momentum (Muon) for matrices of weights, AdamW for all other parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from elflow.nn import MaskedConvolution

__all__ = ["Layout", "Muon", "find_matrices", "orthogonalize"]

POLYNOMIALS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
)
"""Odd polynomials (a, b, c) of degree 5, each the best one after those before it, by Amsel et al. (2025)."""
SAFETY = 1.01
"""Factor of the norm by which a matrix is divided: rounding must not push a singular value above 1."""
RMS = 0.2
"""Root mean square of an update for a learning rate of 1: about that of AdamW, so that both share a learning rate."""


class Layout(NamedTuple):
    """Matrix that a parameter stands for."""

    rows: int
    columns: int
    places: Tensor | None = None
    """Positions of the parameter's values in the flattened matrix, which is zero elsewhere; None if it has them all."""

    def to_matrix(self, values: Tensor) -> Tensor:
        """The matrix with these values, which have the shape of the parameter."""
        if self.places is None:
            return values.reshape(self.rows, self.columns)
        zeros = values.new_zeros(self.rows * self.columns)
        return zeros.index_copy(0, self.places, values.flatten()).view(self.rows, self.columns)

    def to_values(self, matrix: Tensor, shape: torch.Size) -> Tensor:
        """The values of a matrix in the shape of the parameter."""
        flat = matrix.flatten()
        return (flat if self.places is None else flat[self.places]).view(shape)


class Muon(Optimizer):
    """Muon for matrices of weights, AdamW for all other parameters.

    Muon replaces the momentum of a matrix by the nearest matrix with orthogonal rows or columns: the update has the
    same size in all directions, where that of AdamW is nearly of low rank. `torch.optim.Muon` takes matrices only, and
    handles one at a time in bfloat16. Here, all matrices of one shape are handled at once.

    References:
        Muon: An optimizer for hidden layers in neural networks (Jordan et al., 2024)
        Muon is scalable for LLM training (Liu et al., 2025): the size of the updates
        The Polar Express (Amsel et al., 2025): the polynomials

    Arguments:
        params: Groups of parameters. Groups with `orthogonal=True` consist of matrices: see `layouts`.
        layouts: The matrices that these parameters stand for; those without a layout are matrices themselves.
        lr: Learning rate.
        weight_decay: Weight decay, decoupled as in AdamW.
        momentum: Decay of the average of the gradients of matrices.
        betas: Decay rates of AdamW.
        eps: Term of the denominator of AdamW.

    Example:
        >>> layer = nn.Linear(8, 4)
        >>> optimizer = Muon([{"params": [layer.weight], "orthogonal": True}, {"params": [layer.bias]}], lr=0.01)
        >>> layer(torch.ones(5, 8)).square().mean().backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        layouts: Mapping[Tensor, Layout] | None = None,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "betas": betas, "eps": eps}
        # torch moves the number of steps of a loaded state to the device of fused optimizers only.
        super().__init__(params, defaults | {"orthogonal": False, "fused": True})
        self.layouts = dict(layouts or {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; see `torch.optim.Optimizer.step`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                (self._update_matrices if group["orthogonal"] else self._update_others)(parameters, group)
        return loss

    def _update_matrices(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        by_shape: dict[tuple[int, int], list[Tensor]] = {}
        for p in parameters:
            by_shape.setdefault(self._get_layout(p)[:2], []).append(p)
        for shape, weights in by_shape.items():
            gradients = [p.grad for p in weights if p.grad is not None]
            averages = [self._get_average(p) for p in weights]
            torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
            # Nesterov's momentum: the average with the present gradient counted once more.
            directions = torch._foreach_lerp(gradients, averages, group["momentum"])
            matrices = [self._get_layout(p).to_matrix(x) for p, x in zip(weights, directions, strict=True)]
            nearest = orthogonalize(torch.stack(matrices)).unbind()
            updates = [self._get_layout(p).to_values(x, p.shape) for p, x in zip(weights, nearest, strict=True)]
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(weights, updates, alpha=-group["lr"] * RMS * max(shape) ** 0.5)

    def _get_layout(self, parameter: Tensor) -> Layout:
        return self.layouts.get(parameter) or Layout(*parameter.shape)

    def _get_average(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["average"] = torch.zeros_like(parameter)
        average: Tensor = state["average"]
        return average

    def _update_others(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for p in parameters:
            if not self.state[p]:
                zeros = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                self.state[p].update(step=torch.zeros((), dtype=torch.float32, device=p.device), **zeros)
        states = [self.state[p] for p in parameters]
        adamw(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def orthogonalize(matrices: Tensor) -> Tensor:
    """Approximate the nearest matrices with orthogonal rows or columns, `(..., rows, columns)`.

    Singular values become 0.4 to 1.6, unless they are less than about a thousandth of the norm. Zeros stay zeros.

    Example:
        >>> values = torch.linalg.svdvals(orthogonalize(torch.randn(4, 8)))
        >>> bool((values > 0.4).all() and (values < 1.6).all())
        True
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    tiny = torch.finfo(x.dtype).tiny
    # First by the largest value: squares of the fading momentum of a layer without gradients would underflow.
    x = x / x.abs().amax((-2, -1), keepdim=True).clamp(min=tiny)
    x = x / (SAFETY * torch.linalg.matrix_norm(x, keepdim=True)).clamp(min=tiny)
    for a, b, c in POLYNOMIALS:
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.mT if is_tall else x


def find_matrices(module: nn.Module) -> dict[Tensor, Layout]:
    """The trainable weights of linear layers and convolutions, except those with one input or output.

    The matrix of a convolution has a row for each output channel.

    Example:
        >>> layers = nn.Sequential(nn.Conv2d(2, 8, kernel_size=3), nn.Flatten(), nn.Linear(8, 4), nn.Linear(4, 1))
        >>> [layout[:2] for layout in find_matrices(layers).values()]
        [(8, 18), (4, 8)]
    """
    layouts: dict[Tensor, Layout] = {}
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layouts[layer.weight] = Layout(len(layer.weight), layer.weight[0].numel())
        elif isinstance(layer, MaskedConvolution):
            columns = layer.rows * layer.columns * layer.inputs
            layouts[layer.weight] = Layout(layer.outputs, columns, None if layer.is_dense else layer.weight_index)
    return {p: layout for p, layout in layouts.items() if p.requires_grad and min(layout[:2]) > 1}
