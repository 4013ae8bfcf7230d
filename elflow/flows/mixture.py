"""Mixtures of flows: several densities with weights, which together are one density."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np
import sklearn.mixture
import torch
from numpy.typing import NDArray
from torch import Size, Tensor, nn
from torch.distributions import Distribution, constraints

from elflow._checks import check_count
from elflow.flows._threads import stack_results
from elflow.flows.groups import MIN_VARIANCE
from elflow.flows.whitening import Gaussian
from elflow.kernels import NonFiniteError
from elflow.nn import InitializesParts

__all__ = ["FlowMixture", "GaussianMixture", "MixtureDistribution", "fit_gaussians", "fit_weights"]

N_COMPONENTS = [1, 2, 4, 8, 16, 32]
"""Numbers of components that are tried for a Gaussian mixture."""

FloatArray = NDArray[np.float64]
N_EM_STEPS = 1_000
"""Maximum number of EM steps for the weights."""
N_STEPS = 50
"""Maximum number of EM steps for a Gaussian mixture."""


class FlowMixture(InitializesParts):
    """Mixture of flows over the same features.

    In training mode, `log_prob` is the mean of the log-densities of the members that are trained, so that maximum
    likelihood trains each by itself; only their gradients are clipped together. In evaluation mode it is the
    log-density of the mixture. `fit_weights` finds the weights afterwards, from held-out rows (stacking).

    Reference:
        Linearly combining density estimators via stacking (Smyth and Wolpert, 1999)

    Arguments:
        flows: The members; any flows.
        weights: Their weights, which are normalised; equal by default.

    Example:
        >>> import elflow
        >>> mixture = FlowMixture([elflow.ELF(features=2), elflow.ELF(features=2)], weights=[0.9, 0.1]).eval()
        >>> x = mixture().sample((100,))
        >>> mixture().log_prob(x).shape
        torch.Size([100])
    """

    log_weights: Tensor

    def __init__(self, flows: Sequence[nn.Module], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        if not flows:
            raise ValueError("flows must have at least one member, got none")
        self.flows = nn.ModuleList(flows)
        self.register_buffer("log_weights", torch.zeros(len(flows)))
        self.set_weights([1.0] * len(flows) if weights is None else weights)
        self.trainable = [k for k, flow in enumerate(flows) if any(p.requires_grad for p in flow.parameters())]
        self.trained = self.trainable
        self.n_threads = 1

    def extra_repr(self) -> str:
        return f"weights=[{', '.join(f'{weight:.3g}' for weight in self.log_weights.exp().tolist())}]"

    @torch.no_grad()
    def set_weights(self, weights: Sequence[float] | Tensor) -> None:
        """Set the weights of the members, which are normalised."""
        values = torch.as_tensor(weights, dtype=torch.double)
        if values.shape != self.log_weights.shape or not (values >= 0).all() or not 0 < values.sum() < math.inf:
            raise ValueError(f"weights must be {len(self.flows)} numbers, none negative, got {weights}")
        self.log_weights.copy_((values / values.sum()).log())

    def forward(self, c: Tensor | None = None) -> MixtureDistribution:
        """The distribution p(x | c), given the context `(..., context)`, or None for flows without context."""
        return MixtureDistribution(self, c)

    @staticmethod
    def combine(log_probs: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Log-densities of held-out rows, `(N,)`, under the mixture with the weights that suit these rows.

        Arguments:
            log_probs: Log-densities of the rows under the members, `(members, N)`.
            sample_weight: Weights of the rows, `(N,)`.
        """
        finite = _reject_non_finite(log_probs)
        weights = fit_weights(finite, sample_weight)
        return torch.logsumexp(finite + weights.log()[:, None], 0).to(log_probs)

    def initialize_parts(self, x: Tensor, c: Tensor | None) -> None:
        """Initialise each member from data `(N, features)`."""
        for flow in self.flows:
            if initialize := getattr(flow, "initialize", None):
                initialize(x, c)

    @property
    def parts(self) -> list[str]:
        """Names of the members, which are trained independently: see `elflow.training.selection`."""
        return [f"flows.{k}" for k in range(len(self.flows))]

    def train_parts(self, indices: Sequence[int]) -> None:
        """Train only these members from now on."""
        self.trained = list(indices)

    def train_in_threads(self, n_threads: int) -> None:
        """Compute `log_prob` in training mode, and its gradient, on this many threads: see `stack_results`.

        For a training loop that calls `backward`; the result is the same for any number.
        """
        self.n_threads = check_count("n_threads", n_threads)


