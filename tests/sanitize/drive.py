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
        print(f"{name}: {done} cases so far, threads of its {native.thread_pool()} pool", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
