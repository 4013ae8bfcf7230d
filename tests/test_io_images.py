"""Images in files of every supported format, refused files, and grids of images."""

import gzip
import os
import pickle
import shutil
import struct
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from elflow.io import archives
from elflow.io.grids import make_grid, write_grid
from elflow.io.images import read_images

rng = np.random.default_rng(0)


def pixels(*shape):
    return rng.integers(256, size=shape, dtype=np.uint8)


def check_images(images, x, labels=None):
    """Assert that images have the right types, and these values."""
    assert images.x.dtype == torch.uint8
    assert images.x.is_contiguous()
    assert images.x.tolist() == x.tolist()
    if labels is None:
        assert images.labels is None
    else:
        assert images.labels.dtype == torch.int64
        assert images.labels.tolist() == list(labels)


# MNIST's idx


def idx(a, kind=8):
    return bytes([0, 0, kind, a.ndim]) + struct.pack(f">{a.ndim}I", *a.shape) + a.tobytes()


@pytest.fixture(params=["", ".gz"])
def mnist(tmp_path, request):
    """MNIST's four files in a folder, and their content."""
    parts = {}
    for split, name in [("train", "train"), ("test", "t10k")]:
        x, y = pixels(7, 5, 4), pixels(7) % 10
        for file, a in [(f"{name}-images-idx3-ubyte", x), (f"{name}-labels-idx1-ubyte", y)]:
            data = gzip.compress(idx(a)) if request.param else idx(a)
            (tmp_path / (file + request.param)).write_bytes(data)
        parts[split] = (x[:, None], y)
    return tmp_path, parts, request.param


def test_idx(mnist):
    folder, parts, ending = mnist
    check_images(read_images(folder), *parts["train"])
    check_images(read_images(str(folder), split="train"), *parts["train"])
    check_images(read_images(folder, split="test"), *parts["test"])
    file = folder / f"t10k-images-idx3-ubyte{ending}"
    check_images(read_images(file), *parts["test"])
    check_images(read_images(file, split="test"), *parts["test"])
    with pytest.raises(ValueError, match=r"split must be 'test' for .*t10k-images-idx3-ubyte.*, got 'train'"):
        read_images(file, split="train")


def test_idx_without_labels_or_with_labels_packed_otherwise(mnist):
    folder, parts, ending = mnist
    labels = folder / f"train-labels-idx1-ubyte{ending}"
    data = labels.read_bytes()
    labels.unlink()
    check_images(read_images(folder), parts["train"][0])
    other = folder / f"train-labels-idx1-ubyte{'' if ending else '.gz'}"
    other.write_bytes(gzip.decompress(data) if ending else gzip.compress(data))
    check_images(read_images(folder), *parts["train"])


def test_idx_by_other_names(tmp_path):
    x, y = pixels(3, 4, 4), pixels(3)
    (tmp_path / "emnist-digits-train-images.idx3-ubyte").write_bytes(idx(x))
    (tmp_path / "emnist-digits-train-labels.idx1-ubyte").write_bytes(idx(y))
    (tmp_path / "mine.idx3").write_bytes(idx(x))
    check_images(read_images(tmp_path), x[:, None], y)
    check_images(read_images(tmp_path / "mine.idx3"), x[:, None])
    with pytest.raises(
        ValueError, match=r"split must be None for .*mine.idx3, which is not divided into training and test, got 'test'"
    ):
        read_images(tmp_path / "mine.idx3", split="test")
    with pytest.raises(
        ValueError, match=r"must hold t10k-images-idx3-ubyte or t10k-images-idx3-ubyte.gz for split 'test'"
    ):
        read_images(tmp_path, split="test")
    (tmp_path / "emnist-digits-train-images.idx3-ubyte.gz").write_bytes(b"")  # the unpacked file is there as well
    check_images(read_images(tmp_path), x[:, None], y)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(x))
    with pytest.raises(ValueError, match=r"holds several files for split 'train', 'emnist-.*', 'train-.*: pass one"):
        read_images(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"must begin with 00000803, as idx files of images do, got ''"),
        (idx(pixels(5)), r"must begin with 00000803, as idx files of images do, got '00000801'"),
        (idx(pixels(2, 3, 3), kind=13), r"must begin with .* got '00000d03'"),
        (idx(pixels(2, 3, 3))[:10], r"is damaged"),
        (idx(pixels(2, 3, 3))[:-1], r"is damaged: its uncompressed size must be 34 bytes, got 33"),
        (idx(pixels(2, 3, 3)) + b"x", r"is damaged: its uncompressed size must be 34 bytes, got 35"),
        (gzip.compress(idx(pixels(2, 3, 3)))[:-9], r"cannot be read: it is damaged or has an unsupported format"),
        (
            gzip.compress(idx(pixels(2, 3, 3)))[:25] + bytes(9),
            r"cannot be read: it is damaged or has an unsupported format",
        ),
        (idx(pixels(0, 3, 3)), r"must hold images with at least one pixel, got the shape \(0, 1, 3, 3\)"),
        (idx(pixels(2, 0, 3)), r"must hold images with at least one pixel, got the shape \(2, 1, 0, 3\)"),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else value,
)
def test_damaged_idx(tmp_path, data, message):
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(data)
    with pytest.raises(ValueError, match=f"train-images-idx3-ubyte {message}"):
        read_images(file)


