"""What is measured on text that training never saw."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxspec.model.placement import put_rows
from jaxspec.train.data import text
from jaxspec.train.data.text import Windows
from jaxspec.train.run.trainer import Loss


def mean_loss(loss: Loss, packed: Windows, batch_size: int) -> Callable[[Any, Any], float]:
    """(parameters, what is frozen) → the mean loss over all windows, without noise; compiled once.

    The rows that fill up the last batch do not count.
    """
    compiled = jax.jit(lambda params, frozen, batch: loss(params, frozen, batch, None))

    def measure(params: Any, frozen: Any) -> float:
        total = count = 0.0
        for start in range(0, len(packed.tokens), batch_size):
            rows = np.arange(start, start + batch_size)
            real = rows < len(packed.tokens)
            batch = text.take(packed, np.where(real, rows, 0))
            batch = put_rows(dataclasses.replace(batch, counted=batch.counted & real[:, None]))
            value, sums = compiled(params, frozen, batch)
            total, count = total + float(value), count + float(sums["count"])
        return total / max(count, 1)

    return measure
