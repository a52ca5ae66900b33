"""An analysis: the mean of T in each step that writer.py writes, however many ranks it has. Run: python reader.py"""

import forebay as fb

with fb.open("heat") as channel:
    for step in channel.steps(timeout=60):
        T = step.get("T")
        print(f"version {step.version}: {T.shape[0]} x {T.shape[1]}, mean {T.mean():.2f}, max {T.max():.0f}")
