"""Update rules as fused loops over rows: value and slots lie side by side in one row.

Each equals Keras 3's dense optimizer on the rows it touches (tests compare them step by step). Adam is lazy: a row's
moments and its update counter move only when the row is in a batch, so the bias correction counts the row's own
updates. The counter is a uint32 in the row's last column, read through an integer view of the same memory.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from trimtab.core.ps import kernel_cache

kernel_cache.use()


@njit("void(int64[::1], int64, int64, float32[:,::1], float32[:,::1], int64, float32)",
      cache=True, nogil=True, error_model="numpy")  # fmt: skip
def sgd(places, start, end, gradients, rows, dim, rate):
    """Value -= rate * gradient."""
    for i in range(start, end):
        place = places[i]
        for j in range(dim):
            rows[place, j] -= rate * gradients[i - start, j]


@njit("void(int64[::1], int64, int64, float32[:,::1], float32[:,::1], int64)",
      cache=True, nogil=True, error_model="numpy")  # fmt: skip
def add(places, start, end, deltas, rows, dim):
    """Value += delta."""
    for i in range(start, end):
        place = places[i]
        for j in range(dim):
            rows[place, j] += deltas[i - start, j]


@njit("void(int64[::1], int64, int64, float32[:,::1], float32[:,::1], int64, float32, float32)",
      cache=True, nogil=True, error_model="numpy")  # fmt: skip
def adagrad(places, start, end, gradients, rows, dim, rate, epsilon):
    """Accumulator += gradient^2; value -= rate * gradient / sqrt(accumulator + epsilon) (Keras 3)."""
    for i in range(start, end):
        place = places[i]
        for j in range(dim):
            g = gradients[i - start, j]
            a = rows[place, dim + j] + g * g
            rows[place, dim + j] = a
            rows[place, j] -= rate * g / math.sqrt(a + epsilon)


@njit("void(int64[::1], int64, int64, float32[:,::1], float32[:,::1], uint32[:,::1], int64, float32, float64, float64,"
      " float32)", cache=True, nogil=True, error_model="numpy")  # fmt: skip
def adam(places, start, end, gradients, rows, counters, dim, rate, beta_1, beta_2, epsilon):
    """Keras 3's Adam with the row's own step count; `counters` is `rows` seen as uint32.

    Rounded where Keras rounds: 1 - 0.999^t from float32 powers, 1 - beta from the exact beta. Elsewhere in double
    precision either would be off by 1e-5 of itself.
    """
    one = np.float32(1.0)
    one_minus_1, one_minus_2 = np.float32(1.0 - beta_1), np.float32(1.0 - beta_2)
    for i in range(start, end):
        place = places[i]
        t = counters[place, 3 * dim] + np.uint32(1)
        counters[place, 3 * dim] = t
        power_1 = np.float32(np.float64(np.float32(beta_1)) ** np.float64(t))
        power_2 = np.float32(np.float64(np.float32(beta_2)) ** np.float64(t))
        alpha = rate * math.sqrt(one - power_2) / (one - power_1)
        for j in range(dim):
            g = gradients[i - start, j]
            m = rows[place, dim + j]
            v = rows[place, 2 * dim + j]
            m += (g - m) * one_minus_1
            v += (g * g - v) * one_minus_2
            rows[place, dim + j] = m
            rows[place, 2 * dim + j] = v
            rows[place, j] -= m * alpha / (math.sqrt(v) + epsilon)
