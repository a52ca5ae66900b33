"""Arrays on a GPU, against a stand-in for the CUDA driver whose device memory no processor can touch (``cuda/``)."""

import ctypes
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forebay as fb
import numpy as np
import pytest
from forebay import _gpu, errors

MIB = 1 << 20


class Driver:
    """The stand-in, as tests see it."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.stand_in_host.restype = ctypes.c_void_p
        self.library.stand_in_allocate.restype = ctypes.c_uint64

    def count(self, name: str) -> int:
        return ctypes.c_uint64.in_dll(self.library, f"stand_in_{name}").value

    def fail(self, name: str | None, status: int = 700) -> None:
        # Kept for as long as the library may compare it.
        self.failing = name and ctypes.create_string_buffer(name.encode())
        self.library.stand_in_fail(self.failing, status)

    def sleep(self, name: str, ms: int) -> None:
        self.sleeping = ctypes.create_string_buffer(name.encode())
        self.library.stand_in_sleep(self.sleeping, ms)

    def allocate(self, size: int, device: int = 0, context: int = 0) -> int:
        pointer = self.library.stand_in_allocate(ctypes.c_uint64(size), device, context)
        assert pointer, "the stand-in has no more memory"
        return int(pointer)

    def host(self, pointer: int, size: int) -> np.ndarray[Any, Any]:
        address = self.library.stand_in_host(ctypes.c_uint64(pointer))
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


class OnDevice:
    """An array in the stand-in's memory, laid out as the NumPy array that it is made from."""

    def __init__(self, driver: Driver, like: np.ndarray[Any, Any], device: int = 0, context: int = 0) -> None:
        base = like
        while isinstance(base.base, np.ndarray):
            base = base.base
        self.driver, self.dtype, self.shape, self.strides = driver, like.dtype, like.shape, like.strides
        self.device, self.size = device, base.nbytes
        self.memory = driver.allocate(max(base.nbytes, 1), device, context)
        driver.host(self.memory, base.nbytes)[:] = base.reshape(-1, order="A").view(np.uint8) if base.nbytes else 0
        self.pointer = self.memory + like.ctypes.data - base.ctypes.data

    def numpy(self) -> np.ndarray[Any, Any]:
        """What it holds."""
        flat = self.driver.host(self.memory, self.size)
        return np.ndarray(self.shape, self.dtype, flat, self.pointer - self.memory, self.strides).copy()

    def bytes(self) -> bytes:
        """All memory below it, with what lies between its elements."""
        return self.driver.host(self.memory, self.size).tobytes()


class Interface(OnDevice):
    """As Numba shows one."""

    stream: int | None = None
    is_read_only = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        is_c = np.empty(self.shape, self.dtype).strides == self.strides
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, self.is_read_only),
            "strides": None if is_c else self.strides,
            "version": 3,
            "stream": self.stream,
        }


CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class DLPack(OnDevice):
    """As torch and CuPy show one; also by DLPack before version 1."""

    is_versioned = True
    kind = 2
    flags = 0
    type: tuple[int, int, int] | None = None

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.kind, self.device)

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        assert stream == 1
        if not self.is_versioned and options:
            raise TypeError("max_version is not known")
        n = len(self.shape)
        code, bits, lanes = self.type or (CODES[self.dtype.kind], self.dtype.itemsize * 8, 1)
        self.extents = (ctypes.c_int64 * n)(*self.shape)
        self.steps = (ctypes.c_int64 * n)(*(s // self.dtype.itemsize for s in self.strides))
        tensor = _gpu._DLTensor(self.memory, 2, self.device, n, code, bits, lanes, self.extents, self.steps)
        tensor.byte_offset = self.pointer - self.memory
        make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        if self.is_versioned:
            self.managed: Any = _gpu._Versioned(1, 1, None, None, self.flags, tensor)
            self.label = ctypes.create_string_buffer(b"dltensor_versioned")
        else:
            self.managed = tensor
            self.label = ctypes.create_string_buffer(b"dltensor")
        new = make(("PyCapsule_New", ctypes.pythonapi))
        return new(ctypes.addressof(self.managed), ctypes.addressof(self.label), None)


class OldDLPack(DLPack):
    is_versioned = False


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in of the CUDA driver")
    path = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    source = Path(__file__).with_name("cuda") / "stand_in.c"
    subprocess.run([compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-o", path, source], check=True)
    return path


@pytest.fixture
def driver(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr(_gpu, "LIBRARY", str(library))
    monkeypatch.setattr(_gpu, "_driver", None)
    driver = Driver(library)
    driver.library.stand_in_reset()
    yield driver
    assert driver.library.stand_in_current() == 0, "the context of the caller is another one"


@pytest.fixture(params=["file", "direct"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[fb.Writer, fb.Reader]]:
    name = str(tmp_path / "gpu")
    with (
        fb.open(name, "w", quota="96MiB", tier=request.param) as writer,
        fb.open(name, timeout=5) as reader,
    ):
        yield writer, reader


def layouts() -> dict[str, np.ndarray[Any, Any]]:
    a = np.arange(4 * 6 * 10, dtype=np.float64).reshape(4, 6, 10)
    return {
        "C order": a,
        "Fortran order": np.asfortranarray(a),
        "permuted": a.transpose(1, 2, 0),
        "columns": a[:, :, 3],
        "inner part": a[1:3, 2:5, 1:9],
        "steps": a[::2, ::3, ::4],
        "backwards": a[::-1, :, ::-1],
        "a number": a[1, 2, 3:4].reshape(()),
        "empty": a[2:2],
        "extents of one": a[1:2, 3:4],
        "with ones between": a[:, None, :, None],
        "one row": a[0, 0],
    }


@pytest.mark.parametrize("make", [Interface, DLPack, OldDLPack])
@pytest.mark.parametrize("layout", layouts())
def test_what_is_put_is_read(driver, pair, make, layout):
    writer, reader = pair
    expected = layouts()[layout]
    step = next(iter(writer.steps(1)))
    step.put("T", make(driver, expected), attrs={"units": "K"}, dims=[f"d{n}" for n in range(expected.ndim)])
    writer.end_step()
    read = next(reader.steps())
    assert read.get("T").shape == expected.shape
    assert (read.get("T") == expected).all()
    assert read.variables["T"].attrs == {"units": "K"}
    assert read.variables["T"].dims == tuple(f"d{n}" for n in range(expected.ndim))


@pytest.mark.parametrize("make", [Interface, DLPack, OldDLPack])
@pytest.mark.parametrize("layout", layouts())
def test_what_is_got_into_it_lies_there_and_nowhere_else(driver, pair, make, layout):
    writer, reader = pair
    like = layouts()[layout]
    expected = np.random.default_rng(7).random(like.shape)
    next(iter(writer.steps(1))).put("T", expected)
    writer.end_step()
    # Beside it all memory is 255, and stays so.
    base = like
    while isinstance(base.base, np.ndarray):
        base = base.base
    base.reshape(-1, order="A").view(np.uint8)[:] = 255
    out = make(driver, like)
    step = next(reader.steps())
    assert step.get("T", out=out) is out
    assert (out.numpy() == expected).all()
    like[...] = expected
    assert out.bytes() == base.reshape(-1, order="A").tobytes()


def test_the_device_copies_from_and_to_pinned_memory_that_is_used_again(driver):
    data = np.arange(MIB, dtype=np.float32)
    before = driver.library.stand_in_pins()
    with fb.open("gpu", "w", quota="64MiB") as writer, fb.open("gpu", timeout=5) as reader:
        for turn in range(1, 6):
            writer.begin_step()
            writer.put("T", Interface(driver, data[:-turn]))
            writer.end_step()
            with next(reader.steps()) as step:
                out = DLPack(driver, np.zeros_like(data[:-turn]), device=1)
                step.get("T", out=out)
                assert (out.numpy() == data[:-turn]).all()
            driver.library.stand_in_reset()
        assert writer.stats()["bytes_copied"] == sum(data[:-turn].nbytes for turn in range(1, 6))
        writer.begin_step()
        writer.put("T", Interface(driver, data))
        assert (driver.count("from"), driver.count("pinned"), driver.count("copies")) == (data.nbytes, data.nbytes, 1)
        writer.end_step()
    assert driver.library.stand_in_pins() <= before + 2


def test_pinned_memory_that_is_kept_has_a_limit(driver, monkeypatch):
    monkeypatch.setattr(_gpu, "_STAGING_KEPT_BYTES", 3 * MIB)
    before = driver.library.stand_in_pins()
    held = [_gpu.to_host(Interface(driver, np.full(MIB, n, "u1"))) for n in range(8)]
    assert driver.library.stand_in_pins() == before + 8
    assert all((one == n).all() for n, one in enumerate(held))
    part = held[0][:10]
    del held
    assert (_gpu.to_host(Interface(driver, np.full(MIB, 9, "u1"))) == 9).all()
    assert (part == 0).all(), "memory of an array that is in use was used again"
    del part
    _gpu.to_host(Interface(driver, np.zeros(MIB, "u1")))
    assert driver.library.stand_in_pins() <= before + 4


END = """
    import threading
    sys.path.insert(0, sys.argv[1])
    import test_gpu as t
    from forebay import _gpu
    _gpu.LIBRARY = sys.argv[2]
    driver = t.Driver(_gpu.LIBRARY)
    x = t.Interface(driver, np.full(4 << 20, 7, "u1"))
    writer = fb.open("gpu", "w", quota="64MiB")
    driver.sleep("cuMemcpyDtoH_v2", 50)
    told = []
    def put():
        try:
            while True:
                writer.begin_step()
                writer.put("T", x)
                writer.abort_step()
        except fb.errors.DeviceMemory as e:
            print(e, flush=True)
            time.sleep(100)
    threading.Thread(target=put, daemon=True).start()
    time.sleep(0.2)
    # As the driver does it at the end of the process.
    import atexit
    def ended():
        time.sleep(0.2)
        print("in use", len(_gpu._driver._in_use), flush=True)
        os._exit(0)
    atexit.unregister(_gpu._end)
    atexit.register(ended)
    atexit.register(_gpu._end)
"""


def test_the_end_of_the_interpreter_waits_for_copies_and_lets_none_begin(driver, library, children):
    out = children.start(END, Path(__file__).parent, library).ok()
    assert "in use 0" in out


def test_where_nothing_can_be_pinned_the_driver_copies_through_its_buffers(driver, pair):
    writer, reader = pair
    data = np.arange(MIB, dtype=np.float32)
    driver.fail("cuMemHostAlloc", 2)
    writer.begin_step()
    writer.put("T", Interface(driver, data))
    writer.end_step()
    step = next(reader.steps())
    out = Interface(driver, np.zeros_like(data))
    assert driver.count("pinned") == 0
    assert (step.get("T", out=out).numpy() == data).all()


def test_memory_that_a_program_made_in_a_context_of_its_own(driver, pair):
    writer, reader = pair
    data = np.arange(1000.0)
    writer.begin_step()
    writer.put("T", Interface(driver, data, context=500))
    writer.end_step()
    out = Interface(driver, np.zeros(1000), context=501)
    assert (next(reader.steps()).get("T", out=out).numpy() == data).all()


@pytest.mark.parametrize(
    "call",
    ["cuPointerGetAttribute", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemcpyDtoH_v2"]
    + ["cuStreamSynchronize"],
)
def test_a_put_that_failed_leaves_the_step_as_it_was(driver, pair, call):
    writer, reader = pair
    data = np.arange(MIB, dtype=np.float32)
    writer.begin_step()
    writer.put("before", data[:10])
    driver.fail(call)
    with pytest.raises(errors.DeviceMemory, match=r"CUDA_ERROR_ILLEGAL_ADDRESS \(700\)"):
        writer.put("T", Interface(driver, data), concat=True)
    driver.fail(None)
    writer.put("T", Interface(driver, data), concat=True)
    writer.end_step()
    step = next(reader.steps())
    assert set(step) == {"before", "T"}
    assert (step.get("T") == data).all()


@pytest.mark.parametrize("ends", [True, False])
def test_a_step_that_ends_in_another_thread_while_the_device_copies_is_not_touched(driver, pair, ends):
    writer, reader = pair
    data = np.full(MIB, 7, "u1")
    writer.begin_step()
    writer.put("kept", data[:8])
    driver.sleep("cuMemcpyDtoH_v2", 600)
    failed: list[BaseException] = []

    def put() -> None:
        try:
            step.put("T", Interface(driver, data))
        except errors.StepState as e:
            failed.append(e)

    step = writer.step
    thread = threading.Thread(target=put)
    thread.start()
    time.sleep(0.2)
    if ends:
        writer.end_step()
    else:
        writer.abort_step()
    versions = iter(reader.steps())
    for turn in range(6):
        writer.begin_step()
        writer.put("H", np.full(MIB, 1, "u1"))
        writer.end_step()
    thread.join()
    assert failed, "the step was not open any more"
    for turn in range(6 + ends):
        with next(versions) as read:
            expected = {"kept"} if ends and turn == 0 else {"H"}
            assert set(read) == expected
            assert all((read.get("H") == 1).all() for _ in expected & {"H"})


def test_a_signal_handler_that_raises_leaves_nothing_half_put(driver, pair):
    class Stop(BaseException):
        pass

    is_putting = False

    def stop(*_: object) -> None:
        # A handler may run a few instructions after its signal.
        if is_putting:
            raise Stop

    writer, reader = pair
    versions = iter(reader.steps())
    array = Interface(driver, np.full(2000, 7, "u1"))
    before = signal.signal(signal.SIGALRM, stop)
    stopped = 0
    chance = random.Random(1)
    try:
        for _ in range(300):
            writer.begin_step()
            try:
                is_putting = True
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(20e-6, 600e-6))
                writer.put("T", array)
                is_putting = False
            except Stop:
                is_putting = False
                stopped += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            writer.put("end", 1)
            writer.end_step()
            with next(versions) as step:
                assert "T" not in step or (step.get("T") == 7).all()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert stopped, "no put was stopped"


def test_threads_that_are_first_share_one_driver(driver):
    driver.sleep("cuInit", 200)
    inits = driver.count("inits")
    arrays = [Interface(driver, np.full(1000, n)) for n in range(6)]
    copies: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda n=n: copies.update({n: _gpu.to_host(arrays[n])})) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert driver.count("inits") == inits + 1
    assert all((copies[n] == n).all() for n in range(6))


def test_many_objects_in_one_call(driver, pair):
    writer, reader = pair
    a = np.arange(12.0).reshape(3, 4)
    writer.begin_step()
    writer.put_many({"a": DLPack(driver, a), "b": Interface(driver, a[:, 1])})
    writer.end_step()
    step = next(reader.steps())
    assert (step.get("a") == a).all() and (step.get("b") == a[:, 1]).all()


def test_a_read_that_fails_leaves_the_step_open(driver, pair):
    writer, reader = pair
    data = np.arange(MIB, dtype=np.float32)
    writer.begin_step()
    writer.put("T", data)
    writer.end_step()
    step = next(reader.steps())
    out = Interface(driver, np.zeros_like(data))
    driver.fail("cuMemcpyHtoD_v2")
    with pytest.raises(errors.DeviceMemory, match="to the device"):
        step.get("T", out=out)
    driver.fail(None)
    assert (step.get("T", out=out).numpy() == data).all()


def test_pieces_of_ranks_and_concatenated_ones(driver):
    a = np.arange(24.0).reshape(4, 6)
    writers = [fb.open("gpu", "w", rank=rank, size=2, quota="16MiB") for rank in range(2)]
    reader = fb.open("gpu", timeout=5)
    for rank, writer in enumerate(writers):
        writer.begin_step()
        part = a[2 * rank : 2 * rank + 2]
        writer.put("T", Interface(driver, part), shape=(4, 6), start=(2 * rank, 0))
        writer.put("P", DLPack(driver, a[: rank + 1]), concat=True, dims=("n", "x"))
        with pytest.raises(errors.Usage, match="shape= and start= are missing"):
            writer.put("Q", Interface(driver, part))
        writer.end_step()
    step = next(reader.steps())
    assert (step.get("T") == a).all()
    assert (step.get("P") == np.concatenate([a[:1], a[:2]])).all()
    out = Interface(driver, np.zeros((2, 3)))
    assert (step.get("T", np.s_[1:3, 2:5], out=out).numpy() == a[1:3, 2:5]).all()
    for handle in (*writers, reader):
        handle.close()


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "u8", "f2", "f4", "c8", "c16", ">f8"])
def test_types(driver, pair, dtype):
    writer, reader = pair
    a = np.arange(10).astype(dtype)
    writer.begin_step()
    writer.put("I", Interface(driver, a))
    if a.dtype.isnative:
        writer.put("D", DLPack(driver, a))
    writer.end_step()
    step = next(reader.steps())
    for name in step:
        assert step.get(name).dtype == a.dtype.newbyteorder("=")
        assert (step.get(name) == a).all()


def test_bfloat16(driver, pair):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    writer, reader = pair
    a = np.arange(10).astype(ml_dtypes.bfloat16)
    on_device = DLPack(driver, a)
    on_device.type = (4, 16, 1)
    writer.begin_step()
    writer.put("T", on_device)
    writer.end_step()
    step = next(reader.steps())
    assert step.get("T").dtype == ml_dtypes.bfloat16
    out = DLPack(driver, np.zeros(10, ml_dtypes.bfloat16))
    out.type = (4, 16, 1)
    assert (step.get("T", out=out).numpy() == a).all()


def refused() -> dict[str, tuple[Callable[[Driver], Any], type[BaseException], str]]:
    def changed(make: type[OnDevice], **changes: Any) -> Callable[[Driver], Any]:
        def build(driver: Driver) -> Any:
            array = make(driver, np.zeros(4))
            for name, value in changes.items():
                setattr(array, name, value)
            return array

        return build

    class Masked(Interface):
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {**super().__cuda_array_interface__, "mask": self}

    return {
        "mask": (changed(Masked), errors.BufferMismatch, "mask"),
        "float8": (changed(DLPack, type=(10, 8, 1)), errors.BufferMismatch, "type 10 with 8 bits"),
        "lanes": (changed(DLPack, type=(2, 32, 2)), errors.BufferMismatch, "2 lanes"),
        "no such float": (changed(DLPack, type=(2, 24, 1)), errors.BufferMismatch, "24 bits"),
        "no device memory": (changed(Interface, pointer=4096), errors.DeviceMemory, "INVALID_VALUE"),
        "too long": (changed(Interface, shape=(5000,)), errors.DeviceMemory, "copying 40000 bytes from the device"),
    }


@pytest.mark.parametrize("what", refused())
def test_what_cannot_be_put(driver, pair, what):
    make, error, text = refused()[what]
    pair[0].begin_step()
    with pytest.raises(error, match=text):
        pair[0].put("T", make(driver))
    pair[0].abort_step()


def test_where_nothing_can_be_got_into(driver, pair):
    writer, reader = pair
    writer.begin_step()
    writer.put("T", np.arange(6.0).reshape(2, 3))
    writer.end_step()
    step = next(reader.steps())
    read_only, frozen = Interface(driver, np.zeros((2, 3))), DLPack(driver, np.zeros((2, 3)))
    read_only.is_read_only, frozen.flags = True, 1
    same = Interface(driver, np.zeros((2, 3)))
    same.strides = (0, 8)
    # As JAX shows one.
    unchanging = OldDLPack(driver, np.zeros((2, 3)))
    unchanging.__cuda_array_interface__ = {**read_only.__cuda_array_interface__, "data": (unchanging.pointer, True)}
    rocm = DLPack(driver, np.zeros((2, 3)))
    rocm.kind = 10
    with pytest.raises(errors.DeviceMemory, match="ROCm"):
        step.get("T", out=rocm)
    for out in (
        read_only,
        frozen,
        unchanging,
        same,
        Interface(driver, np.zeros((3, 2))),
        Interface(driver, np.zeros((2, 3), np.float32)),
    ):
        with pytest.raises(errors.BufferMismatch, match="out= does not fit"):
            step.get("T", out=out)
    assert driver.count("to") == 0


def test_queued_work_on_the_stream_of_an_array_comes_first(driver, pair):
    writer, _ = pair
    writer.begin_step()
    array = Interface(driver, np.zeros(4))
    writer.put("T", array)
    alone = driver.count("waits")
    array.stream = 7
    writer.put("U", array)
    assert driver.count("waits") == 2 * alone + 1
    # The stream that each thread has of its own.
    array.stream = 2
    writer.put("V", array)
    assert driver.count("waits") == 3 * alone + 2
    writer.end_step()


def test_threads_read_one_variable_at_once(driver, pair):
    writer, reader = pair
    data = np.arange(MIB, dtype=np.float32)
    writer.begin_step()
    writer.put("T", data)
    writer.end_step()
    step = next(reader.steps())
    outs = [Interface(driver, np.zeros_like(data)) for _ in range(4)]
    failed: list[BaseException] = []

    def read(out: Interface) -> None:
        try:
            for _ in range(20):
                step.get("T", out=out)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=read, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert all((out.numpy() == data).all() for out in outs)


def test_a_child_of_the_process_is_told(driver, pair):
    writer, _ = pair
    writer.begin_step()
    array = Interface(driver, np.zeros(4))
    writer.put("T", array)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            _gpu.to_host(array)
        except errors.DeviceMemory as e:
            status = 0 if "spawn" in str(e) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    writer.end_step()


def test_a_skipped_step_takes_it_too(driver):
    data = np.arange(4.0)
    for _ in range(2):
        with fb.open("gpu", "a", quota="16MiB", readers={"late": 1}) as writer:
            writer.begin_step(0)
            writer.put("T", Interface(driver, data))
            writer.end_step()
