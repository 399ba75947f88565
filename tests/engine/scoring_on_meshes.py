"""Texts to score; and a program that `test_scoring.py` runs on eight CPU devices: on meshes, against the second one."""

import json
import tempfile
from pathlib import Path

import jax
import numpy as np

from jaxspec import load, make_mesh
from jaxspec.engine.scoring import scores
from tests.evaluate.tiny import checkpoint


def texts() -> list[tuple[list[int], list[int]]]:
    """Contexts and continuations of all lengths, some longer than the model, some alike but for the last token."""
    rng = np.random.default_rng(0)
    lengths = (
        (1, 1), (30, 3), (31, 1), (32, 1), (33, 40), (5, 100), (200, 56), (200, 57), (200, 100), (400, 7), (1, 256),
    )  # fmt: skip
    found = [(rng.integers(3, 256, size=a).tolist(), rng.integers(3, 256, size=b).tolist()) for a, b in lengths]
    return [*found, (found[1][0], found[1][1][:-1] + [7]), (found[1][0] + found[1][1][:-1], [9])]


def main() -> None:
    asked = texts()
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint(Path(folder) / "ckpt")
        with jax.default_device(jax.devices()[1]):
            one_device = load(path)
            alone = dict(scores(one_device, asked, 4))
        found = dict(scores(load(path, mesh=make_mesh(data=2, model=2, rows=2)), asked, 3))
    near = [abs(found[at].log_prob - one.log_prob) < 1e-3 for at, one in alone.items()]
    chosen = {device for leaf in jax.tree.leaves(one_device.target) for device in leaf.devices()} == {jax.devices()[1]}
    print(json.dumps(chosen and all(near) and all(found[at].greedy == one.greedy for at, one in alone.items())))


if __name__ == "__main__":
    main()
