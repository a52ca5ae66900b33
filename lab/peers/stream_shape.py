"""The coupled stream that every system is measured with: one program shape, one clock, one check of the content.

A writer sends STEPS steps of OBJECTS objects, each BYTES long and under a name of its own; a reader takes every
object of every step with one call an object. The first WARM steps are not timed: they fault memory in and open
connections. The time goes from the writer's first timed begin_step to the reader's last end_step, on the clock that
all processes of a machine share. The content is compared in full for the last step, after the clock has stopped,
and by the first and last word of some objects in every step. The writer walks through a source much larger than any
cache.

With --many a system takes all objects of a step in one call each way, where it has such a call.

A system is a pair of classes with the methods that `write` and `read` below call.
"""

import argparse
import json
import os
import sys
import time

import numpy as np

SOURCE_BYTES = 1 << 30
WORD = 8


def source(total_bytes):
    """Words that differ everywhere, so that a block out of place is noticed."""
    return np.arange(total_bytes // WORD, dtype=np.int64) * np.int64(0x9E3779B97F4A7C15 - (1 << 64))


def names(objects):
    """The distinct names of one step."""
    return [f"object_{index:05}" for index in range(objects)]


class Walk:
    """Which part of the source is object `index` of step `step`; the same for writer and reader."""

    def __init__(self, options):
        self.words = options.bytes // WORD
        self.blocks = max(options.source_bytes // options.bytes, 1)
        self.objects = options.objects
        self.data = source(self.blocks * options.bytes)

    def block(self, step, index):
        """The words of one object."""
        at = (step * self.objects + index) % self.blocks * self.words
        return self.data[at : at + self.words]

    def all(self, step):
        """The objects of one step as the rows of one array; a copy only where the source begins again."""
        rows = self.data.reshape(self.blocks, self.words)
        at = step * self.objects % self.blocks
        if at + self.objects <= self.blocks:
            return rows[at : at + self.objects]
        return rows.take(range(at, at + self.objects), axis=0, mode="wrap")


def write(system, options):
    """The writer's loop; returns when the first timed step began."""
    walk = Walk(options)
    labels = names(options.objects)
    begin_ns = 0
    writer = system(options, labels)
    for step in range(options.warm + options.steps):
        if step == options.warm:
            begin_ns = time.monotonic_ns()
        writer.begin_step()
        if options.many:
            writer.put_many(labels, walk.all(step))
        else:
            for index, label in enumerate(labels):
                writer.put(label, walk.block(step, index))
        writer.end_step()
    writer.close()
    return {"begin_ns": begin_ns}


def read(system, options):
    """The reader's loop; returns when the last step ended and whether all content was right."""
    walk = Walk(options)
    labels = names(options.objects)
    wrong = 0
    stride = max(1, options.objects // 64)
    reader = system(options, labels)
    last = options.warm + options.steps - 1
    for step in range(last + 1):
        reader.begin_step()
        taken = reader.get_many(labels) if options.many else [reader.get(label) for label in labels]
        reader.perform()
        ends = [(part[0], part[-1]) for part in taken[::stride]]
        reader.end_step()
        end_ns = time.monotonic_ns()
        for place, found in enumerate(ends):
            block = walk.block(step, place * stride)
            wrong += (block[0], block[-1]) != found
        if step == last:
            wrong += sum(not np.array_equal(part, walk.block(step, i)) for i, part in enumerate(taken))
        del taken
    reader.close()
    return {"end_ns": end_ns, "wrong": int(wrong)}


def main(writer, reader, add_arguments=None):
    """One side of the stream as a program; prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=["write", "read"])
    parser.add_argument("name", help="of the stream; a path for systems that rendezvous by file")
    parser.add_argument("--objects", type=int, default=4)
    parser.add_argument("--bytes", type=int, default=64 << 20)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--source-bytes", type=int, default=SOURCE_BYTES)
    parser.add_argument("--many", action="store_true", help="all objects of a step in one call")
    parser.add_argument("--core", type=int, help="the one core this side may use")
    if add_arguments:
        add_arguments(parser)
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    result = write(writer, options) if options.role == "write" else read(reader, options)
    print(json.dumps(result))
    return 1 if result.get("wrong") else 0


def run(writer, reader, add_arguments=None):
    """Ends the process with the status of `main`."""
    sys.exit(main(writer, reader, add_arguments))
