"""A target with random weights that fits into the memory of a device."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from jaxspec.checkpoint import memory, parameters
from jaxspec.checkpoint.config_json import CheckpointConfig
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.evaluate import simulate
from jaxspec.methods.method import Method, parse_method
from jaxspec.model.config import LlamaConfig
from jaxspec.model.placement import device_bytes, place_head
from jaxspec.model.quantization import quantized
from jaxspec.planning.program import one_chip
from jaxspec.planning.shapes import Target, models_of

CACHES = 8  # at the same time, each with the rows of part `shapes`: one for each timed program, and results
SHARE = 0.9  # of the free memory; the rest is for temporaries


def fitting(
    shape: LlamaConfig, dtype: str, quantize: str | None, rows: int, free: int, methods: Iterable[str]
) -> dict[str, Any]:
    """The largest number of layers, up to the whole model, that fits into `free` bytes; and the reason.

    Args:
        shape: the whole model.
        rows: rows of the KV cache.
        free: free memory of the device in bytes.
        methods: methods whose heads must fit too, one for each drafter.

    Raises:
        ValueError: not even one layer fits.
    """
    drafters = {method.drafter: method for method in map(parse_method, methods)}
    shapes = (dataclasses.replace(shape, num_layers=layers) for layers in (1, 2))
    one, two = (_bytes(of, dtype, quantize, rows, drafters.values()) for of in shapes)
    for layers in range(shape.num_layers, 0, -1):
        needed = max(first + (layers - 1) * (second - first) for first, second in zip(one, two, strict=True))
        if needed <= SHARE * free:
            weights = quantize or dtype
            return {
                "layers": layers,
                "of": shape.num_layers,
                "why": f"{layers} of {shape.num_layers} layers in {weights}, with heads and caches, take "
                f"{needed / 1e9:.2f} GB of the {free / 1e9:.2f} GB that are free, of which {SHARE:.0%} are used",
            }
    raise ValueError(f"{free / 1e9:.2f} GB of memory are free, too few for one layer")


def _bytes(
    shape: LlamaConfig, dtype: str, quantize: str | None, rows: int, methods: Iterable[Method]
) -> tuple[int, int]:
    """Bytes for decoding, and for quantisation, which holds floats and integers; both grow linearly with the layers."""
    weights = memory.required_bytes(shape, dtype)
    kept = memory.required_bytes(shape, dtype, quantize) if quantize else weights
    heads = [models_of(Target(shape), method, jnp.dtype(dtype)).draft for method in methods]
    drafting = sum(device_bytes(place_head(head, one_chip())) for head in heads)
    decoding = kept + drafting + CACHES * memory.kv_bytes(shape, 1, rows, dtype)
    return decoding, weights + kept if quantize else 0


def random_target(shape: LlamaConfig, dtype: str, quantize: str | None) -> Checkpoint:
    """A checkpoint in memory whose target has random weights."""
    target = simulate.randomise(parameters.abstract(shape), dtype)
    if quantize is not None:
        target = quantized(target, quantize)
    config = CheckpointConfig("llama", shape, dtype, dtype, "jaxspec", quantize=quantize)
    return Checkpoint(Path(), config, target, simulate.Bytes(shape.vocab_size), ())
