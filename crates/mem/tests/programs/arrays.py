"""NumPy that knows nothing of windows, as an ordinary user where it was started by root: files read and written."""

import ctypes
import os
import sys

import numpy as np

folder, mebibytes = sys.argv[1], int(sys.argv[2])
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
    # Who was another user before may not look at itself until it says so (PR_SET_DUMPABLE).
    assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0
n = mebibytes * (1 << 20) // 8
path = os.path.join(folder, f"numbers-{os.getpid()}")
a = np.arange(n, dtype="f8")
a.tofile(path)
b = np.fromfile(path)
assert (a == b).all()
b *= 2
with open(path, "r+b", buffering=0) as file:
    view = memoryview(a).cast("B")
    done = 0
    while done < len(view):
        done += file.readinto(view[done:])
assert a.sum() * 2 == b.sum()
np.save(path + ".npy", b)
assert (np.load(path + ".npy") == b).all()
os.unlink(path)
os.unlink(path + ".npy")
assert np.sort(b[::-1])[n // 2] == 2 * (n // 2)
peak = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print("peak", peak[0])
print("ok")
