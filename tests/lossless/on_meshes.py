"""A program that `test_meshes.py` runs on eight CPU devices: methods on meshes, against plain decoding on one device.

Its arguments are METHOD@DATAxMODEL; it prints a line of JSON for each: the case, and what was found.
"""

import json
import sys
from typing import Any

import jax
import numpy as np

from jaxspec.decoding.drafter import Models
from jaxspec.methods.method import parse_method
from jaxspec.model import placement
from jaxspec.model.llama import Llama
from jaxspec.model.mesh import make_mesh, split
from tests.lossless.harness import decoded, models, requests, speculation, weights

NEW = 20
ROWS = 64
PROMPTS = [np.random.default_rng(0).integers(0, 24, size=n).tolist() for n in (1, 8, 13, 25, 2, 3, 5, 9)]
REQUESTS = requests(PROMPTS, NEW)
placement.REPLICATED_BELOW = 0  # these heads are tiny, and are to be cut all the same


def texts(state: Any) -> list[list[int]]:
    """The new tokens of each row."""
    return [row[len(p) : len(p) + NEW].tolist() for row, p in zip(np.asarray(state.tokens), PROMPTS, strict=True)]


def run(case: str, everything: Models, plain: list[list[int]]) -> dict[str, Any]:
    """Decodes on a mesh, and says whether that changed anything and how the arrays lay."""
    name, _, sizes = case.rpartition("@")
    data, model = map(int, sizes.split("x"))
    mesh = split(make_mesh(data=data, model=model), everything.target.config)
    spec = speculation(parse_method(name), greedy=True)
    whole = weights(spec, everything)
    shardings = lambda head: jax.tree.map(lambda leaf: leaf.sharding, placement.place_head(head, mesh))
    place = lambda head: jax.device_put(head, shardings(head))
    draft = {type(spec.drafter): place(whole.draft)}
    cut = Models(target=place(whole.target), draft=draft, control=place(whole.control))
    with jax.set_mesh(mesh):
        state = decoded(spec, cut, REQUESTS, rows=ROWS)
    return {
        "case": case,
        "tokens": texts(state) == plain,
        "accepted": int(np.asarray(state.history.accepted).sum()),
        "weights": share(cut.target),
        "cache": share(state.cache),
    }


def share(arrays: Any) -> float:
    """The part of the bytes that the first device holds."""
    leaves = jax.tree.leaves(arrays)
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves) / sum(leaf.nbytes for leaf in leaves)


def main() -> None:
    everything = models(vocab_size=24, num_heads=4, num_kv_heads=2)
    assert isinstance(everything.target, Llama) and jax.device_count() == 8
    spec = speculation(parse_method("plain"), greedy=True)
    plain = texts(decoded(spec, everything, REQUESTS, rows=ROWS))
    for case in sys.argv[1:]:
        print(json.dumps(run(case, everything, plain)), flush=True)


if __name__ == "__main__":
    main()