def test_wrong_labels_of_idx(tmp_path):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(pixels(2, 3, 3)))
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(pixels(3)))
    with pytest.raises(ValueError, match=r"must have one label per image, got 2 images and 3 labels"):
        read_images(tmp_path)
    labels.write_bytes(idx(pixels(2, 3, 3)))
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte must begin with 00000801, as idx files of labels"):
        read_images(tmp_path)


# NumPy's


def last(x):
    return np.moveaxis(x, 1, -1)


@pytest.mark.parametrize("name", ["x", "X", "images", "data"])
@pytest.mark.parametrize("labels", ["y", "Y", "labels", "targets"])
def test_names_in_npz(tmp_path, name, labels):
    x, y, file = pixels(4, 3, 6, 5), np.arange(4, dtype=np.uint16), tmp_path / "data.npz"
    np.savez_compressed(file, **{name: x, labels: y, "other": np.zeros(3)})
    check_images(read_images(file), x, y)
    with pytest.raises(
        ValueError, match=r"split must be None for .*data.npz, which is not divided into training and test, got 'train'"
    ):
        read_images(file, split="train")


@pytest.mark.parametrize("spelled", ["{0}_{1}", "{1}_{0}"])
def test_splits_in_npz(tmp_path, spelled):
    arrays = {
        spelled.format(name, part): a
        for part, n in [("train", 4), ("val", 2), ("test", 3)]
        for name, a in [("images", pixels(n, 28, 28)), ("labels", rng.integers(10, size=(n, 1)))]
    }
    file = tmp_path / "DATA.NPZ"
    with file.open("wb") as out:
        np.savez(out, **arrays)
    for split in [None, "train", "test"]:
        x, y = (arrays[spelled.format(name, split or "train")] for name in ["images", "labels"])
        check_images(read_images(file, split), x[:, None], y[:, 0])


def test_arrays_without_usual_names(tmp_path):
    x, file = pixels(2, 64), tmp_path / "patches.npz"
    np.savez(file, train=x, test=x[::-1], val=x[:1])
    check_images(read_images(file), x.reshape(2, 1, 8, 8))
    check_images(read_images(file, "test"), x[::-1].reshape(2, 1, 8, 8))
    np.savez(file, x)
    check_images(read_images(file), x.reshape(2, 1, 8, 8))
    np.savez(file, a=x, b=x)
    with pytest.raises(
        ValueError, match=r"must have an array of images named 'x', 'X', 'images', 'data', got 'a', 'b'$"
    ):
        read_images(file)
    np.savez(file, x_test=x)
    with pytest.raises(ValueError, match=r"got 'x_test': pass split='test'"):
        read_images(file)
    with pytest.raises(ValueError, match=r"must have an array of images named 'x_train', .* got 'x_test'$"):
        read_images(file, "train")


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        (x := pixels(2, 3, 8, 8), x),
        (last(x), x),
        (x[:, 0], x[:, :1]),
        (last(x[:, :1]), x[:, :1]),
        (last(y := pixels(2, 4, 8, 9)), y),
        (y, y),
        (x.reshape(2, -1), x),  # the downsampled ImageNet's
        (x[:, 0].reshape(2, -1), x[:, :1]),
        (big := pixels(1, 3, 64, 64), big),
        (big.reshape(1, 12288), big),
        (tiny := pixels(2, 1, 4, 4), tiny),
        (last(tiny), tiny),
        (last(odd := pixels(2, 3, 4, 4)), odd),
        (odd, odd),
        (x.astype(np.int64), x),
        (x.astype(">i2"), x),
        (x > 99, (x > 99).astype(np.uint8)),
        (np.asfortranarray(x), x),
    ],
)
def test_shapes_and_dtypes(tmp_path, saved, expected):
    np.save(tmp_path / "x.npy", saved)
    check_images(read_images(tmp_path / "x.npy"), expected)


