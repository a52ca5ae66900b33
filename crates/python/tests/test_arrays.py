"""What can be put, and what comes back: dtypes, layouts, buffers, DLPack, boxes."""

import array
import sys
from typing import Any

import forebay as fb
import numpy as np
import pytest
from forebay import _gpu, errors

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


@pytest.fixture
def pair():
    """A writer and a reader of one space in this process."""
    with fb.open("pair", "w", quota="64MiB", component="sim") as w, fb.open("pair", component="ana") as r:
        yield w, r


def there_and_back(pair: Any, value: Any, **box: Any) -> Any:
    w, r = pair
    assert w.begin_step() == fb.StepStatus.OK
    w.put("T", value)
    assert w.end_step() == fb.StepStatus.OK
    assert r.begin_step() == fb.StepStatus.OK
    got = r.get("T", **box)
    r.end_step()
    return got


@pytest.mark.parametrize("code", DTYPES)
def test_every_dtype_comes_back_bit_for_bit(pair, code):
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 2 if code == "?" else 256, 60 * np.dtype(code).itemsize, dtype="u1")
    a = bits.view(code).reshape(3, 4, 5)
    got = there_and_back(pair, a)
    assert got.dtype == a.dtype and got.shape == a.shape
    assert got.tobytes() == a.tobytes()


def test_bfloat16(pair):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: bfloat16 not tested")
    a = np.arange(10).astype(ml_dtypes.bfloat16)
    got = there_and_back(pair, a)
    assert got.dtype == a.dtype and (got == a).all()


@pytest.mark.parametrize(
    "shape", [(), (1,), (0,), (3, 0), (2, 3, 4, 5, 6, 2, 1, 2), (1,) * 16], ids=lambda s: f"{len(s)}d"
)
def test_shapes(pair, shape):
    a = np.arange(int(np.prod(shape)), dtype="f8").reshape(shape)
    got = there_and_back(pair, a)
    assert got.shape == shape and (got == a).all()


def test_too_many_dimensions(pair):
    with pytest.raises(errors.Error, match="dimensions"):
        there_and_back(pair, np.zeros((1,) * 17))
    pair[0].abort_step()


def test_layouts_are_copied_once_by_numpy(pair):
    a = np.arange(24.0).reshape(4, 6)
    for odd in (a[::2, ::3], a.T, np.asfortranarray(a), a[::-1], a.astype(">f8"), np.broadcast_to(a[0], (5, 6))):
        got = there_and_back(pair, odd)
        assert got.flags.c_contiguous and got.dtype == np.dtype("f8")
        assert (got == odd).all()


