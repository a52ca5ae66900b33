"""Arrays in the memory of a CUDA device, between it and the pool: by the driver, which is loaded when first needed.

Guarantees: what ``put`` takes is complete when it returns, and what ``get`` fills is; work that the device has queued
on the array comes first, as its ``__dlpack__`` or ``__cuda_array_interface__`` says. The memory of the pool is pinned
for the time of a large copy, so that the device moves the bytes itself, and never longer: pages of a pool may be given
to other versions later. The program's current context stays what it was. A copy that fails leaves the step not whole:
it cannot be ended. Not here: other makes of GPU, several devices at once, kernels of any kind.
"""

import contextlib
import ctypes
import functools
import itertools
import math
import mmap
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from forebay import errors

LIBRARY = "libcuda.so.1"
# DLPack's number of the device type, and the stream by which a producer is told "the legacy default stream".
_DLPACK_CUDA = 2
_DEFAULT_STREAM = 1
# Below this, pinning takes longer than the driver's own copy through its buffers.
_PINNED_BYTES_MIN = 1 << 20
# Of the driver's interface: cuda.h.
_ATTRIBUTE_MEMORY_TYPE = 2
_ATTRIBUTE_DEVICE_ORDINAL = 9
_MEMORY_TYPE_HOST, _MEMORY_TYPE_DEVICE = 1, 2
_REGISTER_READ_ONLY = 8
_PITCH_MAX = (1 << 31) - 1


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


