"""The operators within torch: compilation, export, torch's own checks, threads."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from elflow import functional, kernels, testing
from elflow.kernels import native


@pytest.fixture
def arguments(generator):
    weights = testing.make_networks("ordinary", 12, 7, torch.float32, generator)
    x, shift = torch.randn(2, 12, generator=generator)
    return [t.requires_grad_() for t in (x, *weights, shift)]


def loss(x, w1, b1, w2, b2):
    y, log_slope = functional.elf(x * 1.5, w1, b1, w2, b2)
    back = functional.elf_inverse(y + 0.1, w1, b1, w2, b2)
    return (y.square() - log_slope + back.sin()).sum() + functional.lipschitz(w1, b1, w2).sum()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["native", pytest.param("reference", marks=pytest.mark.slow)])
def test_compiles_into_one_graph(backend, arguments):
    torch._dynamo.reset()
    with kernels.backend(backend):
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=False)
        expected, found = loss(*arguments), compiled(*arguments)
        torch.testing.assert_close(found, expected)
        for a, b in zip(torch.autograd.grad(found, arguments), torch.autograd.grad(expected, arguments), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["elf", "elf_inverse", "lipschitz"])
def test_non_finite_error_crosses_the_operator_boundary(name, arguments):
    """Compiled code raises the same class with the same message as eager code, not a wrapper of torch."""
    torch._dynamo.reset()
    function = getattr(functional, name)
    given = [t.detach() for t in (arguments[1:4] if name == "lipschitz" else arguments)]
    given[-1].view(-1)[2] = torch.nan
    message = f"^{'w2' if name == 'lipschitz' else 'b2'} must be finite, got 1 of {given[-1].numel()} values"
    with kernels.backend("native"):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=False)
        for call in (function, compiled):
            with pytest.raises(kernels.NonFiniteError, match=message) as raised:
                call(*given)
            assert type(raised.value) is kernels.NonFiniteError


def test_compiles_with_inductor_and_any_batch_size(generator):
    torch._dynamo.reset()
    compiled = torch.compile(lambda *t: functional.elf(*t)[0].sum(), fullgraph=True, dynamic=True)
    for count in (4, 9, 30):
        weights = testing.make_networks("ordinary", count, 7, torch.float32, generator)
        x, shift = torch.randn(2, count, generator=generator)
        torch.testing.assert_close(compiled(x, *weights, shift), functional.elf(x, *weights, shift)[0].sum())


def test_exports(arguments):
    class Layer(torch.nn.Module):
        def forward(self, x, w1, b1, w2, b2):
            y, log_slope = functional.elf(x, w1, b1, w2, b2)
            return functional.elf_inverse(y, w1, b1, w2, b2), log_slope

    plain = tuple(t.detach() for t in arguments)
    exported = torch.export.export(Layer(), plain, strict=True)
    names = {str(node.target) for node in exported.graph.nodes}
    assert {"elflow.elf.default", "elflow.elf_inverse.default"} <= names
    torch.testing.assert_close(exported.module()(*plain), Layer()(*plain))


@pytest.mark.slow
def test_operators_pass_the_checks_of_torch(arguments):
    x, w1, b1, w2, shift = arguments
    torch.library.opcheck(torch.ops.elflow.lipschitz.default, (w1, b1, w2))
    for operator in (torch.ops.elflow.elf.default, torch.ops.elflow.elf_inverse.default):
        torch.library.opcheck(operator, (x.detach()[:, None].requires_grad_(), w1, b1, w2, shift, 0.9))


@pytest.mark.parametrize("shape", [(3000, 1, 33), (3, 5000, 16), (1, 100, 700)])
def test_same_bits_on_any_number_of_threads(shape, generator):
    """Networks with one point, few networks with many points, one large network: results and gradients."""
    n, m, units = shape
    weights = [
        w[:, None].requires_grad_() for w in testing.make_networks("ordinary", n, units, torch.float32, generator)
    ]
    x = torch.randn(n, m, generator=generator, requires_grad=True)
    shift = torch.randn(n, 1, generator=generator, requires_grad=True)
    before = torch.get_num_threads()

    def run(threads):
        torch.set_num_threads(threads)
        y, log_slope = functional.elf(x, *weights, shift)
        back = functional.elf_inverse(x, *weights, shift)
        # The gradients of the outputs are given, because sums of torch depend on the number of threads.
        grads = torch.autograd.grad((y, log_slope, back), (x, *weights, shift), (x, y, back))
        return [y, log_slope, back, *grads]

    try:
        alone = run(1)
        for threads in (2, 3, 7):
            for a, b in zip(alone, run(threads), strict=True):
                assert torch.equal(a, b)
    finally:
        torch.set_num_threads(before)


def test_shares_the_threads_of_torch():
    assert native.extension.thread_pool() == "torch"


def test_releases_the_interpreter(generator):
    """Other Python threads keep running during a call of the kernel."""
    weights = testing.make_networks("ordinary", 20000, 128, torch.float32, generator)
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(1e-4)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    functional.lipschitz(*weights)
    end = time.perf_counter()
    stop.set()
    thread.join()
    assert sum(start < t < end for t in ticks) >= 3


def test_may_be_called_from_many_threads(generator):
    weights = testing.make_networks("wide", 500, 20, torch.float64, generator)
    expected = functional.lipschitz(*weights)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: functional.lipschitz(*weights), range(64)):
            assert torch.equal(found, expected)


def test_function_transforms_go_through_the_reference(arguments):
    """vmap, grad and forward mode, which the native kernel does not support, give the right numbers."""
    x, w1, b1, w2, shift = (t.detach().double() for t in arguments)

    def f(x, w1):
        return functional.elf(x, w1, b1[0], w2[0], shift[0])[0]

    slope = functional.elf(x, w1, b1[0], w2[0], shift[0])[1].exp()
    torch.testing.assert_close(torch.vmap(f)(x, w1), f(x, w1))
    torch.testing.assert_close(torch.vmap(torch.func.grad(f))(x, w1), slope)
    torch.testing.assert_close(torch.func.jvp(lambda x: f(x, w1), (x,), (torch.ones_like(x),))[1], slope)
    torch.testing.assert_close(torch.func.jacrev(lambda x: f(x, w1))(x), slope.diag())
    torch.testing.assert_close(
        torch.vmap(lambda y: functional.elf_inverse(y, w1[0], b1[0], w2[0], shift[0]))(f(x, w1[0])), x
    )
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(f(dual, w1)).tangent, slope)
    with kernels.backend("native"), pytest.raises(ValueError, match=r"it does not support torch\.func"):
        torch.vmap(f)(x, w1)
