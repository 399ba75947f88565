"""Puts a batch of requests on the device."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.layout import new_state
from jaxspec.decoding.prefill_buckets import power_of_two
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.decoding.speculation import Speculation
from jaxspec.host.processes import fetch, put_like

IDLE = Request([0], SamplingParams(max_new_tokens=1))
"""The request that pads a batch."""
MOST = 2**31 - 1  # the largest int32


def within_float32(temperature: float) -> float:
    """The temperature, limited to 1e-30 to 1e30 unless it is 0, so that dividing logits by it cannot overflow."""
    return min(max(temperature, 1e-30), 1e30) if temperature else 0.0


def data_parts() -> int:
    """Number of parts into which the current mesh shards the rows of a batch."""
    return jax.sharding.get_abstract_mesh().shape.get("data", 1)


def start(
    spec: Speculation,
    models: Models,
    requests: Sequence[Request],
    eos: Sequence[int],
    rows: int,
    later: Sequence[Request] = (),
    device: jax.sharding.Sharding | None = None,
) -> DecodeState:
    """Puts a batch of requests on the device, or on the current mesh.

    The batch is padded with finished rows to a power of two, and then to a multiple of the mesh's axis `data`.

    Args:
        eos: token ids that end a text.
        rows: rows of the caches, S.
        later: requests that will refill rows of this batch; see `start_rows`.
        device: as for `start_rows`.
    """
    batch = power_of_two(len(requests))
    batch += -batch % data_parts()
    filled = [*requests, *[IDLE] * (batch - len(requests))]
    return start_rows(spec, models, filled, eos, rows, [*requests, *later], device)


def start_rows(
    spec: Speculation,
    models: Models,
    requests: Sequence[Request],
    eos: Sequence[int],
    rows: int,
    among: Sequence[Request],
    device: jax.sharding.Sharding | None = None,
) -> DecodeState:
    """The state of exactly these requests; rows of IDLE are finished.

    Args:
        among: requests whose states must have the same structure: if one of them uses top-k or top-p, all states have
            an array for it.
        device: sharding of all arrays if there is no mesh; None: JAX's default.
    """
    tokens = np.zeros((len(requests), rows), np.int32)
    for row, request in enumerate(requests):
        tokens[row, : len(request.tokens)] = request.tokens

    def column(read: Callable[[Request], float], dtype: Any) -> np.ndarray:
        return np.array([read(request) for request in requests], dtype)

    lengths = column(lambda r: len(r.tokens), np.int32)
    top_k = column(lambda r: min(r.sampling.top_k, MOST), np.int32) if any(r.sampling.top_k for r in among) else None
    top_p = column(lambda r: r.sampling.top_p, np.float32) if any(r.sampling.top_p < 1 for r in among) else None
    temperature = column(lambda r: within_float32(r.sampling.temperature), np.float32)
    # NumPy's arrays as they are: one program takes them all to the device, where each of JAX's would be a call.
    return new_state(
        spec,
        models,
        device,
        seed=column(lambda r: r.sampling.seed % 2**32, np.uint32),
        index=column(lambda r: r.index, np.uint32),
        tokens=tokens,
        length=lengths,
        limit=lengths + column(lambda r: r.sampling.max_new_tokens, np.int32),
        done=np.array([request is IDLE for request in requests]),
        eos=np.array([*eos, *[-1] * (-len(eos) % 4 or 4 * (not eos))], np.int32),  # few shapes, few compilations
        sampling={"temperature": temperature, "top_k": top_k, "top_p": top_p},
    )


def restore_controller(controller: Any, learnt: Sequence[Any]) -> Any:
    """A controller's state of B rows, in which row i is replaced by `learnt[i]` if that is not None."""
    state = jax.tree.map(np.array, fetch(controller))
    for row, known in enumerate(learnt):
        if known is not None:
            for leaf, value in zip(jax.tree.leaves(state), jax.tree.leaves(known), strict=True):
                leaf[row] = value
    return jax.tree.map(put_like, state, controller)
