"""The coupled stream over ADIOS2 SST (the PyPI package adios2), two processes on one node.

usage: sst_stream.py write|read CONTACT-FILE [--fill] [--objects N --bytes B --steps S --warm W --core C]

The fastest way we know: deferred puts and gets, as its manual advises, called on the binding itself (a third faster
at 2 KiB than through the convenience layer of the package); every variable is defined once, and asked for anew in
each step, because one kept from an earlier step crashes. At most two steps are queued and a full queue blocks, so
that neither side measures memory filling up. With `--fill` the writer first fills an array of its own with each
block, as a program does that computes what it puts.
"""

import adios2
import numpy as np
from stream_shape import run

PARAMETERS = {"RendezvousReaderCount": "1", "QueueLimit": "2", "QueueFullPolicy": "Block"}


class Side:
    """What writer and reader share."""

    def __init__(self, options, _labels, mode):
        self.adios = adios2.Adios()
        self.io = self.adios.declare_io("stream")
        self.io.set_engine("SST")
        parameters = dict(PARAMETERS)
        if options.transport:
            parameters["DataTransport"] = options.transport
        self.io.set_parameters(parameters)
        self.engine = self.io.open(options.name, mode)
        self.words = options.bytes // 8
        self.variables = {}

    def begin_step(self):
        """Opens the next step."""
        self.engine.begin_step()

    def end_step(self):
        """Ends it."""
        self.engine.end_step()

    def close(self):
        """Ends the stream."""
        self.engine.close()


class Writer(Side):
    """Puts."""

    def __init__(self, options, labels):
        super().__init__(options, labels, adios2.bindings.Mode.Write)
        shape = [self.words]
        for label in labels:
            block = np.zeros(1, dtype=np.int64)
            self.variables[label] = self.io.define_variable(label, block, shape, [0], shape, True)
        self.arrays = {label: np.zeros(self.words, dtype=np.int64) for label in labels} if options.fill else None

    def put(self, label, block):
        """One object; the memory stays as it is until the end of the step."""
        if self.arrays is not None:
            self.arrays[label][:] = block
            block = self.arrays[label]
        self.engine.impl.Put(self.variables[label].impl, block, adios2.bindings.Mode.Deferred)


class Reader(Side):
    """Gets."""

    def __init__(self, options, labels):
        super().__init__(options, labels, adios2.bindings.Mode.Read)
        self.buffers = {label: np.empty(self.words, dtype=np.int64) for label in labels}

    def get(self, label):
        """One object, there after `perform`."""
        variable = self.io.impl.InquireVariable(label)
        self.engine.impl.Get(variable, self.buffers[label], adios2.bindings.Mode.Deferred)
        return self.buffers[label]

    def perform(self):
        """Carries the gets out."""
        self.engine.perform_gets()


def arguments(parser):
    """What only this system knows."""
    parser.add_argument("--transport", help="SST's DataTransport")
    parser.add_argument("--fill", action="store_true", help="fill an array of the writer's own before each put")


if __name__ == "__main__":
    run(Writer, Reader, arguments)
