"""Arrays in the memory of a CUDA device, copied from and to memory of the host by the driver, loaded when first needed.

Guarantees: what ``to_host`` returns is a copy, and what ``Filling`` fills is complete when it has finished; work that
the device has queued on the array comes first, as its ``__dlpack__`` or ``__cuda_array_interface__`` says. The device
copies from and to pinned memory of this module alone, never the pool: memory of a pool is given to other versions when
a step is aborted, also by another thread. All calls of the driver are made by one thread of this module, so that the
caller's context stays what it is, and no signal handler of Python comes between two calls. Copies wait for each other,
and as long as the device takes. Not here: other makes of GPU, several devices at once, kernels of any kind.
"""

import atexit
import contextlib
import ctypes
import itertools
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar, cast

import numpy as np

from forebay import errors

LIBRARY = "libcuda.so.1"
# DLPack's number of the device type.
_DLPACK_CUDA = 2
# Handles of streams: the legacy default stream, by which a producer is asked to have its work done before, and the one
# that each thread has of its own.
_DEFAULT_STREAM, _OWN_STREAM = 1, 2
# Of the driver's interface, cuda.h.
_ATTRIBUTE_CONTEXT, _ATTRIBUTE_MEMORY_TYPE, _ATTRIBUTE_DEVICE_ORDINAL = 1, 2, 9
_MEMORY_TYPE_HOST, _MEMORY_TYPE_DEVICE = 1, 2
_HOST_ALLOC_PORTABLE = 1
_PITCH_MAX = (1 << 31) - 1
# Pinned memory is asked for in such units, and so much of it is kept for the next copy, in at most so many parts.
_STAGING_UNIT_BYTES = 1 << 20
_STAGING_KEPT_BYTES = 256 << 20
_STAGING_KEPT_MAX = 4
# How long the end of the interpreter waits for copies of threads that go on.
_END_SECONDS = 10.0

