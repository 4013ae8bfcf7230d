"""Image flows: masks, round trips, presets, probabilities that sum to one, files and errors."""

import copy
import itertools
import json
import math

import numpy as np
import pytest
import safetensors.torch
import torch
from zuko.transforms import PermutationTransform

import elflow
from elflow.activations import RELU
from elflow.flows.multiscale import MultiscaleELF
from elflow.flows.presets import PRESETS, SIZES, preset
from elflow.nn import ActNorm, ImageHypernetwork, MaskedConvolution, RowNetwork
from elflow.nn.convolution import MAX_INPUT
from elflow.transforms import PARAMETRIZATIONS, AutoregressiveTransform, RasterTransform, invert

TINY = {"transforms": 2, "units": 6, "channels": 12, "blocks": 1}


def perturb(module, scale=0.03):
    """Move parameters away from their initial values, and put the module into evaluation mode."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(scale * torch.randn_like(p))
    for norm in module.modules():
        if isinstance(norm, ActNorm):
            norm.initialized.fill_(True)
    return module.eval()


def find_dependence(hyper, context=None):
    """Find the coordinates that each coordinate's network depends on, by autograd at random points."""
    size = math.prod(hyper.shape)
    seen = torch.zeros(size, size, dtype=torch.bool)
    for _ in range(4):
        x = torch.randn(size, dtype=torch.double)
        jacobian = torch.autograd.functional.jacobian(lambda x: hyper(x[None], context)[0].abs().sum(-1), x)
        seen |= jacobian != 0
    return seen


# Masks of the hypernetwork


@pytest.mark.parametrize("shape", [(1, 6, 5), (2, 5, 6), (3, 4, 4), (5, 3, 3)], ids=str)
@pytest.mark.parametrize("blocks", [1, 2])
def test_a_network_sees_all_before_it_in_its_receptive_field_and_nothing_else(shape, blocks):
    depth, _, width = shape
    seen = find_dependence(perturb(ImageHypernetwork(shape, 0, 4, 12, blocks).double(), 0.5))
    reach = 2 * blocks + 1
    for out, source in itertools.product(range(len(seen)), repeat=2):
        up = out // depth // width - source // depth // width
        left = out // depth % width - source // depth % width
        # Each convolution goes one row up and at most one column aside, or one column to the left.
        elsewhere = 0 <= up <= reach and (-up if up else 1) <= left <= reach
        assert seen[out, source] == (source < out if up == left == 0 else elsewhere), (up, left)


@pytest.mark.parametrize("shape", [(1, 6, 5), (3, 4, 3)], ids=str)
@pytest.mark.parametrize("blocks", [1, 2])
def test_with_attention_a_network_sees_all_before_it_and_nothing_else(shape, blocks):
    seen = find_dependence(perturb(ImageHypernetwork(shape, 0, 4, 12, blocks, attention=2).double(), 0.5))
    assert torch.equal(seen, torch.ones_like(seen).tril(-1))


def test_attention_does_not_change_an_untrained_network():
    plain, hyper = (ImageHypernetwork((2, 4, 4), 0, 4, 6, 1, attention=heads) for heads in (0, 3))
    hyper.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(5, 32)
    assert torch.equal(hyper(x, None), plain(x, None))
    hyper(x, None).sum().backward()
    assert hyper.attention.out.weight.grad.abs().max() > 0


