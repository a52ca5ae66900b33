"""The analysis: each rank reads its own rows of V, however the simulation wrote them, and says what is in them."""

import forebay as fb

with fb.open("fields") as channel:
    for step in channel.steps(timeout=60):
        rows, columns = step.variables["V"].shape
        first, last = rows * channel.rank // channel.size, rows * (channel.rank + 1) // channel.size
        v = step["V", first:last]
        print(f"version {step.version:3}  rows {first:3} to {last:3}  mean {v.mean():.4f}  "
              f"covered {(v > 0.1).mean():4.0%}", flush=True)
