"""Arrays of PyTorch on a CUDA device through a space, beside copies by hand, in turn.

python lab/peers/cuda_arrays.py [ROUNDS]

For each size: a step with one array of the device (`put` of the tensor; the step is ended), against a copy to the host
first (`put` of `tensor.cpu().numpy()`); and `get(out=tensor)` against a copy to the device afterwards
(`tensor.copy_(torch.from_numpy(get()))`). Prints the time by hand divided by ours: median, least and greatest over
ROUNDS (7), and the bytes per second of ours beside those of the device's copy from and to pinned memory and of a copy
of memory on the host, which bound it.
"""

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import forebay as fb
import numpy as np
import torch

_SIZES = [64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30]
_WARM_UP = 3


def _seconds(work: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def _measure(name: str, size: int, rounds: int) -> None:
    x = torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda")
    out = torch.empty_like(x)
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    with fb.open(name, "w", quota=f"{max(4 * size, 64 << 20)}") as writer, fb.open(name, timeout=30) as reader:

        def step(array: Any) -> None:
            writer.begin_step()
            writer.put("x", array)
            writer.end_step()

        rows = []
        for turn in range(_WARM_UP + rounds):
            row = []
            for put in (lambda: step(x), lambda: step(x.cpu().numpy())):
                row.append(_seconds(put))
                reader.begin_step()
                for get in (lambda: reader.get("x", out=out), lambda: out.copy_(torch.from_numpy(reader.get("x")))):
                    out.zero_()
                    row.append(_seconds(get))
                    if not turn:
                        assert torch.equal(out, x)
                reader.end_step()
            row += [_seconds(lambda: pinned.copy_(x)), _seconds(lambda: out.copy_(pinned))]
            row.append(_seconds(lambda: np.copyto(target, source)))
            if turn >= _WARM_UP:
                rows.append(row)
    put, get, get_by_hand, put_by_hand, *_, from_device, to_device, memory = zip(*rows, strict=True)
    for what, ours, by_hand, device in (
        ("put", put, put_by_hand, from_device),
        ("get", get, get_by_hand, to_device),
    ):
        ratios = sorted(b / a for a, b in zip(ours, by_hand, strict=True))
        rate, bound, copy = (size / statistics.median(times) / 1e9 for times in (ours, device, memory))
        print(
            f"{size >> 10:8} KiB, {what}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) times "
            f"as fast as by hand; {rate:.2f} GB/s, device {bound:.2f}, memory {copy:.2f}, measured",
            flush=True,
        )


def main() -> None:
    root = tempfile.mkdtemp(prefix="forebay-cuda-", dir="/dev/shm")
    print(f"on {torch.cuda.get_device_name()}")
    try:
        for size in _SIZES:
            _measure(f"{root}/s{size}", size, int(sys.argv[1]) if sys.argv[1:] else 7)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