def test_labels_are_as_in_the_file(tmp_path):
    x, file = pixels(3, 3072), tmp_path / "val_data.npz"
    np.savez(file, data=x, labels=[1, 1000, 7], mean=x.mean(0))  # as the downsampled ImageNet's
    check_images(read_images(file), x.reshape(3, 3, 32, 32), [1, 1000, 7])


def test_a_part_is_not_a_class(tmp_path):
    for part in "train", "val":
        (tmp_path / part).mkdir()
        save(tmp_path / part / "a.png", pixels(4, 4))
    with pytest.raises(ValueError, match=r"must have folders train and test if it has train: pass .*train to read it"):
        read_images(tmp_path)
    assert read_images(tmp_path / "val").x.shape == (1, 1, 4, 4)


def test_photographs_stand_upright(tmp_path):
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.fromarray(pixels(8, 16, 3)).save(tmp_path / "a.jpg", exif=exif)
    assert read_images(tmp_path).x.shape == (1, 3, 16, 8)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.full((2, 4, 4), 0.5)}, r"x of .*data.npz must .* float64: save it as \(255 \* x\).round\(\).astype"),
        ({"x": np.full((2, 4, 4), 255.0, "f")}, r"got float32: save it as x.astype\('uint8'\) if all are whole"),
        ({"x": np.full((2, 4, 4), "a")}, r"must hold integers from 0 to 255, got <U1"),
        ({"x": np.full((2, 4, 4), 256)}, r"x of .* must hold integers from 0 to 255, got values from 256 to 256"),
        ({"x": np.full((2, 4, 4), -1)}, r"must hold integers from 0 to 255, got values from -1 to -1"),
        (
            {"x": pixels(5)},
            r"x of .* must have the shape \(N, H, W\), .* of square images; got the .* shape \(5,\)",
        ),
        ({"x": pixels(5, 10)}, r"of square images; got the .* shape \(5, 10\)"),
        ({"x": pixels(5, 8, 8, 2)}, r"with C in \(1, 3, 4\), .* got the .* shape \(5, 8, 8, 2\)"),
        ({"x": pixels(5, 8, 8, 8)}, r"got the .* shape \(5, 8, 8, 8\)"),
        ({"x": pixels(5, 3, 8, 4)}, r"got the ambiguous or unsupported shape \(5, 3, 8, 4\)"),
        ({"x": pixels(64, 64)}, r"got the ambiguous or unsupported shape \(64, 64\)"),
        ({"x": pixels(1, 1, 1, 1, 1)}, r"got the .* shape \(1, 1, 1, 1, 1\)"),
        ({"x": pixels(0, 4, 4)}, r"data.npz must hold images with at least one pixel, got the shape \(0, 1, 4, 4\)"),
        ({"x": np.empty((0, 4, 4))}, r"got float64"),
        ({"x": pixels(2, 4, 4), "y": [1, 2, 3]}, r"data.npz must have one label .* got 2 images and 3 labels"),
        ({"x": pixels(2, 4, 4), "y": [1.0, 2.0]}, r"y of .*data.npz must hold integers, one label .* got float64"),
        ({"x": pixels(2, 4, 4), "y": np.eye(2, dtype=int)}, r"\(N,\), .* \(2, 2\): for one-hot labels, save y.argmax"),
        ({"x": pixels(2, 4, 4), "y": 3}, r"y of .* must have the shape \(N,\), one label per image, got \(\)$"),
    ],
)
def test_wrong_arrays(tmp_path, arrays, message):
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        read_images(tmp_path / "data.npz")


def test_npz_of_anything_else(tmp_path):
    marker, file = tmp_path / "marker", tmp_path / "data.npz"
    np.savez(file, x=np.array([Evil(marker)], object))
    with pytest.raises(ValueError, match=r"data.npz cannot be read: .* \(Object arrays cannot be loaded"):
        read_images(file)
    file.write_bytes(pickle.dumps(Evil(marker)))
    with pytest.raises(ValueError, match=r"data.npz cannot be read: it is damaged or has an unsupported format"):
        read_images(file)
    assert not marker.exists()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x", "some text")
    with pytest.raises(ValueError, match=r"x of .*data.npz must hold integers from 0 to 255, got"):
        read_images(file)
    np.save(tmp_path / "data.npy", pixels(2, 4, 4))
    with pytest.raises(ValueError, match=r"split must be None for .*data.npy"):
        read_images(tmp_path / "data.npy", "test")


# CIFAR-10's batches