class _Driver:
    """The CUDA driver of this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self._pid = os.getpid()
        # Ranges that overlap cannot be pinned twice, and a copy must not reach beyond a range that is.
        self.lock = threading.Lock()
        self._call("cuInit", ctypes.c_uint(0))

    def check_fork(self) -> None:
        """A child has the driver's memory, and none of its threads and handles."""
        if self._pid != os.getpid():
            raise errors.DeviceMemory(
                "a CUDA device cannot be used in a child of the process that has used it",
                hint='start processes with multiprocessing.set_start_method("spawn")',
            )

    def _call(self, name: str, *arguments: Any, what: str = "") -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise errors.DeviceMemory(
                f"the CUDA driver {LIBRARY} has no {name}", hint="it needs CUDA 11 or later"
            ) from None
        status = function(*arguments)
        if status:
            error = self._name_of(status)
            raise errors.DeviceMemory(f"the CUDA driver failed at {what or name}: {error} ({status})", {"cuda": error})

    def _name_of(self, status: int) -> str:
        name = ctypes.c_char_p()
        failed = self._library.cuGetErrorName(ctypes.c_int(status), ctypes.byref(name))
        return "unknown" if failed or name.value is None else name.value.decode()

    def device_of(self, pointer: int) -> int:
        """The number of the device whose memory that is."""
        kind, number = ctypes.c_uint(), ctypes.c_int()
        address = ctypes.c_uint64(pointer)
        what = f"asking whose memory {pointer:#x} is"
        kinds = ctypes.byref(kind), ctypes.c_int(_ATTRIBUTE_MEMORY_TYPE)
        self._call("cuPointerGetAttribute", *kinds, address, what=what)
        if kind.value != _MEMORY_TYPE_DEVICE:
            raise errors.DeviceMemory(f"the array says that it lies on a CUDA device, and {pointer:#x} does not")
        numbers = ctypes.byref(number), ctypes.c_int(_ATTRIBUTE_DEVICE_ORDINAL)
        self._call("cuPointerGetAttribute", *numbers, address, what=what)
        return number.value

    @contextlib.contextmanager
    def current(self, number: int) -> Iterator[None]:
        """The primary context of a device is the current one, and afterwards the one that was."""
        device, context, last = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(number))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            self._call("cuCtxPushCurrent_v2", context)
            try:
                yield
            finally:
                self._call("cuCtxPopCurrent_v2", ctypes.byref(last))
        finally:
            self._call("cuDevicePrimaryCtxRelease_v2", device)

    @contextlib.contextmanager
    def pinned(self, host: np.ndarray[Any, Any]) -> Iterator[None]:
        """The device can reach the array's pages itself, where the system allows that."""
        first = host.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
        end = -(-(host.ctypes.data + host.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        flags = ctypes.c_uint(0 if host.flags.writeable else _REGISTER_READ_ONLY)
        is_pinned = host.nbytes >= _PINNED_BYTES_MIN and not self._library.cuMemHostRegister_v2(
            ctypes.c_void_p(first), ctypes.c_size_t(end - first), flags
        )
        try:
            yield
        finally:
            if is_pinned:
                self._call("cuMemHostUnregister", ctypes.c_void_p(first))

    def wait(self, stream: int) -> None:
        """Until all that is queued on the stream is done."""
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def rows(self, device: int, pitch: int, host: int, width: int, height: int, *, to_host: bool) -> None:
        """Rows of ``width`` bytes, ``pitch`` bytes apart on the device and side by side on the host."""
        there = {"type": _MEMORY_TYPE_DEVICE, "device": device, "pitch": pitch}
        here = {"type": _MEMORY_TYPE_HOST, "host": host, "pitch": width}
        source, target = (there, here) if to_host else (here, there)
        copy = _Copy2D(width=width, height=height)
        for side, fields in (("source_", source), ("target_", target)):
            for name, value in fields.items():
                setattr(copy, side + name, value)
        self._call("cuMemcpy2D_v2", ctypes.byref(copy), what=_what(width * height, to_host))

    def run(self, device: int, host: int, count: int, *, to_host: bool) -> None:
        """``count`` bytes."""
        there, here, size = ctypes.c_uint64(device), ctypes.c_void_p(host), ctypes.c_size_t(count)
        if to_host:
            self._call("cuMemcpyDtoH_v2", here, there, size, what=_what(count, to_host))
        else:
            self._call("cuMemcpyHtoD_v2", there, here, size, what=_what(count, to_host))


@functools.cache
def _loaded() -> _Driver:
    return _Driver()


def _driver_for(array: Any) -> _Driver:
    try:
        driver = _loaded()
    except OSError as e:
        number = f" {array.__dlpack_device__()[1]}" if hasattr(array, "__dlpack_device__") else ""
        what = f"this {type(array).__qualname__} lies in the memory of CUDA device{number}"
        raise errors.DeviceMemory(
            f"{what}, and the driver {LIBRARY} cannot be loaded: {e}",
            {"device": f"CUDA device{number}"},
            "copy it to the host first, for example with .cpu() or .get()",
        ) from None
    driver.check_fork()
    return driver


class _Memory:
    """Where an array on a device lies; held, so that it stays there."""

    def __init__(self, array: Any) -> None:
        self.driver = _driver_for(array)
        self.array = array
        self.stream: int | None = None
        self.is_read_only = False
        if hasattr(array, "__dlpack_device__"):
            self._from_dlpack(array)
        else:
            self._from_interface(array.__cuda_array_interface__)
        self.device = self.driver.device_of(self.pointer) if self.nbytes else None

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

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def copy(self, host: np.ndarray[Any, Any], *, to_host: bool) -> None:
        """Between the device and an array of the same dtype and shape in C order."""
        if self.device is None:
            return
        driver = self.driver
        with driver.lock, driver.current(self.device):
            if self.stream is not None:
                driver.wait(self.stream)
            axes = self._dense_axes()
            if axes is None:
                with driver.pinned(host):
                    self._copy_rows(driver, host.ctypes.data, to_host)
            else:
                self._copy_whole(driver, host.transpose(axes), to_host)
            # A copy from memory that is not pinned may still be on its way on the device.
            driver.wait(_DEFAULT_STREAM)

    def _dense_axes(self) -> list[int] | None:
        """The order of axes in which the array has no gaps between its elements; none, when it has some."""
        if self.strides is None:
            return list(range(len(self.shape)))
        axes = sorted(range(len(self.shape)), key=lambda axis: (-self.strides[axis], -self.shape[axis]))
        size = self.dtype.itemsize
        for axis in reversed(axes):
            if self.shape[axis] != 1 and self.strides[axis] != size:
                return None
            size *= self.shape[axis]
        return axes

    def _copy_whole(self, driver: _Driver, host: np.ndarray[Any, Any], to_host: bool) -> None:
        straight = host if host.flags.c_contiguous else np.empty(host.shape, host.dtype)
        if straight is not host and not to_host:
            np.copyto(straight, host)
        with driver.pinned(straight):
            driver.run(self.pointer, straight.ctypes.data, self.nbytes, to_host=to_host)
        if straight is not host and to_host:
            np.copyto(host, straight)

    def _copy_rows(self, driver: _Driver, host: int, to_host: bool) -> None:
        assert self.strides is not None
        width, inner = self.dtype.itemsize, len(self.shape)
        while inner and (self.shape[inner - 1] == 1 or self.strides[inner - 1] == width):
            inner -= 1
            width *= self.shape[inner]
        height, pitch = self.shape[inner - 1], self.strides[inner - 1]
        is_regular = width <= pitch <= _PITCH_MAX
        outer = inner - 1 if is_regular else inner
        for index in itertools.product(*map(range, self.shape[:outer])):
            at = self.pointer + sum(i * stride for i, stride in zip(index, self.strides, strict=False))
            if is_regular:
                driver.rows(at, pitch, host, width, height, to_host=to_host)
                host += width * height
            else:
                driver.run(at, host, width, to_host=to_host)
                host += width


def is_on_device(array: Any) -> bool:
    """Whether this is an array in the memory of a CUDA device, as far as it says so."""
    if hasattr(array, "__dlpack_device__"):
        return bool(array.__dlpack_device__()[0] == _DLPACK_CUDA)
    return hasattr(array, "__cuda_array_interface__")


def put(step: Any, name: str, array: Any, shape: Any, start: Any, dims: Any, attrs: Any, concat: bool) -> None:
    """As ``step.put`` of an array on the host, into the memory that the step reserves for it."""
    memory = _Memory(array)
    target = step._reserve_for(name, memory.shape, memory.dtype, shape, start, dims, attrs, concat)
    try:
        memory.copy(target, to_host=True)
    except BaseException:
        step._lose(target)
        raise
    step.commit(target)
    step.describe(name, dims=dims, attrs=attrs)


def fill(out: Any, name: str, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Where ``step.get`` puts a variable of that dtype and shape: a function that takes it, in C order."""
    memory = _Memory(out)
    overlaps = any(stride == 0 and n > 1 for stride, n in zip(memory.strides or (), memory.shape, strict=False))
    if memory.is_read_only or overlaps or (memory.dtype, memory.shape) != (np.dtype(dtype), tuple(shape)):
        raise errors.BufferMismatch(
            f"out= does not fit {name}: it needs dtype {np.dtype(dtype)}, shape {list(shape)}, and to be writable",
            {"dtype": str(memory.dtype), "shape": str(list(memory.shape))},
        )
    return functools.partial(memory.copy, to_host=False)


def _dtype(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    """Of DLPack's numbers."""
    kinds = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
    kind = kinds.get(code)
    if kind == "bfloat" and bits == 16 and lanes == 1:
        try:
            import ml_dtypes
        except ImportError:
            raise errors.NotPossibleHere("NumPy alone has no bfloat16", hint="pip install ml_dtypes") from None
        return np.dtype(ml_dtypes.bfloat16)
    with contextlib.suppress(TypeError):
        if kind is not None and lanes == 1:
            return np.dtype("bool" if kind == "bool" and bits == 8 else f"{kind}{bits}")
    raise errors.BufferMismatch(f"arrays of DLPack's type {code} with {bits} bits and {lanes} lanes cannot be kept")


def _what(count: int, to_host: bool) -> str:
    return f"copying {count} bytes {'from' if to_host else 'to'} the device"

