"""Arrays of PyTorch, CuPy, JAX and Numba on a real CUDA device; skipped where there is none.

``test_gpu.py`` tries more, against a stand-in for the driver. Here is what only a driver and the libraries can show:
what they say of their arrays, work that is queued on their streams, their allocators, and the end of a process.
"""

import ctypes
import importlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import forebay as fb
import numpy as np
import pytest
import test_gpu
from forebay import errors

MIB = 1 << 20
# Half a second of a device, about.
CYCLES = 1_000_000_000
# Else JAX takes most of the device's memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _devices() -> int:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    n = ctypes.c_int()
    return 0 if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(n)) else n.value


if not _devices():
    pytest.skip("no CUDA device", allow_module_level=True)

Pair = tuple[fb.Writer, fb.Reader]


class Library:
    """How a library makes arrays on the device and brings them back."""

    def __init__(self, name: str) -> None:
        modules = {"torch": "torch", "cupy": "cupy", "jax": "jax.numpy", "numba": "numba.cuda"}
        self.name, self.module = name, pytest.importorskip(modules[name])

    def on_device(self, a: np.ndarray[Any, Any]) -> Any:
        """The same array there, with the same strides where the library has them."""
        match self.name:
            case "torch":
                return self._laid_out(a, lambda base: self.module.from_numpy(base).cuda(), self.module.as_strided)
            case "cupy":
                return self._laid_out(a, self.module.asarray, None)
            case "numba":
                return self.module.to_device(a)
        return self.module.asarray(a)

    def _laid_out(self, a: np.ndarray[Any, Any], copy: Callable[[Any], Any], view: Any) -> Any:
        base = a
        while isinstance(base.base, np.ndarray):
            base = base.base
        flat = copy(base.reshape(-1, order="A"))
        first = (a.ctypes.data - base.ctypes.data) // a.itemsize if a.size else 0
        if view is not None:
            return view(flat, a.shape, [s // a.itemsize for s in a.strides], first)
        memory = flat.data + first * a.itemsize
        return self.module.ndarray(a.shape, a.dtype, memory, a.strides)

    def numpy(self, x: Any) -> np.ndarray[Any, Any]:
        match self.name:
            case "torch":
                return np.asarray(x.cpu())
            case "cupy":
                return np.asarray(self.module.asnumpy(x))
            case "numba":
                return np.asarray(x.copy_to_host())
        return np.asarray(x)


@pytest.fixture(params=["torch", "cupy", "jax", "numba"])
def library(request: pytest.FixtureRequest) -> Library:
    return Library(request.param)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def pair() -> Iterator[Pair]:
    with fb.open("gpu", "w", quota="1GiB") as writer, fb.open("gpu", timeout=5) as reader:
        yield writer, reader


def back(pair: Pair, x: Any) -> np.ndarray[Any, Any]:
    """What a reader gets of an array that was put."""
    writer, reader = pair
    put(writer, x)
    return got(reader)


def put(writer: fb.Writer, x: Any) -> None:
    writer.begin_step()
    writer.put("T", x)
    writer.end_step()


def got(reader: fb.Reader, out: Any = None) -> Any:
    """The next version, in memory of its own or in ``out``."""
    reader.begin_step()
    try:
        return reader.get("T", out=out) if out is not None else np.array(reader.get("T"))
    finally:
        reader.end_step()


def layouts() -> dict[str, np.ndarray[Any, Any]]:
    # Numbers below 2^24: JAX makes 32 bits of 64.
    found = test_gpu.layouts()
    return {**found, "the same row": np.broadcast_to(found["C order"][0, :1], (5, 10))}


@pytest.mark.parametrize("layout", layouts())
def test_layouts(library, pair, layout):
    like = layouts()[layout]
    if library.name == "torch" and layout == "backwards":
        pytest.skip("torch has no negative strides")
    if library.name == "numba" and not (like.size and (like.flags.c_contiguous or like.flags.f_contiguous)):
        pytest.skip("numba copies no such array to a device")
    x = library.on_device(like)
    assert (back(pair, x) == like).all()
    if library.name == "jax" or layout == "the same row":
        return
    writer, reader = pair
    out = library.on_device(np.zeros_like(like) if layout == "C order" else like)
    around = library.numpy(out).copy()
    put(writer, np.array(like, order="C") * 2 + 1)
    got(reader, out)
    assert around.shape == like.shape and (library.numpy(out) == like * 2 + 1).all()


@pytest.mark.parametrize("dtype", "bool i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split())
def test_types(library, pair, dtype):
    like = np.random.default_rng(1).integers(0, 2, (3, 50)).astype(dtype)
    x = library.on_device(like)
    found = back(pair, x)
    # JAX makes 32 bits of 64.
    assert (found == like).all() and (library.name == "jax" or found.dtype == like.dtype)


def test_bfloat16(pair, torch):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = torch.arange(100, device="cuda", dtype=torch.bfloat16)
    found = back(pair, x)
    assert found.dtype == ml_dtypes.bfloat16 and (found.astype("f4") == x.float().cpu().numpy()).all()
    jnp = pytest.importorskip("jax.numpy")
    assert (back(pair, jnp.arange(100, dtype=jnp.bfloat16)) == found).all()


def test_an_array_of_jax_is_never_changed(pair):
    jnp = pytest.importorskip("jax.numpy")
    writer, reader = pair
    put(writer, np.ones(8, np.float32))
    out = jnp.zeros(8, jnp.float32)
    with pytest.raises(errors.BufferMismatch):
        got(reader, out)
    assert (np.asarray(out) == 0).all()


def test_what_lies_on_the_host_is_put_as_such(pair, torch):
    assert (back(pair, torch.arange(5).pin_memory()) == np.arange(5)).all()
    cupy = pytest.importorskip("cupy")
    pinned = cupy.cuda.alloc_pinned_memory(80)
    a = np.frombuffer(pinned, "f8", 10)
    a[:] = 7
    assert (back(pair, a) == 7).all()


@pytest.mark.parametrize("where", ["default stream", "stream of its own"])
def test_work_of_torch_that_is_queued_comes_first(pair, torch, where):
    stream = torch.cuda.current_stream() if where == "default stream" else torch.cuda.Stream()
    x = torch.zeros(MIB, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        x.fill_(3)
        assert not stream.query(), "the device was too fast"
        assert (back(pair, x) == 3).all()
    # What is queued before a get does not come behind it.
    writer, reader = pair
    put(writer, np.full(MIB, 9, np.float32))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        x.fill_(4)
        got(reader, x)
        assert (x.cpu() == 9).all()


def spin(stream: Any, x: Any) -> None:
    """Queues work of half a second on a stream that writes 5 to an array at last."""
    cupy = pytest.importorskip("cupy")
    code = """extern "C" __global__ void spin(long long n, float *x) {
        long long t = clock64(); while (clock64() - t < n); x[0] = 5; }"""
    cupy.RawKernel(code, "spin")((1,), (1,), (np.int64(CYCLES), x), stream=stream)


def test_work_of_cupy_that_is_queued_comes_first(pair):
    cupy = pytest.importorskip("cupy")
    for stream in (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.ptds, cupy.cuda.Stream.null):
        x = cupy.zeros(4, cupy.float32)
        cupy.cuda.Device().synchronize()
        with stream:
            spin(stream, x)
            assert back(pair, x)[0] == 5


def test_work_of_numba_that_is_queued_comes_first(pair):
    cuda, cupy = pytest.importorskip("numba.cuda"), pytest.importorskip("cupy")
    stream = cuda.stream()
    x = cuda.to_device(np.zeros(4, np.float32), stream=stream)
    spin(cupy.cuda.ExternalStream(int(getattr(stream.handle, "value", stream.handle))), cupy.asarray(x))
    assert back(pair, x)[0] == 5


def test_the_callers_device_context_and_stream_stay(pair, torch):
    stream = torch.cuda.Stream()
    driver = ctypes.CDLL("libcuda.so.1")
    with torch.cuda.stream(stream):
        before, after = ctypes.c_void_p(), ctypes.c_void_p()
        driver.cuCtxGetCurrent(ctypes.byref(before))
        back(pair, torch.ones(10, device="cuda"))
        driver.cuCtxGetCurrent(ctypes.byref(after))
        assert before.value == after.value and torch.cuda.current_stream() == stream


ALLOCATORS = {
    "expandable segments": """
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        import torch
        def make(n): return torch.arange(n, device="cuda")
        def host(x): return x.cpu().numpy()
    """,
    "of the driver, by torch": """
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
        import torch
        def make(n): return torch.arange(n, device="cuda")
        def host(x): return x.cpu().numpy()
    """,
    "of the driver, by cupy": """
        import cupy
        cupy.cuda.set_allocator(cupy.cuda.malloc_async)
        def make(n): return cupy.arange(n)
        def host(x): return x.get()
    """,
}


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_allocators(children, allocator):
    pytest.importorskip("cupy" if "cupy" in allocator else "torch")
    code = ALLOCATORS[allocator] + """
        n = 7 << 20
        kept = [make(1000), make(n // 3), make(n)]
        with fb.open("gpu", "w", quota="512MiB") as writer, fb.open("gpu", timeout=5) as reader:
            for x in kept:
                writer.begin_step()
                writer.put("T", x)
                writer.end_step()
                reader.begin_step()
                assert (reader.get("T") == host(x)).all()
                y = make(len(x)) * 0
                reader.get("T", out=y)
                reader.end_step()
                assert (host(y) == host(x)).all()
        print("ok")
    """
    assert children.start(code).ok().strip().endswith("ok")


@pytest.mark.parametrize("end", ["end", "sys.exit(0)", "os._exit(0)", "in a thread"])
def test_the_end_of_a_process(children, end):
    pytest.importorskip("torch")
    code = """
        import threading, torch
        x = torch.arange(50 << 20, dtype=torch.uint8, device="cuda")
        writer = fb.open("gpu", "w", quota="256MiB")
        def put():
            while True:
                writer.begin_step()
                writer.put("T", x)
                writer.abort_step()
        writer.begin_step()
        writer.put("T", x)
        writer.end_step()
    """
    code += {
        "in a thread": "    threading.Thread(target=put, daemon=True).start()\n        time.sleep(0.5)",
        "end": "    pass",
    }.get(end, f"    {end}")
    children.start(code).ok()


def test_a_killed_writer_leaves_what_it_ended(children, torch):
    child = children.start("""
        import torch
        with fb.open("gpu", "w", quota="256MiB", retention="last:2") as writer:
            x = torch.zeros(8 << 20, device="cuda")
            for step in writer.steps():
                x += 1
                step.put("T", x)
                print("put", flush=True)
    """)
    for _ in range(20):
        child.line()
    child.signal(signal.SIGKILL)
    child.process.wait()
    with fb.open("gpu", timeout=5, finished=True) as reader:
        out = torch.empty(8 << 20, device="cuda")
        reader.begin_step()
        reader.get("T", out=out)
        assert (out == out[0]).all() and int(out[0]) == reader.version + 1


def test_a_child_of_a_fork_is_told_and_a_spawned_one_works(children):
    pytest.importorskip("torch")
    children.start("""
        import torch
        x = torch.ones(5, device="cuda")
        with fb.open("gpu", "w", quota="64MiB") as writer:
            writer.begin_step()
            writer.put("T", x)
            pid = os.fork()
            if not pid:
                try:
                    fb._gpu.to_host(x)
                except fb.errors.DeviceMemory as e:
                    os._exit(0 if "spawn" in str(e) else 2)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            writer.end_step()
    """).ok()


def test_interrupts(pair, torch):
    x = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    writer, reader = pair

    def handler(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    hits = 0
    try:
        for i in range(100):
            x.fill_(i)
            writer.begin_step()
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 * (i % 50 + 1))
                writer.put("T", x)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                hits += 1
                writer.abort_step()
                continue
            writer.end_step()
            assert (got(reader) == i).all()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert 0 < hits < 100


def test_threads_with_streams_of_their_own(torch):
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            stream = torch.cuda.Stream()
            with (
                fb.open(f"gpu{number}", "w", quota="128MiB") as writer,
                fb.open(f"gpu{number}", timeout=5) as reader,
                torch.cuda.stream(stream),
            ):
                x = torch.empty(MIB, device="cuda")
                out = torch.empty_like(x)
                for i in range(30):
                    x.fill_(1000 * number + i)
                    put(writer, x)
                    got(reader, out)
                    assert torch.equal(out, x) and int(out[7]) == 1000 * number + i
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed


def test_an_error_of_the_device_is_said(children):
    pytest.importorskip("torch")
    children.start("""
        import torch
        x = torch.ones(5, device="cuda")
        with fb.open("gpu", "w", quota="64MiB") as writer:
            writer.begin_step()
            # The context is lost with a failed assertion of a kernel.
            y = torch.zeros(1, dtype=torch.long, device="cuda") + 100
            try:
                x[y]
                torch.cuda.synchronize()
            except Exception:
                pass
            begin = time.time()
            try:
                writer.put("T", x)
            except fb.errors.DeviceMemory as e:
                assert "CUDA_ERROR" in str(e), e
            except Exception as e:
                # From __dlpack__ of torch.
                assert "CUDA" in str(e), e
            else:
                raise SystemExit("no error")
            assert time.time() - begin < 30
            writer.put("T", np.ones(3))
            writer.end_step()
    """).ok()


def test_samples_of_an_ensemble(torch):
    from forebay import ensemble

    with ensemble.Member("e", 0, quota="64MiB") as member:
        for i in range(4):
            member.put(x=torch.full((10,), float(i), device="cuda"))
    with ensemble.Reservoir("e", members=1, batch=4) as reservoir:
        batch = next(iter(reservoir))
        assert sorted(float(sample["x"][9]) for sample in batch) == [0, 1, 2, 3]


def test_batches_in_pinned_memory(torch):
    ft = importlib.import_module("forebay.torch")
    with fb.open("s", "w", quota="64MiB", retention="forever") as writer:
        for step in writer.steps(4):
            step.put("x", np.full((10, 3), step.version, np.float32))
    dataset = ft.StepDataset("s", "x", along=0, versions="all", pin=True)
    rows = list(dataset)
    assert len(rows) == 40 and all(row.is_pinned() for row in rows)
    dataset = ft.StepDataset("s", "x", along=0, versions="all")
    batches = [batch.cuda(non_blocking=True) for batch in ft.loader(dataset, 8, pin_memory=True) if batch.is_pinned()]
    assert len(batches) == 5
    assert sorted(torch.cat(batches)[:, 0].tolist()) == [float(version) for version in range(4) for _ in range(10)]


def test_checkpoints_of_tensors_on_the_device(torch, tmp_path):
    ft = importlib.import_module("forebay.torch")
    dcp = importlib.import_module("torch.distributed.checkpoint")
    state = {"w": torch.rand(1000, 1000, device="cuda"), "cpu": torch.rand(5), "b": torch.rand(7, device="cuda").half()}
    with ft.CheckpointWriter(tmp_path / "ck", "dram; file") as writer:
        dcp.save(state, storage_writer=writer, checkpoint_id=3)
    found = {name: torch.zeros_like(value) for name, value in state.items()}
    dcp.load(found, storage_reader=ft.CheckpointReader(tmp_path / "ck", "dram; file"))
    assert all(torch.equal(found[name], state[name]) and found[name].device == state[name].device for name in state)


def test_large_arrays_and_their_pinned_memory(pair, torch):
    n = 300 * MIB
    x = torch.randint(0, 255, (n,), dtype=torch.uint8, device="cuda")
    assert (back(pair, x) == x.cpu().numpy()).all()
    out = torch.zeros_like(x)
    numbers = np.resize(np.arange(251, dtype=np.uint8), n)
    put(pair[0], numbers)
    got(pair[1], out)
    assert torch.equal(out, torch.from_numpy(numbers).cuda())