class Evil:
    """Runs a command when it is read as pickles usually are."""

    def __init__(self, marker):
        self.command = f"touch {marker}"

    def __reduce__(self):
        return os.system, (self.command,)


def python_2(x, labels):
    """A batch as Python 2 wrote it."""

    def text(data):
        return b"T" + struct.pack("<i", len(data)) + data

    def number(i):
        return b"J" + struct.pack("<i", i)

    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + number(0) + b"t" + text(b"b") + b"tR("
    array += number(1) + b"(" + number(len(x)) + number(x.shape[1]) + b"tcnumpy\ndtype\n("
    array += text(b"u1") + number(0) + number(1) + b"tR(" + number(3) + text(b"|") + b"NNN" + number(-1) * 2
    array += number(0) + b"tb\x89" + text(x.tobytes()) + b"tb"
    items = [text(b"batch_label"), text(b"training batch"), text(b"labels"), b"]("]
    items += [*map(number, labels), b"e", text(b"data"), array]
    return b"\x80\x02}(" + b"".join(items) + b"u."


def python_3(protocol):
    return lambda x, labels: pickle.dumps({b"data": x, b"labels": list(map(int, labels))}, protocol)


def binary(x, labels):
    return np.concatenate([labels[:, None], x], axis=1).tobytes()


NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


@pytest.fixture(params=[python_2, python_3(0), python_3(2), python_3(4), binary], ids=["2", "3-0", "3-2", "3-4", "bin"])
def cifar(tmp_path, request):
    """CIFAR-10 in a folder, and its content."""
    folder = tmp_path / "cifar-10-batches"
    folder.mkdir()
    (folder / "readme.html").write_text("hello")
    batches = [(pixels(3, 3072), np.arange(3, dtype=np.uint8) + i) for i in range(6)]
    for name, batch in zip(NAMES, batches, strict=True):
        (folder / (name + ".bin" * (request.param is binary))).write_bytes(request.param(*batch))
    x, y = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    x = x.reshape(18, 3, 32, 32)
    return folder, {"train": (x[:15], y[:15]), "test": (x[15:], y[15:])}


def packed(folder, path, rename=lambda name: f"cifar-10-batches/{name}"):
    with tarfile.open(path, "w:gz") as archive:
        for file in sorted(folder.iterdir(), reverse=True):
            archive.add(file, rename(file.name))
    return path


def test_cifar(cifar):
    folder, parts = cifar
    archive = packed(folder, folder.parent / "cifar-10.tar.gz")
    for path in folder, archive:
        check_images(read_images(path), *parts["train"])
        check_images(read_images(path, split="train"), *parts["train"])
        check_images(read_images(path, split="test"), *parts["test"])


def test_cifar_as_it_was_pickled_is_what_pickle_reads():
    x, y = pixels(3, 3072), np.arange(3)
    data = python_2(x, y).replace(b"numpy.core.", b"numpy._core.")  # the old name warns
    batch = pickle.loads(data, encoding="bytes")
    assert (batch[b"data"] == x).all()
    assert batch[b"labels"] == y.tolist()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("place", ["whole", "entry", "label", "key"])
def test_pickles_run_nothing(tmp_path, protocol, place):
    marker = tmp_path / "marker"
    evil = Evil(marker)
    batch = {b"data": pixels(3, 3072)}
    data = {"whole": evil, "entry": {"x": evil} | batch, "label": {b"labels": [0, 1, evil]} | batch, "key": {evil: 1}}
    content = pickle.dumps(data[place], protocol)
    pickle.loads(content)
    assert marker.exists()  # so it does run otherwise
    marker.unlink()
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(ValueError, match=r"test_batch of .* cannot be read: .* refers to \w+.system, which is refused"):
        read_images(tmp_path, split="test")
    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"\x80\x04\x8c\x05numpy\x8c\x12ndarray.__class__\x93.",  # through an allowed name
        b"\x80\x02cnumpy\nndarray\nN}X\x05\x00\x00\x00stateK\x07s\x86b.",  # changes a class
        b"c_codecs\nencode\nN}X\x07\x00\x00\x00__new__K\x07s\x86b.",
        b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x04\x00\x00\x00zliptR.",
        b"cnumpy.core.multiarray\n_reconstruct\n.",
        b"\x80\x02}.",
        b"\x80\x02].",
        b"\x80\x02K\x01.",
        b"Pname\n.",
        b".",
        b"",
        pickle.dumps({b"data": pixels(3, 3072), b"fine_labels": [0, 1, 2]}, 2),  # CIFAR-100
        pickle.dumps({b"data": pixels(3, 3072).tolist(), b"labels": [0, 1, 2]}, 2),
        pickle.dumps({b"data": np.asfortranarray(pixels(3, 3072)), b"labels": [0, 1, 2]}, 2),
        pickle.dumps({b"data": pixels(3, 3072).astype(float), b"labels": [0, 1, 2]}, 2),
        pickle.dumps({b"data": pixels(3, 3071), b"labels": [0, 1, 2]}, 2),
        pickle.dumps({b"data": pixels(3, 3072), b"labels": [0, 1]}, 2),
        pickle.dumps({b"data": pixels(3, 3072), b"labels": 1}, 2),
        pickle.dumps({b"data": pixels(3, 3072), b"labels": [0, 1, 10]}, 2),
        pickle.dumps({b"data": pixels(3, 3072), b"labels": [0, 1, None]}, 2),
    ],
    ids=lambda content: f"{len(content)} bytes",
)
def test_pickles_of_anything_else(tmp_path, content):
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(ValueError, match=r"test_batch of .* (cannot be read|must have)"):
        read_images(tmp_path, split="test")
    assert archives.Inert.state is None
    assert archives._EncodedBytes("é", "latin1") == b"\xe9"


