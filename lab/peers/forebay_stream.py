"""The coupled stream over Forebay's Python package, through a space or through the file-per-object channel.

usage: forebay_stream.py write|read NAME [--channel space|files] [--into] [--many] [--reserve] [--checksum yes|no]
                                          [--objects N …]

With `--reserve` the writer fills memory of the pool instead of putting what lies elsewhere. The reader calls
`get(name, copy=None)`, which copies nothing where one piece holds the object; with `--into` it has every object copied
into an array of its own, as SST does. Default options otherwise: the space lies in FOREBAY_DIR, a version goes when the
reader released it.
"""

import forebay
import numpy as np
from stream_shape import run


class Writer:
    """Puts."""

    def __init__(self, options, _labels):
        quota = 6 * options.bytes * options.objects + (512 << 20)
        self.channel = forebay.open(
            options.name,
            "w",
            channel=options.channel,
            checksum=options.checksum == "yes",
            quota=quota,
            horizon="none" if options.checksum == "no" else None,
            readers={"bench": 1},
        )
        self.in_place = options.reserve

    def begin_step(self):
        """Opens the next step."""
        self.channel.begin_step()

    def put(self, label, block):
        """One object, copied now."""
        if self.in_place:
            self.channel.reserve(label, block.shape, dtype=block.dtype)[:] = block
        else:
            self.channel.put(label, block)

    def put_many(self, labels, blocks):
        """All objects of a step, copied now."""
        self.channel.put_many(labels, blocks)

    def end_step(self):
        """Commits it."""
        self.channel.end_step()

    def close(self):
        """Ends the stream."""
        self.channel.close()


class Reader:
    """Gets."""

    def __init__(self, options, labels):
        self.channel = forebay.open(options.name, component="bench", channel=options.channel)
        self.buffers = None
        self.all = np.zeros((options.objects, options.bytes // 8), dtype=np.int64) if options.many else None
        if options.into:
            self.buffers = {label: np.zeros(options.bytes // 8, dtype=np.int64) for label in labels}

    def begin_step(self):
        """Waits for the next step."""
        self.channel.begin_step()

    def get(self, label):
        """One object."""
        if self.buffers is None:
            return self.channel.get(label, copy=None)
        return self.channel.get(label, out=self.buffers[label])

    def get_many(self, labels):
        """All objects of a step, in an array of the reader."""
        return self.channel.get_many(labels, out=self.all)

    def perform(self):
        """Every get was carried out at its call."""

    def end_step(self):
        """Releases it."""
        self.channel.end_step()

    def close(self):
        """Leaves once it has seen the end, so that the space goes."""
        self.channel.begin_step()
        self.channel.close()


def arguments(parser):
    """What only this system knows."""
    parser.add_argument("--channel", choices=["space", "files"], default="space")
    parser.add_argument("--into", action="store_true", help="copy into arrays of the reader")
    parser.add_argument("--reserve", action="store_true", help="fill memory of the pool")
    parser.add_argument("--checksum", choices=["yes", "no"], default="yes")


if __name__ == "__main__":
    run(Writer, Reader, arguments)