class GaussianMixture(FlowMixture):
    """Mixture of up to 32 Gaussians with full covariances, which `initialize` sets by expectation maximisation.

    It has no trainable parameters. A fifth of the data is held out to select the number of components. With a context
    there is one Gaussian, whose mean is linear in the context.

    Arguments:
        features: The number of features.
        context: The number of context features.
        components: The maximum number of Gaussians.

    Example:
        >>> x = torch.cat([torch.randn(300, 2), 9 + torch.randn(300, 2)])
        >>> mixture = GaussianMixture(features=2)
        >>> mixture.initialize(x)
        >>> int((mixture.log_weights.exp() > 0.1).sum()) > 1
        True
    """

    def __init__(self, features: int, context: int = 0, components: int = N_COMPONENTS[-1]) -> None:
        count = 1 if context else check_count("components", components)
        super().__init__([Gaussian(features, context) for _ in range(count)])

    def drop_unused(self) -> int:
        """Remove the components of weight zero, and return the number of the others."""
        used = [k for k, weight in enumerate(self.log_weights.exp().tolist()) if weight > 0]
        self.flows = nn.ModuleList([self.flows[k] for k in used])
        self.log_weights = self.log_weights[used]
        return len(used)

    def initialize_parts(self, x: Tensor, c: Tensor | None) -> None:
        """Set the components from data `(N, features)`."""
        gaussians = [cast(Gaussian, flow) for flow in self.flows]
        gaussians[0].initialize(x, c)
        if len(gaussians) == 1:
            return
        best = _choose_mixture(x.cpu().double().numpy(), gaussians[0], len(gaussians))
        components = 1 if best is None else best.n_components
        if best is not None:
            for gaussian, mean, covariance in zip(gaussians, best.means_, best.covariances_, strict=False):
                gaussian.whitening.set_moments(torch.from_numpy(mean), torch.from_numpy(covariance))
        for gaussian in gaussians[components:]:
            gaussian.whitening.initialized.fill_(True)
        weights = [1.0] if best is None else best.weights_.tolist()
        self.set_weights(weights + [0.0] * (len(self.flows) - components))


