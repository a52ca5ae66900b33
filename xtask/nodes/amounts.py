"""Times, shares and rates as people write them."""

import argparse
import re


def nanoseconds(text):
    """`50us`, `1.5ms`, `2s`, `0`."""
    found = re.fullmatch(r"([0-9.]+)(ns|us|ms|s)?", text)
    if not found or (found[2] is None and float(found[1])):
        raise argparse.ArgumentTypeError(f"`{text}` is not a time such as 50us, 1ms or 2s")
    return int(float(found[1]) * {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9, None: 1}[found[2]])


def share(text):
    """`0.1%`."""
    found = re.fullmatch(r"([0-9.]+)%", text)
    if not found or float(found[1]) > 100:
        raise argparse.ArgumentTypeError(f"`{text}` is not a percentage such as 0.1%")
    return float(found[1]) / 100


def bits(text):
    """`10gbit`, `100mbit`."""
    found = re.fullmatch(r"([0-9.]+)(k|m|g)bit", text)
    if not found:
        raise argparse.ArgumentTypeError(f"`{text}` is not a rate such as 10gbit")
    return int(float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[found[2]])
