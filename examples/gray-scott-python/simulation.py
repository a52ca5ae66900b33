"""The simulation: Gray-Scott in two dimensions with NumPy. Every 100 time steps it hands over a version of U and V.

    dU/dt = Du lap(U) - U V^2 + F (1 - U)        dV/dt = Dv lap(V) + U V^2 - (F + k) V

J. E. Pearson, "Complex patterns in a simple system", Science 261 (1993) 189-192. Try other values of F and k.
"""

import sys

import forebay as fb
import numpy as np

N, VERSIONS, STEPS = 192, 31, 100
F, K, DU, DV = 0.037, 0.060, 0.16, 0.08
if len(sys.argv) > 1:
    VERSIONS = int(sys.argv[1])


def laplacian(field, out):
    """Five points, periodic; `field` has a margin of one cell, which is filled in here."""
    field[0], field[-1] = field[-2], field[1]
    field[:, 0], field[:, -1] = field[:, -2], field[:, 1]
    np.add(field[:-2, 1:-1], field[2:, 1:-1], out=out)
    out += field[1:-1, :-2]
    out += field[1:-1, 2:]
    out -= 4 * field[1:-1, 1:-1]
    return out


u, v = np.ones((N + 2, N + 2)), np.zeros((N + 2, N + 2))
random = np.random.default_rng(1)
for _ in range(12):
    i, j = random.integers(1, N - 9, 2)
    u[i : i + 10, j : j + 10], v[i : i + 10, j : j + 10] = 0.5, 0.25
inner = np.s_[1:-1, 1:-1]
lap_u, lap_v = np.empty((N, N)), np.empty((N, N))

with fb.open("fields", "w") as channel:
    channel.attrs["steps per version"] = STEPS
    for step in channel.steps(VERSIONS):
        if step.version > 0:
            for _ in range(STEPS):
                laplacian(u, lap_u), laplacian(v, lap_v)
                reaction = u[inner] * v[inner] ** 2
                u[inner] += DU * lap_u - reaction + F * (1 - u[inner])
                v[inner] += DV * lap_v + reaction - (F + K) * v[inner]
        step.put("U", u[inner])
        step.put("V", v[inner])