def test_archives_stay_packed(cifar, tmp_path, monkeypatch):
    folder, parts = cifar
    place = tmp_path / "some" / "place"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    archive = packed(folder, place / "evil.tgz", lambda name: f"../../{name}")
    before = set(tmp_path.rglob("*"))
    check_images(read_images(archive), *parts["train"])
    assert set(tmp_path.rglob("*")) == before


def test_archives_with_a_wrong_checksum(cifar, tmp_path):
    archive = packed(cifar[0], tmp_path / "damaged.tar.gz")
    content = archive.read_bytes()
    archive.write_bytes(content[:-8] + bytes(8))
    with pytest.raises(ValueError, match=r"damaged.tar.gz cannot be read: it is damaged .* \(CRC check failed"):
        read_images(archive)


def test_archives_without_what_is_wanted(cifar, tmp_path):
    folder, parts = cifar
    third = next(folder.glob("data_batch_3*"))
    third.unlink()
    for path in folder, packed(folder, tmp_path / "some.tar.gz"):
        with pytest.raises(ValueError, match=r"must hold CIFAR-10's 'data_batch_1.*, but lacks 'data_batch_3(.bin)?'$"):
            read_images(path)
        check_images(read_images(path, "test"), *parts["test"])
    third.symlink_to(next(folder.glob("data_batch_2*")))
    with pytest.raises(ValueError, match=r"but lacks 'data_batch_3(.bin)?'$"):
        read_images(packed(folder, tmp_path / "link.tar.gz"))
    shutil.rmtree(folder)
    folder.mkdir()
    with pytest.raises(ValueError, match=r"none.tar.gz must hold CIFAR-10's .* but lacks 'data_batch_1', .*_5'$"):
        read_images(packed(folder, tmp_path / "none.tar.gz"))


def test_damaged_binary_batches(tmp_path):
    file = tmp_path / "test_batch.bin"
    for size, label in [(0, 0), (3072, 0), (3074, 0), (3073, 10)]:
        file.write_bytes(bytes([label]) * size)
        message = (
            "must have labels from 0 to 9, got 10" if label else "is damaged: its size must be a multiple of 3073 bytes"
        )
        with pytest.raises(ValueError, match=rf"test_batch.bin of .* {message}"):
            read_images(tmp_path, "test")


# Pictures


