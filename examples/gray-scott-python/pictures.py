"""A picture of V for each version, as PNG, in the folder `pictures` of the run; the report shows them."""

import json
import os
import struct
import zlib
from pathlib import Path

import forebay as fb
import numpy as np

TOP = 0.4  # the value of V with the last colour
folder = Path(os.environ.get("FOREBAY_RUN", ".")) / "pictures"
folder.mkdir()


def png(values):
    """An image of 8 bits a pixel: violet to yellow, by three points in between."""
    points = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]])
    x = np.linspace(0, 4, 256)
    palette = np.stack([np.interp(x, range(5), points[:, c]) for c in range(3)], axis=1).astype(np.uint8)
    pixels = (np.clip(values / TOP, 0, 1) * 255).astype(np.uint8)
    rows = np.pad(pixels, ((0, 0), (1, 0))).tobytes()  # each row begins with its filter, none
    height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"PLTE", palette.tobytes()), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    data = [struct.pack(">I", len(c)) + t + c + struct.pack(">I", zlib.crc32(t + c)) for t, c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(data)


slices = []
with fb.open("fields") as channel:
    for step in channel.steps(timeout=60):
        v = step.view("V")  # no copy: the simulation's own bytes
        name = f"v-{step.version:03}.png"
        (folder / name).write_bytes(png(v))
        time = step.version * channel.attrs["steps per version"]
        slices.append({"file": name, "version": step.version, "step": time})
        shape = v.shape
        del v
album = {"schema": "forebay.slices/1", "variable": "V", "shape": shape, "range": [0, TOP], "slices": slices}
(folder / "index.json").write_text(json.dumps(album))