def test_buffers_numbers_and_lists(pair):
    assert there_and_back(pair, b"abc").tobytes() == b"abc"
    assert there_and_back(pair, bytearray(b"abcd")).dtype == np.dtype("u1")
    got = there_and_back(pair, array.array("d", [1, 2, 3]))
    assert got.dtype == np.dtype("f8") and got.tolist() == [1, 2, 3]
    assert there_and_back(pair, memoryview(np.arange(6).reshape(2, 3))).shape == (2, 3)
    assert there_and_back(pair, 2.5) == 2.5
    assert there_and_back(pair, np.float32(2.5)).dtype == np.dtype("f4")
    assert there_and_back(pair, [[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]


def test_text(pair):
    w, r = pair
    w.begin_step()
    w.put("note", "größer ✓")
    w.put("T", np.zeros(3))
    w.end_step()
    step = next(r.steps())
    assert step.text("note") == "größer ✓"
    assert step.get("note").tobytes().decode() == "größer ✓"
    assert step.variables["note"].kind == "str"
    with pytest.raises(errors.BufferMismatch):
        step.text("T")


class OnlyDLPack:
    """A CPU array that offers nothing but DLPack."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def __dlpack__(self, **options: Any) -> Any:
        return self.of.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.of.__dlpack_device__()


class OnGpu(OnlyDLPack):
    """Claims to lie on the third CUDA device."""

    def __dlpack_device__(self) -> Any:
        return (2, 3)

    def __dlpack__(self, **options: Any) -> Any:
        raise AssertionError("device memory was touched")


def test_dlpack(pair):
    a = np.arange(12.0).reshape(3, 4)
    assert (there_and_back(pair, OnlyDLPack(a)) == a).all()
    assert (there_and_back(pair, OnlyDLPack(a[:, ::2])) == a[:, ::2]).all()


@pytest.fixture
def no_driver(monkeypatch):
    monkeypatch.setattr(_gpu, "LIBRARY", "libcuda-none.so.1")
    monkeypatch.setattr(_gpu, "_driver", None)


@pytest.mark.parametrize("kind", [4, 7, 10, 14, 99])
def test_memory_of_other_devices_is_refused_by_name(pair, kind):
    class Other(OnGpu):
        def __dlpack_device__(self):
            return (kind, 3)

    with pytest.raises(errors.DeviceMemory, match=rf"Other .*device 3 .*{kind}"):
        there_and_back(pair, Other(np.zeros(3)))
    pair[0].abort_step()


def test_without_a_driver_device_memory_is_refused_by_name(pair, no_driver):
    with pytest.raises(errors.DeviceMemory, match=r"OnGpu .*CUDA device 3") as e:
        there_and_back(pair, OnGpu(np.zeros(3)))
    assert e.value.context["device"].startswith("CUDA device 3")
    assert "host" in e.value.hint
    pair[0].abort_step()


def test_a_cuda_array_without_dlpack_is_refused_too(pair, no_driver):
    class Cuda:
        __cuda_array_interface__ = {"shape": (1,), "typestr": "<f8", "data": (0, False), "version": 3}

    with pytest.raises(errors.DeviceMemory, match="CUDA"):
        there_and_back(pair, Cuda())
    pair[0].abort_step()


def test_what_cannot_be_kept(pair):
    w, _ = pair
    w.begin_step()
    for bad in (np.array([object()]), np.zeros(2, "M8[s]"), np.zeros(2, "i4,f8"), np.array(["a"]), {"a": 1}):
        with pytest.raises(errors.BufferMismatch):
            w.put("T", bad)
    with pytest.raises(errors.BufferMismatch, match="mask"):
        w.put("T", np.ma.masked_array([1.0, 2.0], [0, 1]))
    if np.dtype("g").itemsize == 16:
        with pytest.raises(errors.BufferMismatch, match="longdouble|float128"):
            w.put("T", np.zeros(2, "g"))
    w.abort_step()


def test_boxes_agree_with_numpy(pair):
    w, r = pair
    a = np.arange(4 * 5 * 6, dtype="i4").reshape(4, 5, 6)
    w.begin_step()
    for i in range(2):
        w.put("T", a[2 * i : 2 * i + 2], shape=a.shape, start=(2 * i, 0, 0))
    w.end_step()
    step = next(r.steps())
    s = np.s_
    boxes = [s[:], s[1:3], s[1:3, 2:4, 3:6], s[..., 2], s[3], s[-1, 1:-1], s[0, 0, 0], s[:, 4:2], s[..., -2:], s[1:99]]
    for key in boxes:
        keys = key if isinstance(key, tuple) else (key,)
        for got in (step.get("T", key), step[("T", *keys)]):
            assert got.shape == a[key].shape and (got == a[key]).all(), key
    assert (step["T"] == a).all()
    got = step.get("T", start=(1, 0, 2), count=(2, 5, 3))
    assert (got == a[1:3, :, 2:5]).all()
    for bad in (s[0:4:2], "x", s[1.5]):
        with pytest.raises((errors.Usage, TypeError)):
            step.get("T", bad)
    for outside in (s[9], s[0, 0, 0, 0]):
        with pytest.raises(errors.BoxOutsideShape):
            step.get("T", outside)
    with pytest.raises(errors.BoxOutsideShape):
        step.get("T", start=(3, 0, 0), count=(2, 5, 6))
    with pytest.raises(errors.Usage):
        step.get("T", start=(0, 0, 0))


def test_out(pair):
    w, r = pair
    a = np.arange(12.0).reshape(3, 4)
    w.begin_step()
    w.put("T", a)
    w.end_step()
    step = next(r.steps())
    out = np.zeros((3, 4))
    assert step.get("T", out=out) is out and (out == a).all()
    wide = np.zeros((3, 8))
    assert step.get("T", out=wide[:, ::2]).base is wide and (wide[:, ::2] == a).all() and not wide[:, 1::2].any()
    fixed = np.zeros((3, 4))
    fixed.flags.writeable = False
    for bad in (np.zeros((4, 3)), np.zeros((3, 4), "f4"), fixed, [1, 2], np.zeros((3, 8))[:, ::4]):
        with pytest.raises(errors.BufferMismatch):
            step.get("T", out=bad)
    assert not fixed.any()


def test_describes_variables(pair):
    w, r = pair
    w.begin_step()
    w.put("T", np.zeros((2, 4), "f4"), shape=(2, 8), start=(0, 0))
    w.put("T", np.zeros((2, 4), "f4"), shape=(2, 8), start=(0, 4))
    w.put("n", np.int64(3))
    w.end_step()
    step = next(r.steps())
    assert sorted(step) == ["T", "n"] and "T" in step and "x" not in step
    t = step.variables["T"]
    assert (t.name, t.kind, t.dtype, t.shape, t.nbytes) == ("T", "float32", np.dtype("f4"), (2, 8), 64)
    pieces = [(p.rank, p.start, p.count, p.nbytes) for p in t.pieces]
    assert pieces == [(0, (0, 0), (2, 4), 32), (0, (0, 4), (2, 4), 32)]
    assert "float32" in repr(t)
    with pytest.raises(KeyError) as e:
        step.get("x")
    assert isinstance(e.value, errors.UnknownVariable)


def test_ten_thousand_names(pair):
    w, r = pair
    names = [f"var/{i}" for i in range(10_000)]
    for s in range(2):
        w.begin_step()
        for i, name in enumerate(names):
            w.put(name, np.full(4, s * i))
        w.end_step()
        step = next(r.steps())
        assert all(step.get(name)[3] == s * i for i, name in enumerate(names))


def test_put_does_not_leak(pair):
    """References of arrays and names are released."""
    w, r = pair
    a = np.zeros(8)
    name = "".join(["le", "ak"])
    before = sys.getrefcount(a), sys.getrefcount(name), sys.getrefcount(np.dtype("f8"))
    for _ in range(50):
        w.begin_step()
        w.put(name, a)
        w.put("T", a[::2])
        w.end_step()
        r.begin_step()
        r.get(name)
        r.end_step()
    after = sys.getrefcount(a), sys.getrefcount(name), sys.getrefcount(np.dtype("f8"))
    assert after[:2] == before[:2] and abs(after[2] - before[2]) < 20