def save(path, a, mode=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(a)
    (picture.convert(mode) if mode else picture).save(path, **options)


@pytest.mark.parametrize("name", ["a.png", "a.BMP", "a.webp", "a.gif", "a.jpg", "a.Jpeg"])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures(tmp_path, name, channels):
    plain = np.linspace(0, 255, 12 * 10 * channels).astype(np.uint8).reshape(12, 10, channels)
    a = plain[..., 0] if channels == 1 else plain
    save(tmp_path / name, a, **({"lossless": True} if name.endswith("webp") else {}))
    read = read_images(tmp_path)
    expected = torch.from_numpy(np.moveaxis(plain, 2, 0)[None])
    if name.endswith(("webp", "gif")):
        expected = expected.expand(1, 3, 12, 10)  # they know no grey
    assert read.x.shape == expected.shape
    lossy = name.lower().endswith(("jpg", "jpeg")) or (name.endswith("gif") and channels == 3)
    assert (read.x.int() - expected).abs().max() <= (40 if lossy else 0)
    assert read.labels is None


def test_classes_and_splits(tmp_path):
    parts = {}
    for split in "train", "test":
        x = pixels(5, 6, 7, 3)
        parts[split] = np.moveaxis(x, 3, 1)
        for name, a in zip(["cat/1.png", "cat/10.png", "cat/2.bmp", "dog/0.png", "eel/0.png"], x, strict=True):
            save(tmp_path / split / name, a)
    for hidden in ".DS_Store", "cat/._1.png", "cat/notes.txt":
        (tmp_path / "train" / hidden).write_bytes(b"not a picture")
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / "val").mkdir()
    labels = [0, 0, 0, 1, 2]
    check_images(read_images(tmp_path), parts["train"], labels)
    check_images(read_images(tmp_path, "train"), parts["train"], labels)
    check_images(read_images(tmp_path, "test"), parts["test"], labels)
    check_images(read_images(tmp_path / "test"), parts["test"], labels)
    check_images(read_images(tmp_path / "test" / "cat"), parts["test"][:3])
    with pytest.raises(
        ValueError, match=r"split must be None for .*cat, which is not divided into training and test, got 'test'"
    ):
        read_images(tmp_path / "test" / "cat", "test")