@pytest.mark.parametrize("attention", [0, 2])
def test_nothing_that_happens_to_the_weights_lets_the_future_in(attention):
    hyper = ImageHypernetwork((3, 4, 4), 0, 4, 6, 1, attention=attention).double()
    before = find_dependence(perturb(hyper, 0.5))
    optimizer = torch.optim.Adam(hyper.parameters(), 0.1, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        hyper(torch.randn(5, 48, dtype=torch.double), None).square().sum().backward()
        optimizer.step()
    assert not (find_dependence(hyper) & ~before).any()
    assert not find_dependence(copy.deepcopy(hyper)).triu().any()


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
@pytest.mark.parametrize("context", [None, "vector", "image", "concatenated image"])
@pytest.mark.parametrize("attention", [0, 3])
def test_networks_row_by_row_are_those_of_the_whole_image(context, parametrization, attention):
    options = parametrization, context == "concatenated image", attention
    hyper = perturb(ImageHypernetwork((2, 9, 3), 3 if context else 0, 4, 6, 2, *options).double(), 0.5)
    x = 6 * torch.randn(5, 54, dtype=torch.double)  # a tenth is beyond MAX_INPUT
    c = None if context is None else torch.randn(5, 3 if context == "vector" else 81, dtype=torch.double)
    whole, rows = hyper(x, c), RowNetwork(hyper)
    above = rows.make_empty(5)
    for i, row in enumerate(x.split(6, dim=-1)):
        ready = rows.prepare(i, above, c)
        phi, state = rows.evaluate(row, ready, None, 0)
        torch.testing.assert_close(phi, whole[:, 6 * i : 6 * (i + 1)])
        for start in (1, 2):  # the right part alone, given an evaluation that was right to the left of it
            wrong = torch.cat([row[:, : 2 * start], torch.randn(5, 6 - 2 * start, dtype=torch.double)], dim=-1)
            _, before = rows.evaluate(wrong, ready, None, 0)
            phi, part = rows.evaluate(row[:, 2 * start :], ready, before, start)
            torch.testing.assert_close(phi, whole[:, 6 * i + 2 * start : 6 * (i + 1)])
            torch.testing.assert_close(part, state[:, start:])
        above = rows.append(above, state)


def test_an_unusual_pixel_does_not_make_others_more_unusual():
    torch.manual_seed(0)
    flow = perturb(MultiscaleELF((1, 8, 8), scales=3, transforms=2, units=4, channels=8, blocks=2).double(), 0.03)
    x = torch.randn(50, 64, dtype=torch.double)
    flow.initialize(x)
    odd, very_odd = x.clone(), x.clone()
    odd[:, 0], very_odd[:, 0] = 1e3, 1e6
    differs = (flow().transform(odd) - flow().transform(very_odd)).abs().amax(0) > 1e-9
    assert differs.sum() == 1  # the pixel itself
    hyper = ImageHypernetwork((1, 8, 8), 0, 4, 8, 2).double()
    torch.testing.assert_close(hyper(odd, None), hyper(odd.clamp(max=MAX_INPUT), None))


def test_all_networks_see_the_whole_context():
    hyper = perturb(ImageHypernetwork((2, 3, 3), 4, 4, 6, 1).double(), 0.5)
    x = torch.randn(1, 18, dtype=torch.double)
    vector = torch.randn(1, 4, dtype=torch.double)
    jacobian = torch.autograd.functional.jacobian(lambda c: hyper(x, c)[0].abs().sum(-1), vector)
    assert (jacobian != 0).all()
    same = vector.repeat(1, 9)  # an image that holds the vector in each pixel
    torch.testing.assert_close(hyper(x, same), hyper(x, vector))


def test_a_concatenated_context_is_seen_with_the_pixels_around():
    hyper = perturb(ImageHypernetwork((1, 5, 5), 2, 4, 6, 1, concatenate=True).double(), 0.5)
    x, image = torch.zeros(1, 25, dtype=torch.double), torch.rand(1, 50, dtype=torch.double)
    jacobian = torch.autograd.functional.jacobian(lambda c: hyper(x, c)[0].abs().sum(-1), image)
    seen = (jacobian != 0).reshape(5, 5, 5, 5, 2).all(-1)  # network of a pixel, then pixel of the context
    # The block's last convolution sees the row above and the pixel to the left; that of the context one pixel more.
    expected = torch.zeros(5, 5, dtype=torch.bool)
    expected[0:4, 0:5] = True
    expected[3, 4] = False
    assert torch.equal(seen[2, 2] | expected, expected)
    assert seen[2, 2, 1:4, 1:4].sum() == 8 + seen[2, 2, 3, 3]
    assert seen[2, 2, 3, 2]  # below: the context needs no mask


def test_a_masked_convolution_is_one_with_zeros():
    conv = perturb(MaskedConvolution(4, 6, groups=2, strict=True).double())
    weight = torch.zeros(6 * 2 * 3 * 4, dtype=torch.double)
    weight[conv.weight_index] = conv.weight.detach()
    kernel = torch.zeros(6, 4, 3, 3, dtype=torch.double)
    kernel[:, :, :2] = weight.view(6, 2, 3, 4).permute(0, 3, 1, 2)
    assert not kernel[:, :, 1, 2].any()
    assert not kernel[:3, 2:, 1, 1].any()
    assert kernel[3:, :2, 1, 1].all()
    assert not kernel[3:, 2:, 1, 1].any()
    x = torch.randn(2, 4, 5, 7, dtype=torch.double)
    torch.testing.assert_close(conv(x), torch.nn.functional.conv2d(x, kernel, conv.bias, padding=1))


# Flow over vectors


def test_squeezing_keeps_what_belongs_together():
    flow = MultiscaleELF((1, 4, 4), scales=2, transforms=1, units=4, channels=4, blocks=1)
    squeeze = next(t for t in flow.transform().transforms if isinstance(t.transform, PermutationTransform))
    image = torch.arange(16.0)
    kept, done = squeeze(image).split(8)
    assert kept.tolist() == [0, 5, 2, 7, 8, 13, 10, 15]  # of each 2x2 pixels the first diagonal, pixel after pixel
    assert done.tolist() == [1, 4, 3, 6, 9, 12, 11, 14]


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float64, 1e-8)], ids=str)
def test_round_trip_of_every_preset(name, dtype, tolerance):
    model = perturb(preset(name).build(units=4, channels=12, blocks=1, transforms=1)).to(dtype)
    z = torch.randn(2, model.flow.features, dtype=dtype)
    with torch.no_grad():
        x, info = model.flow.inverse(z, return_info=True)
        assert info.converged
        assert (model.flow.transform()(x) - z).abs().max() <= tolerance
        images = model.decode(z)
        assert images.dtype == torch.uint8
        assert (model.reconstruct(images) == images).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("size", SIZES)
