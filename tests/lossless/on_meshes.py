"""A program that `test_meshes.py` runs on eight CPU devices: methods on meshes, against plain decoding on one device.

Its arguments are METHOD@DATAxMODELxROWS@TEMPERATURE[,TOP_K,TOP_P], after --kernel where attention is to go through the
kernel for TPUs, which is interpreted then; it prints a line of JSON for each: the case, and what was found.
"""

import functools
import json
import sys
from typing import Any

import jax
import numpy as np

from jaxspec.decoding.drafter import Models
from jaxspec.decoding.speculation import Speculation
from jaxspec.methods.method import parse_method
from jaxspec.model import attention_kernel, sharding
from jaxspec.model.backend import use_mesh
from jaxspec.model.llama import Llama
from jaxspec.model.sharding import make_mesh, split_mesh
from tests.lossless.harness import decoded, models, requests, speculation, weights, with_dspark

NEW = 20
ROWS = 64
PROMPTS = [np.random.default_rng(0).integers(0, 24, size=n).tolist() for n in (1, 8, 13, 25, 2, 3, 5, 9)]
EVERYTHING = with_dspark(models(vocab_size=24, num_heads=4, num_kv_heads=2))
sharding.REPLICATED_BELOW = 0  # these heads are tiny, and are to be cut all the same


def texts(state: Any) -> list[list[int]]:
    """The new tokens of each row."""
    return [row[len(p) : len(p) + NEW].tolist() for row, p in zip(np.asarray(state.tokens), PROMPTS, strict=True)]


def decode(spec: Speculation, chosen: Models, sampling: str) -> Any:
    """The state after decoding all prompts."""
    temperature, top_k, top_p = (*sampling.split(","), "0", "1")[:3]
    asked: dict[str, Any] = {"temperature": float(temperature), "top_k": int(top_k), "top_p": float(top_p)}
    return decoded(spec, chosen, requests(PROMPTS, NEW, seed=3, **asked), rows=ROWS)


@functools.cache
def plain_texts(sampling: str) -> list[list[int]]:
    """Plain decoding's, on one device."""
    return texts(decode(speculation(parse_method("plain"), sampling == "0"), EVERYTHING, sampling))


def run(case: str) -> dict[str, Any]:
    """Decodes on a mesh; returns whether the mesh changed anything, and how the arrays are sharded."""
    name, sizes, sampling = case.rsplit("@", 2)
    data, model, rows = map(int, sizes.split("x"))
    mesh = split_mesh(make_mesh(data=data, model=model, rows=rows), EVERYTHING.target.config)
    spec = speculation(parse_method(name), greedy=sampling == "0")
    whole = weights(spec, EVERYTHING)
    shardings = lambda head: jax.tree.map(lambda leaf: leaf.sharding, sharding.place_head(head, mesh))
    place = lambda head: jax.device_put(head, shardings(head))
    draft = {type(spec.drafter): place(whole.draft)}
    cut = Models(target=place(whole.target), draft=draft, control=place(whole.control))
    with use_mesh(mesh):
        state = decode(spec, cut, sampling)
    return {
        "case": case,
        "tokens": texts(state) == plain_texts(sampling),
        "accepted": int(np.asarray(state.history.accepted).sum()),
        "weights": share(cut.target),
        "cache": share(state.cache),
    }


def share(arrays: Any) -> float:
    """The part of the bytes that the first device holds."""
    leaves = jax.tree.leaves(arrays)
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves) / sum(leaf.nbytes for leaf in leaves)


def main() -> None:
    assert isinstance(EVERYTHING.target, Llama) and jax.device_count() == 8
    cases = sys.argv[1:]
    if cases[0] == "--kernel":
        cases = cases[1:]
        attention_kernel.fits = lambda query, rows: True
        for name in ("attend_in_kernel", "attend_on_one_chip"):
            interpreted = functools.partial(getattr(attention_kernel, name), interpret=True)
            setattr(attention_kernel, name, interpreted)
    for case in cases:
        print(json.dumps(run(case)), flush=True)


if __name__ == "__main__":
    main()