def test_modes(tmp_path):
    grey, rgb = pixels(6, 6), pixels(6, 6, 3)
    colours = Image.fromarray(rgb).quantize(8)
    with_transparency = tmp_path / "rgb" / "transparent.png"
    save(tmp_path / "rgb" / "alpha.png", np.dstack([rgb, grey]))
    save(tmp_path / "rgb" / "cmyk.jpg", rgb, "CMYK")
    colours.save(tmp_path / "rgb" / "palette.png")
    colours.save(with_transparency, transparency=bytes(range(8)))
    read = read_images(tmp_path / "rgb").x
    assert read.shape == (4, 3, 6, 6)
    assert read[0].tolist() == np.moveaxis(rgb, 2, 0).tolist()
    assert read[2].tolist() == read[3].tolist() == np.moveaxis(np.asarray(colours.convert("RGB")), 2, 0).tolist()
    save(tmp_path / "grey" / "16 bits.png", grey.astype(np.uint16) * 256 + 255 - grey)
    save(tmp_path / "grey" / "alpha.png", np.dstack([grey, grey // 2]))
    save(tmp_path / "grey" / "bits.png", grey > 99)
    save(tmp_path / "grey" / "plain.png", grey)
    check_images(read_images(tmp_path / "grey"), np.stack([grey, grey, (grey > 99) * np.uint8(255), grey])[:, None])


def test_first_picture_of_an_animation(tmp_path):
    frames = [Image.fromarray(np.full((4, 4), value, np.uint8)) for value in (10, 200)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    check_images(read_images(tmp_path), np.full((1, 3, 4, 4), 10))


def test_pictures_that_differ(tmp_path):
    save(tmp_path / "a.png", pixels(6, 7, 3))
    save(tmp_path / "b.png", pixels(6, 7, 3))
    save(tmp_path / "c.png", pixels(5, 7, 3))
    reason = r"c.png must be 6 pixels high and 7 wide, like .*a.png, got 5 and 7: pass size"
    with pytest.raises(ValueError, match=reason):
        read_images(tmp_path)
    assert read_images(tmp_path, size=(4, 3)).x.shape == (3, 3, 4, 3)
    save(tmp_path / "b.png", pixels(6, 7))
    with pytest.raises(ValueError, match=r"b.png must have the mode RGB, like .*a.png, got L: convert one"):
        read_images(tmp_path, size=[6, 7])


def test_size(tmp_path):
    flat = np.full((3, 6, 5), 77, np.uint8)
    for i, a in enumerate(flat):
        save(tmp_path / "pictures" / f"{i}.png", a)
    np.save(tmp_path / "x.npy", np.stack([flat, flat], axis=1)[:, [0, 1, 0]])
    check_images(read_images(tmp_path / "pictures", size=(8, 2)), np.full((3, 1, 8, 2), 77))
    check_images(read_images(tmp_path / "x.npy", size=torch.Size([8, 2])), np.full((3, 3, 8, 2), 77))
    few = pixels(2, 9, 9) % 17
    np.save(tmp_path / "x.npy", few)
    check_images(read_images(tmp_path / "x.npy", size=(9, 9)), few[:, None])
    assert read_images(tmp_path / "x.npy", size=(14, 5)).x.max() <= few.max()
    save(tmp_path / "one" / "a.png", few[0])
    check_images(read_images(tmp_path / "one", size=(5, 6)), read_images(tmp_path / "x.npy", size=(5, 6)).x[:1])


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        (8, TypeError, "size must be a sequence of integers, got 8"),
        ("88", TypeError, "size must be a sequence of integers, got '88'"),
        ((8.0, 8), TypeError, "size must be an integer, got 8.0"),
        ((8, 0), ValueError, "size must be at least 1, got 0"),
        ((8, 8, 3), ValueError, r"size must be the height and the width, got \[8, 8, 3\]"),
    ],
)
def test_wrong_sizes(tmp_path, size, error, message):
    with pytest.raises(error, match=message):
        read_images(tmp_path, size=size)


def test_folders_of_nothing_and_of_both(tmp_path):
    with pytest.raises(
        ValueError, match=r"holds no images in a supported format; supported: idx files .*, .npz, .* folders of image"
    ):
        read_images(tmp_path)
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "fake.png").mkdir()
    with pytest.raises(ValueError, match=r"fake.png must hold the image files of a class \(.png, .*\), got none"):
        read_images(tmp_path)
    save(tmp_path / "fake.png" / "a.png", pixels(4, 4))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty must hold the image files of a class"):
        read_images(tmp_path)
    save(tmp_path / "b.png", pixels(4, 4))
    with pytest.raises(
        ValueError, match=r"must hold either image files or one folder per class, got b.png and fake.png"
    ):
        read_images(tmp_path)


@pytest.mark.parametrize("name", ["b.png", "b.jpg", "b.gif", "b.webp", "b.bmp"])
def test_damaged_pictures(tmp_path, name):
    save(tmp_path / name, pixels(40, 40, 3))
    whole = (tmp_path / name).read_bytes()
    save(tmp_path / "a.png", pixels(40, 40, 3))
    for content in b"", b"text", whole[:20], whole[: len(whole) // 2], bytes(20) + whole[20:]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name} cannot be read: it is damaged or has an unsupported format"):
            read_images(tmp_path)


def test_pictures_are_of_no_other_format(tmp_path):
    Image.fromarray(pixels(4, 4)).save(tmp_path / "a.png", format="TIFF")
    with pytest.raises(ValueError, match=r"a.png cannot be read"):
        read_images(tmp_path)


# Anything else


def test_paths(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"path must be a file or a folder that exists, got .*nowhere"):
        read_images(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"split must be one of \['train', 'test'\], got 't10k'"):
        read_images(tmp_path, split="t10k")
    for name in "a.zip", "a.csv", "a.gz", "a", "a.png":
        (tmp_path / name).write_bytes(b"something")
        with pytest.raises(
            ValueError, match=rf"{name} has an unsupported format; supported: idx .* \.npz, .* CIFAR-10"
        ):
            read_images(tmp_path / name)


def test_files_that_end_too_early(tmp_path):
    x, batches = pixels(6, 3, 32, 32), tmp_path / "batches"
    batches.mkdir()
    for name in NAMES[:5]:
        (batches / name).write_bytes(python_2(x.reshape(6, -1), [0] * 6))
    packed(batches, tmp_path / "a.tar.gz")
    np.save(tmp_path / "a.npy", x)
    np.savez(tmp_path / "a.npz", x=x)
    np.savez_compressed(tmp_path / "b.npz", x=x)
    (tmp_path / "a-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(x[:, 0])))
    for file in tmp_path.glob("*.*"):
        assert len(read_images(file).x) in (6, 30)
        content = file.read_bytes()
        for part in np.linspace(0, 0.95, 30):
            file.write_bytes(content[: int(part * len(content))])
            with pytest.raises(ValueError, match=file.name):
                read_images(file)


# Grids


def test_grid_places_each_image():
    x = np.arange(5, dtype=np.uint8).repeat(24 * 30).reshape(5, 1, 24, 30) * 10
    g = make_grid(torch.from_numpy(x), columns=2, gap=3)
    assert g.dtype == np.uint8
    assert g.shape == (3 * 24 + 2 * 3, 2 * 30 + 3)
    for i in range(5):
        top, left = i // 2 * 27, i % 2 * 33
        assert (g[top : top + 24, left : left + 30] == 10 * i).all()
    assert (g[24:27] == 255).all()
    assert (g[:, 30:33] == 255).all()
    assert (g[54:, 33:] == 255).all()  # where there is no image


def test_grid_of_colours_is_as_they_are():
    x = pixels(6, 3, 20, 25)
    g = make_grid(x, columns=3, gap=0)
    assert g.shape == (40, 75, 3)
    assert (g[20:, 25:50] == np.moveaxis(x[4], 0, 2)).all()
    assert (make_grid(x[:1]) == np.moveaxis(x[0], 0, 2)).all()


@pytest.mark.parametrize(("side", "factor"), [(1, 32), (4, 8), (8, 4), (16, 2), (19, 2), (20, 1), (28, 1)])
def test_small_images_are_enlarged(side, factor):
    x = pixels(1, 1, side, side)
    assert (make_grid(x) == x[0, 0].repeat(factor, 0).repeat(factor, 1)).all()


def test_grids_are_nearly_square():
    shapes = {n: make_grid(np.zeros((n, 1, 20, 20), np.uint8), gap=0).shape for n in (1, 2, 3, 4, 9, 10, 16, 17, 100)}
    in_images = {n: (height // 20, width // 20) for n, (height, width) in shapes.items()}
    square = {1: (1, 1), 2: (1, 2), 3: (2, 2), 4: (2, 2), 9: (3, 3), 10: (3, 4), 16: (4, 4), 17: (4, 5), 100: (10, 10)}
    assert in_images == square
    assert make_grid(np.zeros((9, 1, 20, 180), np.uint8), gap=0).shape == (180, 180)
    assert make_grid(np.zeros((2, 1, 20, 20), np.uint8), columns=9, gap=0).shape == (20, 40)


@pytest.mark.parametrize("levels", [2, 17, 32, 256])
def test_levels_reach_white(levels):
    x = torch.arange(levels).reshape(1, 1, 1, levels).expand(1, 1, 20, levels)
    shown = make_grid(x, levels=levels).max(0)
    shown = shown[:: len(shown) // levels]
    assert shown.tolist() == [round(255 * i / (levels - 1)) for i in range(levels)]


@pytest.mark.parametrize(
    ("images", "options", "error", "message"),
    [
        ([[1]], {}, TypeError, "images must be a torch.Tensor or a NumPy array, got list"),
        (torch.rand(2, 1, 4, 4), {}, TypeError, r"images must be integers from 0 to 255, got torch.float32"),
        (pixels(4, 4), {}, ValueError, r"images must have the shape \(N, 1, H, W\) or .* got \(4, 4\)"),
        (pixels(2, 4, 4, 4), {}, ValueError, r"got \(2, 4, 4, 4\)"),
        (pixels(0, 1, 4, 4), {}, ValueError, r"not be empty, got \(0, 1, 4, 4\)"),
        (np.full((1, 1, 4, 4), 17), {"levels": 17}, ValueError, "levels - 1 = 16, got values from 17"),
        (np.full((1, 1, 4, 4), -1), {}, ValueError, "got values from -1 to -1"),
        (pixels(2, 1, 4, 4), {"levels": 1}, ValueError, "levels must be at least 2, got 1"),
        (pixels(2, 1, 4, 4), {"columns": 0}, ValueError, "columns must be at least 1, got 0"),
        (pixels(2, 1, 4, 4), {"gap": -1}, ValueError, "gap must be at least 0, got -1"),
    ],
)
def test_wrong_images_for_a_grid(images, options, error, message):
    with pytest.raises(error, match=message):
        make_grid(images, **options)


@pytest.mark.parametrize("channels", [1, 3])
def test_write_grid(tmp_path, channels):
    x, file = torch.from_numpy(pixels(7, channels, 9, 9)) % 17, tmp_path / "samples.PNG"
    write_grid(x, file, columns=3, levels=17)
    with Image.open(file) as picture:
        assert picture.format == "PNG"
        assert np.array_equal(np.asarray(picture), make_grid(x, columns=3, levels=17))
    write_grid(x[:1], str(file), levels=17)  # which replaces it
    assert read_images(tmp_path).x.shape == (1, channels, 36, 36)
    assert os.listdir(tmp_path) == ["samples.PNG"]


def test_write_grid_elsewhere(tmp_path):
    x = pixels(2, 1, 9, 9)
    for name in "samples.jpg", "samples", "samples.png.gz":
        with pytest.raises(ValueError, match=r"path must end in .png, got .*samples"):
            write_grid(x, tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"path must be in an existing folder, got .*nowhere"):
        write_grid(x, tmp_path / "nowhere" / "a.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(IsADirectoryError, match=r"path must be a file, got the folder .*folder.png"):
        write_grid(x, tmp_path / "folder.png")
    (tmp_path / "folder.png").rmdir()
    with pytest.raises(ValueError, match="got values from"):
        write_grid(np.full((1, 1, 4, 4), 17), tmp_path / "a.png", levels=3)
    assert not os.listdir(tmp_path)