def test_presets_state_their_number_of_parameters(name, size):
    chosen = preset(name, size)
    assert sum(p.numel() for p in chosen.build().parameters()) == chosen.parameters


@pytest.mark.parametrize(
    ("name", "millions"), [("mnist-small", 1.9), ("cifar10-small", 1.9), ("cifar10-vardeq-4m", 4.1)]
)
def test_models_have_the_sizes_of_the_paper(name, millions):
    """The printed numbers with `size="gpu"`, which the printed widths do not give."""
    assert round(preset(name).parameters / 1e6, 1) == millions
    assert preset(name, "paper").parameters > 3 * preset(name).parameters


@pytest.mark.parametrize("method", ["exact", "sequential", "fixed-point"])
def test_all_ways_to_invert_agree(method):
    flow = perturb(MultiscaleELF((1, 4, 4), scales=2, bound=0.5, **TINY).double())
    z = torch.randn(3, 16, dtype=torch.double)
    x, info = flow.inverse(z, method=method, return_info=True)
    assert info.converged
    torch.testing.assert_close(flow.transform()(x), z, atol=1e-6, rtol=0)
    assert len(info.calls) == len(info.sweeps) == 4
    if method == "sequential":
        assert info.calls == (16, 16, 8, 8)  # one for each coordinate; nothing depends on the last
    if method == "exact":
        assert all(calls <= 2 + width for calls, width in zip(info.calls, (4, 4, 4, 4), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("context", "attention"), [(0, 0), (2, 4)])
def test_one_row_after_the_other_is_as_good_as_all_at_once(context, attention):
    flow = perturb(MultiscaleELF((1, 12, 4), context, scales=2, attention=attention, **TINY).double())
    z, c = torch.randn(20, 48, dtype=torch.double), torch.randn(20, context, dtype=torch.double) if context else None
    x, info = flow.inverse(z, c, return_info=True)
    assert info.converged
    whole = flow.transform(c)
    for head in whole.transforms:
        if isinstance(head.transform, RasterTransform):
            head.transform.__class__ = AutoregressiveTransform
    torch.testing.assert_close(x, invert(whole, z)[0], atol=1e-9, rtol=1e-9)
    alone = torch.cat([flow.inverse(z[[i]], None if c is None else c[[i]]) for i in range(20)])
    torch.testing.assert_close(x, alone, atol=1e-9, rtol=1e-9)


def test_the_progress_bar_reaches_the_end(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    model = perturb(elflow.ImageELF((1, 4, 4), levels=4, scales=2, **TINY))
    images, info = model.sample(3, verbose=True, return_info=True)
    assert images.shape == (3, 1, 4, 4)
    assert info.converged
    assert "100%" in capsys.readouterr().err


@pytest.mark.parametrize("attention", [0, 2])
def test_gradients_of_the_inverse_are_those_of_the_inverse_function(attention):
    flow = perturb(MultiscaleELF((1, 4, 4), 2, scales=2, attention=attention, **TINY).double())
    c, z = torch.randn(2, dtype=torch.double), torch.randn(16, dtype=torch.double)
    x = flow.inverse(z, c).detach()
    back = torch.autograd.functional.jacobian(lambda z: flow.inverse(z, c), z)
    forth = torch.autograd.functional.jacobian(lambda x: flow.transform(c)(x), x)
    torch.testing.assert_close(back @ forth, torch.eye(16, dtype=torch.double), atol=1e-6, rtol=0)
    by_context = torch.autograd.functional.jacobian(lambda c: flow.inverse(z, c), c)
    moves = torch.autograd.functional.jacobian(lambda c: flow.transform(c)(x), c)
    torch.testing.assert_close(forth @ by_context, -moves, atol=1e-6, rtol=1e-6)


# Probabilities of images


@pytest.mark.slow
@pytest.mark.parametrize("dequantization", ["uniform", "variational"])
@pytest.mark.parametrize(("height", "width", "scales"), [(2, 2, 2), (2, 2, 1), (3, 2, 1)])
def test_probabilities_of_all_binary_images_sum_to_one(height, width, scales, dequantization):
    torch.manual_seed(0)
    options = {**TINY, "channels": 4, "dequantization": dequantization, "warp": "zeros"}
    model = elflow.ImageELF((1, height, width), levels=2, scales=scales, **options)
    model.cells.initialize(torch.tensor([0, 0, 1]))
    perturb(model)
    every = torch.tensor(list(itertools.product((0, 1), repeat=height * width))).view(-1, 1, height, width)
    draws = 400
    with torch.no_grad():
        nats = model.log_prob(every.repeat(draws, 1, 1, 1))
    estimates = nats.double().exp().view(draws, -1).sum(-1)
    error = estimates.std() / math.sqrt(draws)
    assert error < 0.05
    assert abs(estimates.mean() - 1) < 4 * error


@pytest.mark.parametrize("dequantization", ["uniform", "variational"])
def test_bits_are_of_the_probability(dequantization):
    torch.manual_seed(0)
    model = perturb(elflow.ImageELF((1, 2, 2), levels=2, scales=1, dequantization=dequantization, **TINY))
    x = torch.randint(2, (3, 1, 2, 2))
    with torch.no_grad():
        nats = model.log_prob(x.repeat(2000, 1, 1, 1)).view(2000, 3).logsumexp(0) - math.log(2000)
    bits = model.bits_per_dim(x, n_draws=2000)
    torch.testing.assert_close(bits, -nats / (4 * math.log(2)), atol=0.05, rtol=0)
    assert (bits > 0).all()


def test_more_samples_make_the_bound_tighter():
    torch.manual_seed(0)
    model = perturb(elflow.ImageELF((1, 4, 4), levels=4, scales=1, **TINY), 0.3)
    x = torch.randint(4, (200, 1, 4, 4))
    one, few, many = (model.bits_per_dim(x, n_draws=k).mean() for k in (1, 8, 64))
    assert one > few > many


def test_uniform_images_take_as_many_bits_as_their_levels():
    """An untrained flow over cells that are all alike, with a base that makes u uniform, has no information."""
    cells = elflow.flows.levels.Levels(16, "none")
    x = torch.randint(16, (5, 9))
    u = torch.rand(5, 9, dtype=torch.double)
    y, log_volume = cells.dequantize(x, u, 1 - u)
    logistic = (torch.sigmoid(y) * torch.sigmoid(-y)).log().sum(-1)
    torch.testing.assert_close(logistic + log_volume, torch.full((5,), -9 * math.log(16), dtype=torch.double))
    assert (cells.quantize(y) == x).all()


def test_warp_of_zeros_is_the_mixture_of_the_paper():
    """F(v) = w min(v L, 1) + (1 - w) max(0, (v - 1/L) / (1 - 1/L)), before the logit."""
    cells = elflow.flows.levels.Levels(8, "zeros")
    cells.initialize(torch.tensor([0] * 6 + [3, 5]))
    w = float(cells.widths[0])
    assert w == pytest.approx(0.99 * 0.75 + 0.01 / 8)
    x, u = torch.randint(8, (1, 50)), torch.rand(1, 50, dtype=torch.double)
    v = (x + u) / 8
    mixture = w * (8 * v).clamp(max=1) + (1 - w) * ((v - 1 / 8) / (1 - 1 / 8)).clamp(min=0)
    torch.testing.assert_close(cells.dequantize(x, u, 1 - u)[0], mixture.logit())


@pytest.mark.slow
def test_it_learns_a_known_distribution():
    """Two kinds of images, and nothing else: one bit for 16 pixels, 1/16 of a bit each."""
    torch.manual_seed(0)
    kinds = torch.randint(2, (2, 1, 4, 4))
    model = elflow.ImageELF((1, 4, 4), levels=2, scales=2, transforms=2, units=8, channels=8, blocks=1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        loss = -model.log_prob(kinds[torch.randint(2, (64,))]).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    bits = model.eval().bits_per_dim(kinds, n_draws=64).mean()
    assert 1 / 16 - 0.01 < bits < 0.35
    images = model.sample(200)
    is_known = (images[:, None] == kinds).flatten(2).all(-1).any(-1)
    assert is_known.double().mean() > 0.3  # of 65,536 possible ones


# Contexts


def test_classes_and_vectors_change_the_density_and_are_the_same_to_it():
    by_class = perturb(elflow.ImageELF((1, 4, 4), levels=4, scales=1, classes=3, **TINY))
    by_vector = elflow.ImageELF((1, 4, 4), levels=4, scales=1, context=3, **TINY).eval()
    by_vector.load_state_dict(by_class.state_dict())
    x = torch.randint(4, (5, 1, 4, 4))
    scores = []
    for c in (0, torch.zeros(5, dtype=torch.long), torch.tensor(1)):
        torch.manual_seed(0)
        scores.append(by_class.log_prob(x, c))
    torch.manual_seed(0)
    vectors = by_vector.log_prob(x, torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(scores[0], scores[1])
    torch.testing.assert_close(scores[0], vectors)
    assert not torch.allclose(scores[0], scores[2])
    assert by_class.sample(4, 2).shape == (4, 1, 4, 4)
    assert isinstance(by_class(1), torch.distributions.Distribution)
    assert by_class(torch.tensor(2)).sample((2, 3)).shape == (2, 3, 1, 4, 4)
    assert by_class([0, 1, 2]).batch_shape == (3,)
    assert by_class([0, 1, 2]).sample((2,)).shape == (2, 3, 1, 4, 4)
    assert by_vector(torch.randn(5, 3)).sample().shape == (5, 1, 4, 4)
    with pytest.raises(TypeError, match=r"write \(3,\)"):
        by_class(0).sample(3)


# Files


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dequantization": "variational"},
        {"classes": np.int64(3), "warp": "histogram"},
        {"context": 2, "warp": "zeros", "bound": np.float32(0.9), "levels": np.int64(4)},
        {"activation": RELU},
        {"attention": np.int64(2), "dequantization": "variational"},
        {"parametrization": "weights", "dequantization": "variational", "noise_sizes": {"transforms": 1, "units": 3}},
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_save_and_load(options, dtype, tmp_path):
    model = elflow.ImageELF(**({"shape": (1, 4, 4), "levels": 4, "scales": 2, **TINY} | options)).to(dtype)
    c = 1 if model.classes else torch.tensor([0.5, 1.0], dtype=dtype) if model.context else None
    model.log_prob(torch.randint(4, (20, 1, 4, 4)), c)
    elflow.save(model, tmp_path / "model.elf")
    same = elflow.load(tmp_path / "model.elf")
    assert same.config == model.config
    x = torch.randint(4, (5, 1, 4, 4))
    scores = []
    for flow in (model.eval(), same):
        torch.manual_seed(0)
        scores.append(flow.log_prob(x, c))
    assert torch.equal(*scores)


@pytest.mark.parametrize(
    "change",
    [
        {"scales": 10**12},
        {"scales": 5000.5},
        {"shape": [1, 2**15, 2**15]},
        {"channels": 10**9},
        {"shape": "abc"},
        {"units": -1},
        {"attention": 5},
        {"parametrization": "none"},
        {"dequantization": "variational", "noise_sizes": {"channels": 10**9}},
        {"dequantization": "variational", "noise_sizes": {"depth": 2}},
    ],
    ids=str,
)
def test_hostile_files_are_refused_at_once(change, tmp_path):
    elflow.save(elflow.ImageELF((1, 4, 4), levels=4, scales=1, **TINY), tmp_path / "model.elf")
    with safetensors.safe_open(tmp_path / "model.elf", "pt") as file:
        header = file.metadata()
    config = json.loads(header["config"]) | change
    tensors = safetensors.torch.load_file(tmp_path / "model.elf")
    safetensors.torch.save_file(tensors, tmp_path / "model.elf", header | {"config": json.dumps(config)})
    with pytest.raises(ValueError, match="must be a model saved by elflow"):
        elflow.load(tmp_path / "model.elf")


# Initialisation and presets


def test_scoring_sets_nothing():
    model = elflow.ImageELF((1, 4, 4), levels=4, scales=1, warp="zeros", dequantization="variational", **TINY)
    model.bits_per_dim(torch.randint(4, (8, 1, 4, 4)))
    model.sample(2)
    assert not model.cells.initialized
    assert not any(norm.initialized for norm in model.modules() if isinstance(norm, ActNorm))
    model.log_prob(torch.randint(4, (8, 1, 4, 4)))
    assert model.cells.initialized
    assert all(norm.initialized for norm in model.modules() if isinstance(norm, ActNorm))


def test_images_in_order_of_their_class_are_no_worse_a_start():
    x = torch.cat([torch.full((1000, 1, 4, 4), value) for value in (0, 3)])
    model = elflow.ImageELF((1, 4, 4), levels=4, scales=1, **TINY)
    model.initialize(x)
    first = next(norm for norm in model.modules() if isinstance(norm, ActNorm))
    assert first.log_scale.exp().item() < 1  # as both values lie far apart


def test_changing_a_preset_does_not_change_the_next():
    preset("mnist").flow["units"] = 8
    assert preset("mnist").flow["units"] == 32


# Errors


@pytest.fixture(scope="module")
def small():
    return elflow.ImageELF((3, 4, 4), levels=16, scales=1, **TINY).eval()


IMAGES = torch.randint(16, (2, 3, 4, 4), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        (IMAGES.float(), TypeError, r"x must hold integers from 0 to 15, got torch.float32.*round\(\)"),
        (IMAGES > 3, TypeError, "torch.bool.*uint8"),
        (IMAGES.numpy().astype("float64"), TypeError, "float64"),
        ([[1, 2]], TypeError, "x must be a tensor or an array of integers, got list"),
        (IMAGES + 1, ValueError, "x must hold integers from 0 to 15, got . to 16.*levels"),
        (IMAGES - 1, ValueError, "got -1 to"),
        (IMAGES[0], ValueError, r"\(N, 3, 4, 4\).*got \(3, 4, 4\): make one image a batch of one"),
        (IMAGES.permute(0, 2, 3, 1), ValueError, r"got \(2, 4, 4, 3\): move the channels to the front"),
        (IMAGES[..., :3], ValueError, r"got \(2, 3, 4, 3\)"),
    ],
)
def test_wrong_images(small, x, error, text):
    for method in (small.log_prob, small.bits_per_dim, small.encode, small.reconstruct):
        with pytest.raises(error, match=text):
            method(x)


def test_missing_channel():
    model = elflow.ImageELF((1, 4, 4), levels=16, scales=1, **TINY)
    with pytest.raises(ValueError, match=r"got \(2, 4, 4\): add the channel with x\[:, None\]"):
        model.log_prob(IMAGES[:, 0])


def test_numpy_and_all_integer_types_are_welcome(small):
    for x in (IMAGES.numpy().astype("uint8"), IMAGES.to(torch.int32), IMAGES.to(torch.uint8)):
        assert small.log_prob(x).shape == (2,)
    for kind in ("uint16", "uint64", ">i4"):
        assert small.log_prob(IMAGES.numpy().astype(kind)).shape == (2,)
    frozen = IMAGES.numpy().copy()
    frozen.flags.writeable = False
    assert small.log_prob(frozen).shape == (2,)
    assert small.log_prob(IMAGES.to(torch.uint16)).shape == (2,)
    with pytest.raises(ValueError, match="from 0 to 15"):
        small.log_prob(torch.full((1, 3, 4, 4), 2**64 - 1, dtype=torch.uint64))


@pytest.mark.parametrize("dequantization", ["uniform", "variational"])
def test_no_images(dequantization):
    model = elflow.ImageELF((3, 4, 4), levels=16, scales=1, dequantization=dequantization, **TINY)
    assert model.log_prob(IMAGES[:0]).shape == (0,)
    assert model.bits_per_dim(IMAGES[:0], n_draws=3).shape == (0,)
    assert model.sample(0).shape == (0, 3, 4, 4)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"shape": (1, 28, 30)}, ValueError, "divisible by 4 for 3 scales, got 28 x 30: use scales=2, or pad or crop"),
        ({"shape": (1, 7, 7)}, ValueError, "use scales=1"),
        ({"shape": (28, 28, 1)}, ValueError, r"got \(28, 28, 1\): write \(1, 28, 28\)"),
        ({"shape": (28, 28)}, ValueError, r"shape must be \(channels, height, width\), got \(28, 28\)"),
        ({"shape": (3, 32, 32), "channels": 8}, ValueError, "channels must be at least 12"),
        ({"levels": 1}, ValueError, "levels must be at least 2"),
        ({"levels": 1000}, ValueError, "levels must be at most 256"),
        ({"dequantization": "gaussian"}, ValueError, "dequantization must be one of"),
        ({"warp": "cdf"}, ValueError, "warp must be one of"),
        ({"classes": 3, "context": 2}, ValueError, "classes and context cannot both"),
        ({"units": 0}, ValueError, "units must be at least 1"),
        ({"bound": 1.0}, ValueError, r"bound must be in \(0, 1\)"),
        ({"blocks": 1.5}, TypeError, "blocks must be an integer"),
        ({"parametrization": "units"}, ValueError, "parametrization must be one of"),
        ({"attention": 5}, ValueError, "attention must be 0 or a divisor of channels, 32, got 5"),
        (
            {"attention": 2, "shape": (1, 32, 32), "scales": 1},
            ValueError,
            "attention must be 0 unless a scale has at most",
        ),
        ({"attention": -1}, ValueError, "attention must be at least 0"),
        ({"attention": True}, TypeError, "attention must be an integer"),
        ({"noise_sizes": {"units": 0}}, ValueError, "units of noise_sizes must be at least 1"),
        ({"noise_sizes": {"scales": 1}}, ValueError, "noise_sizes must be a dictionary with some of"),
    ],
)
def test_wrong_options(options, error, text):
    with pytest.raises(error, match=text):
        elflow.ImageELF(**({"shape": (1, 8, 8)} | options))


