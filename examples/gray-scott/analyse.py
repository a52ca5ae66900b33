"""The mean of V in each version of the channel `gs`, by NumPy: a component in 15 lines.

Run it beside the simulation as one more reader (a [[component]] of the workflow with reads = ["gs"]), or alone:
    FOREBAY_READERS=python:1 gray-scott --deck deck-small.toml &
    FOREBAY_COMPONENT=python python analyse.py
"""

import forebay as fb

with fb.open("gs") as channel:
    for step in channel.steps():
        v = step.get("V")
        print(f"version {step.version:4}   mean {v.mean():.6f}   max {v.max():.4f}", flush=True)
