"""Loads a checkpoint: the target, its tokenizer, and the names of its heads."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from rich import filesize

from jaxspec.checkpoint import config_json, memory, parameters
from jaxspec.checkpoint.builtin import locate
from jaxspec.checkpoint.config_json import DTYPES, CheckpointConfig, CheckpointError
from jaxspec.checkpoint.tokenizer import load_tokenizer
from jaxspec.host.terminal import say
from jaxspec.model.backend import default_dtype, use_mesh
from jaxspec.model.llama import Llama
from jaxspec.model.sharding import parse_mesh, shared_heads, split_mesh

SLOW = 10.0  # seconds of loading after which its speed is printed


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A target in memory.

    Attributes:
        tokenizer: a `Tokenizer`; None if the folder has none, and then prompts are token ids.
        heads: names found under CKPT/heads.
        mesh: the mesh of its weights, from `sharding.split_mesh`; None: one device.
    """

    path: Path
    config: CheckpointConfig
    target: Llama
    tokenizer: Any
    heads: tuple[str, ...]
    mesh: Mesh | None = None

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """The context under which all its programs are compiled and run: the mesh, and the precision of products."""
        # Accelerators round the factors of float32 products to less by default.
        wide = self.target.dtype == jnp.float32
        with (
            jax.default_matmul_precision("highest") if wide else contextlib.nullcontext(),
            # Checks that a program around it may have turned on.
            jax.numpy_rank_promotion("allow"),
            jax.numpy_dtype_promotion("standard"),
            jax.transfer_guard("allow"),
            use_mesh(self.mesh),
        ):
            yield


def load(
    path: str | Path, dtype: str | None = None, mesh: Mesh | str | None = None, quantize: str | None = None
) -> Checkpoint:
    """Loads a checkpoint that `jaxspec-convert llama` wrote.

    Args:
        path: a folder, `builtin`, a model that `jaxspec get` has fetched, or a hub id ORG/NAME.
        dtype: of weights and computation; by default the device's (`backend.default_dtype`).
        mesh: from `make_mesh`, or text such as `data=2,model=4`; each device reads its shards of the weights.
        quantize: quantise the target's kernels to `int8` or `int4` while loading (see `model/quantization.py`), and
            record it in the result's `config`; None: as on disk.

    Raises:
        CheckpointError: the checkpoint is missing, damaged, too large for the memory, or quantised otherwise.
        ValueError: no such dtype, mesh or way to quantise, or Qwix is not installed.
    """
    path = locate(path)
    config = config_json.read_config(path)
    chosen, how = compute_dtype(dtype), parameters.quantization(config, quantize, path)
    mesh = parse_mesh(mesh) if isinstance(mesh, str) else mesh
    mesh = None if mesh is None else split_mesh(mesh, config.model)
    memory.check_fits(config.model, chosen, how, mesh)
    if mesh is not None and (shared := shared_heads(mesh, config.model)) and jax.process_index() == 0:
        say(shared)
    began = time.monotonic()
    target = parameters.restore(path, chosen, mesh, how)
    if (seconds := time.monotonic() - began) > SLOW:
        arrays = parameters.module_to_dict(target).values()
        # A device's replica of a part counts once.
        parts = ({str(part.index): part.data.nbytes for part in array.addressable_shards} for array in arrays)
        size = sum(sum(sizes.values()) for sizes in parts)
        speed = f"{filesize.decimal(size)} in {seconds:.0f} s, {filesize.decimal(int(size / seconds))} a second"
        say(f"loaded {path}: {speed}{'' if jax.process_count() == 1 else f' on host {jax.process_index()}'}")
    return Checkpoint(
        path=path,
        config=dataclasses.replace(config, quantize=how),
        target=target,
        tokenizer=load_tokenizer(path),
        heads=config_json.head_names(path),
        mesh=mesh,
    )


def compute_dtype(dtype: str | None) -> jnp.dtype:
    """The given dtype, or the device's. Raises ValueError if it is not one of `DTYPES`."""
    dtype = default_dtype() if dtype is None else dtype
    if dtype not in DTYPES:
        raise ValueError(f"dtype is one of {', '.join(DTYPES)}, not {dtype!r}")
    return jnp.dtype(dtype)


def training_dtype(dtype: str | None) -> jnp.dtype:
    """The given dtype, or the device's, but never float16 by default, because gradients may overflow."""
    usual = default_dtype()
    return compute_dtype(dtype or ("bfloat16" if usual == "float16" else usual))


def check_same_vocabulary(target: CheckpointConfig, tokenizer: Any, draft: Path) -> None:
    """Raises CheckpointError where a draft checkpoint's tokens differ from those of the target's `tokenizer`."""
    # Models of one family may pad the vocabulary of one tokenizer to different sizes.
    other = load_tokenizer(draft)
    if other is None or tokenizer is None:
        if (size := config_json.read_config(draft).model.vocab_size) != (own := target.model.vocab_size):
            raise CheckpointError(
                f"the draft model at {draft} has a vocabulary of {size} tokens and the target one of {own}; put "
                "tokenizer files into both folders, so that they can be compared"
            )
    elif (theirs := other.get_vocab()) != (ours := tokenizer.get_vocab()):
        token = min(theirs.items() ^ ours.items())[0]
        raise CheckpointError(
            f"the draft model at {draft} has another vocabulary than the target (they differ at {token!r}); "
            "a draft model needs the target's own tokenizer"
        )