def test_wrong_options_of_the_flow_inside():
    with pytest.raises(ValueError, match="divisible by 4 for 3 scales, got 8 x 10"):
        MultiscaleELF((1, 8, 10))
    with pytest.raises(ValueError, match="scales must be 1 if the context is an image, got 3"):
        MultiscaleELF((1, 8, 8), context=2, image=True)


@pytest.mark.parametrize(
    ("c", "error", "text"),
    [
        (3, ValueError, "c must be classes from 0 to 2, got 3"),
        (torch.tensor([0, -1]), ValueError, "got -1"),
        (None, ValueError, "c must be classes from 0 to 2, got None"),
        (0.5, TypeError, "integers from 0 to 2"),
        (torch.tensor([0, 1, 2]), ValueError, "one for each of 2 images"),
    ],
)
def test_wrong_classes(c, error, text):
    model = elflow.ImageELF((3, 4, 4), levels=16, scales=1, classes=3, **TINY)
    with pytest.raises(error, match=text):
        model.log_prob(IMAGES, c)


def test_wrong_contexts(small):
    with pytest.raises(ValueError, match="c must be None for a flow without classes and without context, got int"):
        small.log_prob(IMAGES, 1)
    model = elflow.ImageELF((3, 4, 4), levels=16, scales=1, context=2, **TINY)
    for c, text in [(None, "got None"), (torch.randn(2, 3), r"\(..., 2\)"), (torch.randn(3, 2), "each of 2 images")]:
        with pytest.raises(ValueError, match=text):
            model.log_prob(IMAGES, c)
    with pytest.raises(ValueError, match="finite"):
        model.log_prob(IMAGES, torch.tensor([0.0, torch.nan]))
