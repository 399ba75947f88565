"""A hash of all bytes of weights and tokens, to recognise them."""

import hashlib
from typing import Any

import jax
import numpy as np

from jaxspec.host.processes import fetch


def fingerprint(*trees: Any) -> str:
    """SHA-256 of all arrays in pytrees, with their names, dtypes and shapes. For sharded arrays all processes must call
    it."""
    found = hashlib.sha256()
    for path, leaf in jax.tree.leaves_with_path(trees):
        host = fetch(leaf) if isinstance(leaf, jax.Array) else leaf  # one at a time, to limit host memory
        array = np.ascontiguousarray(host)
        found.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n".encode())
        found.update(array.view(np.uint8).data if array.ndim else array.tobytes())
    return found.hexdigest()