_Array = np.ndarray[Any, Any]
_T = TypeVar("_T")


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = [
        (f"{side}{what}", kind)
        for side in ("source_", "target_")
        for what, kind in [
            ("x", ctypes.c_size_t),
            ("y", ctypes.c_size_t),
            ("type", ctypes.c_uint),
            ("host", ctypes.c_void_p),
            ("device", ctypes.c_uint64),
            ("array", ctypes.c_void_p),
            ("pitch", ctypes.c_size_t),
        ]
    ] + [("width", ctypes.c_size_t), ("height", ctypes.c_size_t)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


class _Memory:
    """Where an array on a device lies; held, so that it stays there."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.stream: int | None = None
        self.is_read_only = False
        if hasattr(array, "__dlpack_device__"):
            self._from_dlpack(array)
        else:
            self._from_interface(array.__cuda_array_interface__)
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize

    def _from_dlpack(self, array: Any) -> None:
        try:
            capsule = array.__dlpack__(stream=_DEFAULT_STREAM, max_version=(1, 0))
        except TypeError:
            capsule = array.__dlpack__(stream=_DEFAULT_STREAM)
        # The producer frees it with the capsule, which no other consumer takes.
        self._capsule = capsule
        api = ctypes.pythonapi
        get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
        is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", api))
        if is_valid(capsule, b"dltensor_versioned"):
            versioned = _Versioned.from_address(get(capsule, b"dltensor_versioned"))
            if versioned.major != 1:
                raise errors.BufferMismatch(f"DLPack {versioned.major}.{versioned.minor} of an array is not known")
            self.is_read_only = bool(versioned.flags & 1)
            tensor = versioned.tensor
        else:
            tensor = _DLTensor.from_address(get(capsule, b"dltensor"))
            # Such a capsule does not say it. JAX, whose arrays never change, says it there.
            interface = getattr(array, "__cuda_array_interface__", None)
            self.is_read_only = interface is not None and interface["data"][1]
        self.dtype = _dtype(tensor.code, tensor.bits, tensor.lanes)
        self.shape = tuple(tensor.shape[: tensor.ndim])
        size = self.dtype.itemsize
        self.strides = tuple(size * n for n in tensor.strides[: tensor.ndim]) if tensor.strides else None
        self.pointer = (tensor.data or 0) + tensor.byte_offset

    def _from_interface(self, interface: dict[str, Any]) -> None:
        if interface.get("mask") is not None:
            raise errors.BufferMismatch("a masked array would lose its mask", hint="put data and mask as two variables")
        self.dtype = np.dtype(interface["typestr"])
        self.shape, self.strides = tuple(interface["shape"]), interface.get("strides")
        self.pointer, self.is_read_only = interface["data"]
        self.pointer = self.pointer or 0
        self.stream = interface.get("stream")

    def overlaps(self) -> bool:
        """Whether elements lie at the same place, by a stride of 0."""
        return any(stride == 0 and n > 1 for stride, n in zip(self.strides or (), self.shape, strict=False))

    def dense_axes(self) -> list[int] | None:
        """The order of axes in which the array has no gaps between its elements; none, when it has some."""
        strides = self.strides
        if strides is None:
            return list(range(len(self.shape)))
        axes = sorted(range(len(self.shape)), key=lambda axis: (-strides[axis], -self.shape[axis]))
        size = self.dtype.itemsize
        for axis in reversed(axes):
            if self.shape[axis] != 1 and strides[axis] != size:
                return None
            size *= self.shape[axis]
        return axes


class _Driver:
    """The CUDA driver of this process. What calls the library is for the thread that ``run`` calls in."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        # What the thread is to do, each with a place for the outcome and a lock that it releases behind it.
        self._work: SimpleQueue[tuple[Callable[[], Any], list[Any], threading.Lock]] = SimpleQueue()
        threading.Thread(target=self._serve, name="forebay-gpu", daemon=True).start()
        # Of devices by number: their primary contexts, which stay, since pinned memory goes with its context.
        self._contexts: dict[int, ctypes.c_void_p] = {}
        # Pinned memory that is kept, and what was released since: pointers and sizes.
        self._kept: list[tuple[int, int]] = []
        self._returned: deque[tuple[int, int]] = deque()
        # One for each array of the host that is in use, and whether there may be more.
        self._in_use: set[object] = set()
        self._is_ending = False
        # For these four, which threads of the program change too.
        self._lock = threading.Lock()
        self.run(lambda: self._call("cuInit", ctypes.c_uint(0)))

    def run(self, work: Callable[[], _T]) -> _T:
        """Calls ``work`` in the thread of the driver; returns when it is done, also when a signal handler raises."""
        outcome: list[Any] = []
        done = threading.Lock()
        done.acquire()
        self._work.put((work, outcome, done))
        try:
            done.acquire()
        except BaseException:
            # The signal may have come when the lock was taken already.
            if not outcome:
                done.acquire()
            raise
        error, result = outcome
        if error is not None:
            raise error
        return cast("_T", result)

    def _serve(self) -> None:
        while True:
            work, outcome, done = self._work.get()
            try:
                outcome[:] = [None, work()]
            except BaseException as error:
                outcome[:] = [error, None]
            done.release()
            # What they hold goes now, and not with the next work.
            del work, outcome, done

    def to_host(self, memory: _Memory) -> _Array:
        """A copy of an array, in C order."""

        def work() -> _Array:
            host = self.stage(memory)
            self.copy(memory, host, to_host=True)
            return host

        return self.run(work)

    def stage(self, memory: _Memory) -> _Array:
        """Memory of the host for an array, pinned where the system allows that; it is used again when the array and all
        that are made of it are gone."""
        kept = self.stage_kept(memory)
        if kept is not None:
            return kept
        self._enter(memory)
        size = -(-memory.nbytes // _STAGING_UNIT_BYTES) * _STAGING_UNIT_BYTES
        pointer, flags = ctypes.c_void_p(), ctypes.c_uint(_HOST_ALLOC_PORTABLE)
        failed = self._library.cuMemHostAlloc(ctypes.byref(pointer), ctypes.c_size_t(size), flags)
        return self._array(memory, 0 if failed else pointer.value or 0, size)

    def stage_kept(self, memory: _Memory) -> _Array | None:
        """As ``stage``, of memory that was kept; for any thread."""
        with self._lock:
            self._take_returned()
            fits = [one for one in self._kept if one[1] >= memory.nbytes]
            taken = min(fits, key=lambda one: one[1], default=None)
            if taken is None:
                return None
            self._kept.remove(taken)
        return self._array(memory, *taken)

    def _array(self, memory: _Memory, pointer: int, size: int) -> _Array:
        """An array of the host in pinned memory; for a pointer of 0 in memory of NumPy."""
        with self._lock:
            if self._is_ending:
                raise errors.DeviceMemory("the interpreter is shutting down", hint="join the threads that put and get")
            key = object()
            self._in_use.add(key)
        # Arrays that are made of this one keep it, and not only the memory, as that is no array.
        whole = np.frombuffer((ctypes.c_uint8 * size).from_address(pointer), "u1") if pointer else np.empty(size, "u1")
        weakref.finalize(whole, self._give_back, key, pointer, size).atexit = False
        return whole[: memory.nbytes].view(memory.dtype).reshape(memory.shape)

    def _take_returned(self) -> None:
        while self._returned:
            self._kept.append(self._returned.popleft())

    def _give_back(self, key: object, pointer: int, size: int) -> None:
        # Without the lock, which the thread may hold in which this is called: one step of a deque, and of a set.
        if pointer:
            self._returned.append((pointer, size))
        self._in_use.discard(key)

    def end(self) -> None:
        """Waits for what threads copy now, and lets none begin: the driver takes its memory away with the process."""
        with self._lock:
            self._is_ending = True
        deadline = time.monotonic() + _END_SECONDS
        while self._in_use and time.monotonic() < deadline:
            time.sleep(0.001)

    def copy(self, memory: _Memory, host: _Array, *, to_host: bool) -> None:
        """Between the device and an array of the same dtype and shape in C order."""
        self._enter(memory)
        self._let_go()
        if memory.stream is not None:
            self._wait(memory.stream)
        axes = memory.dense_axes()
        if axes is None:
            self._copy_rows(memory, host.ctypes.data, to_host)
        else:
            self._copy_whole(memory, host.transpose(axes), to_host)
        # A copy from memory that is not pinned may still be on its way on the device.
        self._wait(_DEFAULT_STREAM)

    def _copy_whole(self, memory: _Memory, host: _Array, to_host: bool) -> None:
        straight = host if host.flags.c_contiguous else np.empty(host.shape, host.dtype)
        if straight is not host and not to_host:
            np.copyto(straight, host)
        self._copy_run(memory.pointer, straight.ctypes.data, memory.nbytes, to_host)
        if straight is not host and to_host:
            np.copyto(host, straight)

    def _copy_rows(self, memory: _Memory, host: int, to_host: bool) -> None:
        shape, strides = memory.shape, memory.strides
        assert strides is not None
        width, inner = memory.dtype.itemsize, len(shape)
        while inner and (shape[inner - 1] == 1 or strides[inner - 1] == width):
            inner -= 1
            width *= shape[inner]
        height, pitch = shape[inner - 1], strides[inner - 1]
        is_regular = width <= pitch <= _PITCH_MAX
        outer = inner - 1 if is_regular else inner
        for index in itertools.product(*map(range, shape[:outer])):
            at = memory.pointer + sum(i * stride for i, stride in zip(index, strides, strict=False))
            if is_regular:
                self._copy_2d(at, pitch, host, width, height, to_host)
                host += width * height
            else:
                self._copy_run(at, host, width, to_host)
                host += width

    def _copy_2d(self, device: int, pitch: int, host: int, width: int, height: int, to_host: bool) -> None:
        """Rows of ``width`` bytes, ``pitch`` bytes apart on the device and side by side on the host."""
        there = {"type": _MEMORY_TYPE_DEVICE, "device": device, "pitch": pitch}
        here = {"type": _MEMORY_TYPE_HOST, "host": host, "pitch": width}
        source, target = (there, here) if to_host else (here, there)
        copy = _Copy2D(width=width, height=height)
        for side, fields in (("source_", source), ("target_", target)):
            for name, value in fields.items():
                setattr(copy, side + name, value)
        self._call("cuMemcpy2D_v2", ctypes.byref(copy), what=_what(width * height, to_host))

    def _copy_run(self, device: int, host: int, count: int, to_host: bool) -> None:
        there, here, size = ctypes.c_uint64(device), ctypes.c_void_p(host), ctypes.c_size_t(count)
        if to_host:
            self._call("cuMemcpyDtoH_v2", here, there, size, what=_what(count, to_host))
        else:
            self._call("cuMemcpyHtoD_v2", there, here, size, what=_what(count, to_host))

    def _wait(self, stream: int) -> None:
        """Until all that is queued on the stream is done."""
        if stream == _OWN_STREAM:
            # That of the thread which has made the array is meant, not that of this one.
            self._call("cuCtxSynchronize")
        else:
            self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def _enter(self, memory: _Memory) -> None:
        """Makes the context current in which an array was made."""
        address, what = ctypes.c_uint64(memory.pointer), f"asking whose memory {memory.pointer:#x} is"
        kind, number, own = ctypes.c_uint(), ctypes.c_int(), ctypes.c_void_p()
        for attribute, value in ((_ATTRIBUTE_MEMORY_TYPE, kind), (_ATTRIBUTE_DEVICE_ORDINAL, number)):
            self._call("cuPointerGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), address, what=what)
        if kind.value != _MEMORY_TYPE_DEVICE:
            raise errors.DeviceMemory(
                f"the array says that it lies on a CUDA device, and {memory.pointer:#x} does not",
                hint="put the host array that it views",
            )
        self._call("cuCtxSetCurrent", self._context_of(number.value))
        # Memory of a pool of the driver has none.
        attribute = ctypes.c_int(_ATTRIBUTE_CONTEXT)
        if not self._library.cuPointerGetAttribute(ctypes.byref(own), attribute, address) and own.value:
            self._call("cuCtxSetCurrent", own)

    def _context_of(self, number: int) -> ctypes.c_void_p:
        """The primary context of a device."""
        if number not in self._contexts:
            device, context = ctypes.c_int(), ctypes.c_void_p()
            self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(number))
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._contexts[number] = context
        return self._contexts[number]

    def _let_go(self) -> None:
        """Frees pinned memory that is too much to be kept; the smallest stays."""
        with self._lock:
            self._take_returned()
            self._kept.sort(key=lambda one: one[1])
            spare = []
            while len(self._kept) > _STAGING_KEPT_MAX or sum(size for _, size in self._kept) > _STAGING_KEPT_BYTES:
                spare.append(self._kept.pop())
        for pointer, _ in spare:
            self._call("cuMemFreeHost", ctypes.c_void_p(pointer))

    def _call(self, name: str, *arguments: Any, what: str = "") -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise errors.DeviceMemory(
                f"the CUDA driver {LIBRARY} has no {name}", hint="it needs CUDA 11 or later"
            ) from None
        status = function(*arguments)
        if status:
            text = ctypes.c_char_p()
            failed = self._library.cuGetErrorName(ctypes.c_int(status), ctypes.byref(text))
            error = "unknown" if failed or text.value is None else text.value.decode()
            raise errors.DeviceMemory(f"the CUDA driver failed at {what or name}: {error} ({status})", {"cuda": error})


_driver: _Driver | None = None
_making = threading.Lock()
# This process is a child of one that has used the driver: it has the driver's memory, and none of its threads.
_is_child = False


def _forked() -> None:
    global _driver, _making, _is_child
    _is_child = _is_child or _driver is not None
    _driver, _making = None, threading.Lock()


os.register_at_fork(after_in_child=_forked)


@atexit.register
def _end() -> None:
    if _driver is not None:
        _driver.end()


def _driver_for(array: Any) -> _Driver:
    global _driver
    if _is_child:
        raise errors.DeviceMemory(
            "a CUDA device cannot be used in a child of the process that has used it",
            hint='start processes with multiprocessing.set_start_method("spawn")',
        )
    try:
        if _driver is None:
            with _making:
                _driver = _driver or _Driver()
        return _driver
    except OSError as e:
        number = f" {array.__dlpack_device__()[1]}" if hasattr(array, "__dlpack_device__") else ""
        raise errors.DeviceMemory(
            f"this {type(array).__qualname__} is in the memory of CUDA device{number}, and the driver {LIBRARY} "
            f"cannot be loaded: {e}",
            {"device": f"CUDA device{number}"},
            "copy it to the host first, for example with .cpu() or .get()",
        ) from None


def to_host(array: Any) -> _Array:
    """A copy of an array in memory of the host, in C order. Blocks until it is there."""
    driver = _driver_for(array)
    memory = _Memory(array)
    return driver.to_host(memory) if memory.nbytes else np.empty(memory.shape, memory.dtype)


class Filling:
    """An array on a device that is filled: what belongs there goes into ``host`` first, in C order; then ``finish``."""

    def __init__(self, out: Any, dtype: Any, shape: tuple[int, ...]) -> None:
        self._driver = _driver_for(out)
        self._memory = memory = _Memory(out)
        is_empty = not memory.nbytes
        is_writable = is_empty or not (memory.is_read_only or memory.overlaps())
        if not is_writable or (memory.dtype, memory.shape) != (np.dtype(dtype), tuple(shape)):
            raise errors.BufferMismatch(
                f"out= does not fit: it needs dtype {np.dtype(dtype)}, shape {list(shape)}, and to be writable",
                {"dtype": str(memory.dtype), "shape": str(list(memory.shape))},
            )
        kept = np.empty(memory.shape, memory.dtype) if is_empty else self._driver.stage_kept(memory)
        self.host: _Array = self._driver.run(lambda: self._driver.stage(memory)) if kept is None else kept

    def finish(self) -> None:
        """Copies ``host`` to the device. Blocks until it is there."""
        if self._memory.nbytes:
            self._driver.run(lambda: self._driver.copy(self._memory, self.host, to_host=False))


def _dtype(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    """Of DLPack's numbers."""
    kinds = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
    kind = kinds.get(code)
    if kind == "bfloat" and bits == 16 and lanes == 1:
        try:
            import ml_dtypes
        except ImportError:
            raise errors.NotPossibleHere("NumPy has no bfloat16", hint="pip install ml_dtypes") from None
        return np.dtype(ml_dtypes.bfloat16)
    with contextlib.suppress(TypeError):
        if kind is not None and lanes == 1:
            return np.dtype("bool" if kind == "bool" and bits == 8 else f"{kind}{bits}")
    raise errors.BufferMismatch(f"arrays of DLPack's type {code} with {bits} bits and {lanes} lanes cannot be kept")


def _what(count: int, to_host: bool) -> str:
    return f"copying {count} bytes {'from' if to_host else 'to'} the device"
