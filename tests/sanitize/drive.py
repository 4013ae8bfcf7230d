"""Run every function of the native module on many shapes; `make sanitize` runs this under the sanitizers.

It takes the path of the compiled module. It imports NumPy only: without torch, the module uses its own threads, all of
whose synchronisation the sanitizer of data races sees.
"""

import importlib.util
import itertools
import sys
from types import ModuleType
from typing import Any

import numpy as np

MAX_LOG = 12.0
LINEAR_BLOCK = 8
"""Number of outputs of a block of a linear layer: `linear_block` in `csrc/kernels.h`."""
HOSTILE = [0.0, -0.0, 1e-30, -1e-30, 1e30, -1e30, np.nan, np.inf]
"""Values that take the place of some weights."""


def load_module(path: str) -> ModuleType:
    """The compiled module."""
    spec = importlib.util.spec_from_file_location("_native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Networks:
    """Random networks, with rows that are further apart than they are long, and exact room for all results."""

    def __init__(
        self, native: Any, dtype: type, count: int, units: int, points: int, rng: Any, is_hostile: bool
    ) -> None:
        self.native, self.dtype, self.count, self.units, self.points = native, dtype, count, units, points
        wide = [np.ascontiguousarray(rng.normal(size=(count, units + 3)).astype(dtype)) for _ in range(3)]
        self.w1, self.b1, self.w2 = (array[:, :units] for array in wide)
        self.w2 *= 1 / np.sqrt(units)
        self.b2 = rng.normal(size=count).astype(dtype)
        if is_hostile:
            for array in (self.w1, self.b1, self.w2):
                array[rng.integers(count), rng.integers(units)] = rng.choice(HOSTILE)
        self.x = np.ascontiguousarray(rng.normal(size=(count, points)).astype(dtype) * 3)

    def describe(self) -> Any:
        rows = [(a.ctypes.data, a.strides[0] // a.itemsize) for a in (self.w1, self.b1, self.w2)]
        memory = [number for row in rows for number in row]
        return self.native.Networks(self.dtype is np.float64, self.count, self.units, *memory, self.b2.ctypes.data, 1)

    def run(self, threads: int) -> list[np.ndarray]:
        """Results of all functions."""
        native, nets, shape = self.native, self.describe(), (self.count, self.points)
        constants, places = np.zeros(self.count), np.zeros(self.count, np.int32)
        results = []
        for algorithm in (0, 1):
            native.lipschitz(nets, constants.ctypes.data, places.ctypes.data, algorithm, threads)
            results += [constants.copy(), places.copy()]
        grads = [np.zeros((self.count, self.units), self.dtype) for _ in range(3)]
        ones = np.ones(self.count)
        native.lipschitz_backward(nets, places.ctypes.data, ones.ctypes.data, *(g.ctypes.data for g in grads), threads)
        results += [g.copy() for g in grads]
        y, log_slope, back = (np.zeros(shape, self.dtype) for _ in range(3))
        memory = constants.ctypes.data, places.ctypes.data
        native.transform(
            nets, self.points, 0.9, self.x.ctypes.data, y.ctypes.data, log_slope.ctypes.data, *memory, threads
        )
        native.transform(nets, self.points, 0.9, y.ctypes.data, back.ctypes.data, 0, *memory, threads)
        results += [y, log_slope, back]
        for slope in (np.ones(shape, self.dtype), None):
            grad, grad_x, grad_b2 = (
                np.ones(shape, self.dtype),
                np.zeros(shape, self.dtype),
                np.zeros(self.count, self.dtype),
            )
            addresses = [a.ctypes.data for a in (grad_x, *grads, grad_b2)]
            native.transform_backward(
                nets, self.points, 0.9, *memory, self.x.ctypes.data, grad.ctypes.data,
                0 if slope is None else slope.ctypes.data, *addresses, threads,
            )  # fmt: skip
            results += [grad_x, *(g.copy() for g in grads), grad_b2]
        return results + self.run_bumps(threads)

    def run_bumps(self, threads: int) -> list[np.ndarray]:
        """Weights of networks in the bump parametrisation, and the gradient of their parameters."""
        size = self.units + 3 * ((self.units + 1) // 2) + 1
        phi = np.ascontiguousarray(np.resize(self.w1, (self.count, size)).astype(self.dtype))
        weights = [np.zeros((self.count, self.units), self.dtype) for _ in range(3)]
        grad = np.zeros_like(phi)
        given = self.dtype is np.float64, self.count, self.units, MAX_LOG, phi.ctypes.data, size
        self.native.bumps(*given, *(w.ctypes.data for w in weights), 0, size, threads)
        self.native.bumps(*given, *(w.ctypes.data for w in weights), grad.ctypes.data, size, threads)
        return [*weights, grad]


def make_mixture(native: Any, features: int, context: int, units: int, rng: Any, is_hostile: bool) -> Any:
    """A Gaussian in a box, and a flow of two layers with a hidden layer each: see `elflow/flows/compiled.py`."""

    def draw_positive(*shape: int) -> np.ndarray:
        return np.exp(draw(*shape).clip(-700, 700))

    def draw(*shape: int) -> np.ndarray:
        values = rng.normal(size=shape)
        if is_hostile and values.size:
            values.flat[rng.integers(values.size)] = rng.choice(HOSTILE)
        return values

    mixture = native.Mixture(features, context)
    mixture.add_member(-1.5)
    mixture.add_box(draw(features) - 1.0, draw(features) + 1.0)
    order = rng.permutation(features).astype(np.int32)
    lower = np.tril(draw(features, features), -1)
    mixture.add_triangular(order, draw(features), lower, draw_positive(features), draw(features, context))
    mixture.add_member(-0.5)
    size, hidden = units + 3 * ((units + 1) // 2) + 2, 2 * LINEAR_BLOCK
    for _ in range(2):
        mixture.add_affine(draw(features), draw_positive(features))
        first = 0 if context else 1  # without a context, the first column has a network of its own
        index = np.arange(features, dtype=np.int32) - first
        mixture.add_networks(units, size, 0.9, MAX_LOG, 2.0, index)
        if first:
            mixture.add_shared(1.2, draw_positive(units), draw(units), 0.1 * draw(units), 0.3)
        n_networks = features - first
        if not n_networks:
            continue
        for inputs, outputs, relu in ((features + context, hidden, True), (hidden, n_networks * size, False)):
            n_blocks = -(-outputs // LINEAR_BLOCK)
            starts = np.arange(n_blocks + 1, dtype=np.int64) * inputs
            seen = np.tile(np.arange(inputs, dtype=np.int32), n_blocks)
            weights = 0.1 * draw(n_blocks * inputs, LINEAR_BLOCK)
            mixture.add_linear(inputs, True, starts, seen, weights, draw(n_blocks * LINEAR_BLOCK), relu)
    mixture.finish()
    return mixture


def score(mixture: Any, x: np.ndarray, context: np.ndarray, threads: int) -> np.ndarray:
    """Log-densities, where NaN marks rows that the kernel leaves to its caller."""
    result = np.zeros(len(x))
    mixture.score(len(x), x.ctypes.data, context.ctypes.data if context.size else 0, 1, result.ctypes.data, threads)
    return result


def run_mixtures(native: Any, rng: Any) -> int:
    """Score rows with mixtures of all sizes; return the number of cases."""
    done = 0
    cases = itertools.product([1, 2, 5, 17], [0, 3], [1, 2, 7, 16, 33], [1, 9, 300], [False, True])
    for features, context, units, count, is_hostile in cases:
        mixture = make_mixture(native, features, context, units, rng, is_hostile)
        x, c = rng.normal(size=(count, features)), rng.normal(size=(count, context))
        if is_hostile:
            x.flat[rng.integers(x.size)] = rng.choice(HOSTILE)
        alone, together = (score(mixture, x, c, threads) for threads in (1, 4))
        assert alone.tobytes() == together.tobytes(), (features, context, units, count)
        if not is_hostile and count == 300:
            assert np.isfinite(alone).any(), (features, context, units)
        done += 1
    return done


def main(path: str) -> None:
    """Compare threads with each other, and the inverse with its input."""
    native, rng, done = load_module(path), np.random.default_rng(0), 0
    for name in native.instruction_sets():
        native.choose_instruction_set(name)
        shapes = itertools.product(
            [np.float32, np.float64], [1, 7, 33, 300], [1, 2, 7, 16, 33], [1, 5, 700], [False, True]
        )
        for dtype, count, units, points, is_hostile in shapes:
            if count * units * points > 300_000:
                continue
            networks = Networks(native, dtype, count, units, points, rng, is_hostile)
            alone, together = networks.run(1), networks.run(4)
            for one, other in zip(alone, together, strict=True):
                assert one.tobytes() == other.tobytes(), (name, dtype, count, units, points)
            if not is_hostile:
                sweep, direct = alone[0], alone[2]
                np.testing.assert_allclose(sweep, direct, rtol=1e-5)
                np.testing.assert_allclose(alone[9], networks.x, rtol=0, atol=1e-3 if dtype is np.float32 else 1e-9)
            done += 1
        done += run_mixtures(native, rng)
        print(f"{name}: {done} cases so far, threads of its {native.thread_pool()} pool", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