def fit_gaussians(count: int, rows: FloatArray) -> sklearn.mixture.GaussianMixture:
    """Fit a mixture of Gaussians with full covariances to rows `(N, features)`, by EM from the clusters of k-means."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of EM that has not converged: its likelihood decides
        mixture = sklearn.mixture.GaussianMixture(count, reg_covar=MIN_VARIANCE, max_iter=N_STEPS, random_state=0)
        return mixture.fit(rows)


def _choose_mixture(rows: FloatArray, single: Gaussian, max_components: int) -> sklearn.mixture.GaussianMixture | None:
    """The mixture with the best number of components by held-out rows; None if one Gaussian is better."""
    # The order of the rows may be periodic: the split is random, but always the same.
    is_held_out = np.random.RandomState(0).permutation(len(rows)) % 5 == 0
    training, held_out = rows[~is_held_out], rows[is_held_out]

    # Each component needs enough rows for its covariance.
    largest = min(max_components, len(training) // (5 * (rows.shape[1] + 1)))
    counts = [count for count in N_COMPONENTS[1:] if count <= largest]
    with torch.no_grad():
        alone = deepcopy(single)
        alone.whitening.initialized.fill_(False)
        alone.initialize(torch.from_numpy(training).to(alone.zeros.dtype))
        best_score = float(alone().log_prob(torch.from_numpy(held_out).to(alone.zeros.dtype)).mean()) if counts else 0.0
    best_count = 1
    for count in counts:
        score = float(fit_gaussians(count, training).score(held_out))
        if score <= best_score:
            break
        best_score, best_count = score, count
    return fit_gaussians(best_count, rows) if best_count > 1 else None


class MixtureDistribution(Distribution):
    """Distribution of a `FlowMixture`, given a context.

    Arguments:
        mixture: The mixture.
        c: The context, `(..., context)`, or None for flows without context.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, mixture: FlowMixture, c: Tensor | None) -> None:
        self.mixture = mixture
        self.c = c
        event_shape = mixture.flows[0](c).event_shape
        super().__init__(Size(() if c is None else c.shape[:-1]), event_shape, validate_args=False)

    def log_probs(self, x: Tensor) -> Tensor:
        """Log-densities of points `(..., features)` under each member, `(K, ...)`; NaN if its networks overflow."""
        log_probs = []
        for flow in self.mixture.flows:
            try:
                log_probs.append(flow(self.c).log_prob(x))
            except NonFiniteError:
                log_probs.append(torch.full_like(x[..., 0], math.nan))
        return torch.stack(log_probs)

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density of points `(..., features)` in nats, `(...)`; in training mode the mean of the members'."""
        mixture = self.mixture
        if mixture.training and not mixture.initialized:
            mixture.initialize(x, self.c)
        if mixture.training and mixture.trained:
            functions = [partial(self._score, k, x) for k in mixture.trained]
            # Members share the graph of points and context, and the thread on which another device goes backward.
            shares_graph = x.requires_grad or (self.c is not None and self.c.requires_grad)
            is_plain = shares_graph or x.device.type != "cpu"
            log_probs = stack_results(functions, 1 if is_plain else mixture.n_threads)
            mean = log_probs.mean(0)
            # The gradient of a member must not change when the training of another one ends.
            per_member = log_probs.sum(0) / len(mixture.trainable)
            return mean.detach() + per_member - per_member.detach()
        # Members of weight zero take no time.
        used = [k for k, log_weight in enumerate(mixture.log_weights.tolist()) if log_weight > -math.inf]
        log_probs = torch.stack([mixture.flows[k](self.c).log_prob(x) for k in used])
        return torch.logsumexp(log_probs + mixture.log_weights[used].reshape(-1, *[1] * (log_probs.dim() - 1)), 0)

    def _score(self, k: int, x: Tensor) -> Tensor:
        """Log-density of points `(..., features)` under one member, `(...)`."""
        log_prob: Tensor = self.mixture.flows[k](self.c).log_prob(x)
        return log_prob

    @torch.no_grad()
    def sample(self, sample_shape: Size | Sequence[int] = (), **options: Any) -> Tensor:
        """Samples without gradients, `(*sample_shape, *batch, features)`: each is drawn from a random member.

        Arguments:
            sample_shape: The shape of the samples for each context.
            options: Options of the members' own `sample`.
        """
        shape = self._extended_shape(Size(sample_shape))
        log_weights = self.mixture.log_weights
        members = torch.multinomial(log_weights.exp(), max(1, shape[:-1].numel()), replacement=True)
        members = members[: shape[:-1].numel()].reshape(shape[:-1])
        x = log_weights.new_zeros(shape)
        for k, flow in enumerate(self.mixture.flows):
            is_member = members == k
            if not is_member.any():
                continue
            if self.c is None:
                x[is_member] = flow().sample((int(is_member.sum()),), **options)
            else:
                c = self.c.expand(*shape[:-1], -1)[is_member]
                x[is_member] = flow(c).sample((), **options)
        return x


def fit_weights(log_probs: Tensor, sample_weight: Tensor | None = None, prior: float = 0.5) -> Tensor:
    """Weights of a mixture by the likelihood of held-out rows, with expectation maximisation.

    Each member has `prior` additional rows, so that few held-out rows do not exclude a member. Half a row is the prior
    of Krichevsky and Trofimov, whose worst-case loss is least.

    Arguments:
        log_probs: Log-densities of N rows under K members, `(K, N)`.
        sample_weight: Weights of the rows, `(N,)`.
        prior: Number of additional rows of each member.

    Returns:
        Weights, `(K,)`, which add up to one.

    Example:
        >>> log_probs = torch.tensor([[-1.0, -1.0, -99.0], [-99.0, -99.0, -1.0], [-50.0, -50.0, -50.0]])
        >>> fit_weights(log_probs)
        tensor([0.5556, 0.3333, 0.1111], dtype=torch.float64)
    """
    log_probs = _reject_non_finite(log_probs)
    is_possible = (log_probs > -math.inf).any(0)
    log_probs = log_probs[:, is_possible]
    rows = torch.ones(len(is_possible)) if sample_weight is None else sample_weight.cpu()
    rows = rows[is_possible].double()
    weights = torch.full((len(log_probs),), 1 / len(log_probs), dtype=torch.double)
    for _ in range(N_EM_STEPS):
        counts = torch.softmax(log_probs + weights.log()[:, None], 0) @ rows + prior
        if counts.sum() <= 0:
            break
        change = counts / counts.sum() - weights
        weights = weights + change
        if change.abs().max() < 1e-7:
            break
    return weights / weights.sum()


def _reject_non_finite(log_probs: Tensor) -> Tensor:
    """Log-densities in double precision on the CPU (mps has none), with minus infinity for all that is not finite."""
    return log_probs.cpu().double().nan_to_num(nan=-math.inf, posinf=-math.inf, neginf=-math.inf)
