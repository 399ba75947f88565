"""Draft & Verify's Appendix E: the blocks that a skip set keeps are trained further, to draft better.

A round of drafting reads the target's keys and values of the verified tokens, and the drafter's own of the root and the
drafted tokens. Training does the same, with EDD's dual-block mask.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.checkpoint.parameters import dict_to_module, module_to_dict
from jaxspec.decoding.drafter import HeadShape
from jaxspec.drafters.layer_skip import KeptBlocks
from jaxspec.drafters.layer_skip import LayerSkip as LayerSkipDrafter
from jaxspec.drafters.skip_mask import SkipMask, layers_of
from jaxspec.host import processes
from jaxspec.model.kv_cache import KV
from jaxspec.model.linear import rms_norm
from jaxspec.model.llama import Llama, embed, final_norm, keys_and_values, mlp_block, unembed
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import BlockObjective
from jaxspec.train.methods import dual_block, skip_search
from jaxspec.train.methods.dual_block import Blocks
from jaxspec.train.methods.skip_sets import aggressive, read_skip_set, write_skip_set
from jaxspec.train.options import LayerSkip
from jaxspec.train.run import heads
from jaxspec.train.run.folder import run_folder
from jaxspec.train.run.initial_weights import copies
from jaxspec.train.run.losses import Summed, distil
from jaxspec.train.run.packed import positions, residual_streams


def train(settings: LayerSkip) -> KeptBlocks:
    """Trains the blocks that a skip set keeps; see `heads.train`.

    Raises:
        ValueError: as `heads.train`; or the run was started with another skip set.
    """
    drafter = LayerSkipDrafter()
    with heads.open_job("layer-skip-trained", settings) as job:
        target, skips = job.target.config, choose(settings, job.target)
        begun = job.run.folder / "set"  # stored, because a search that was extended since may give another set
        if begun.exists() and read_skip_set(begun, target) != skips:
            raise ValueError(
                f"the run in {job.run.folder} was started with another set, the one in {begun}: name it with --set and "
                "another folder with --run, or remove the run to start anew"
            )
        if processes.is_first():
            write_skip_set(begun, target, skips)
        shape = HeadShape(target.model, {**layers_of(skips), "trained": True})
        blocks = initial(job.target.target, skips)
        return heads.train(job, drafter, shape, blocks, partial(loss, objective=settings.objective))


def choose(settings: LayerSkip, target: Checkpoint) -> SkipMask:
    """The skip set to train: one on disk, or with --aggressive one from the trials of a search."""
    searched = target.path / "heads" / LayerSkipDrafter.name
    if not settings.aggressive:
        return read_skip_set(settings.skip_set or searched, target.config)
    trials = skip_search.read_trials(run_folder(searched, settings.search), target)
    return aggressive(trials, settings.attention_share, settings.mlp_share)


def initial(target: Llama, skips: SkipMask) -> KeptBlocks:
    """The target's own blocks, float32. Before training they draft exactly as the skip set does."""
    blocks = nnx.eval_shape(lambda: KeptBlocks(target.config, rngs=nnx.Rngs(0), skips=skips))
    return dict_to_module(blocks, copies(module_to_dict(target), {name: name for name in module_to_dict(blocks)}))


def loss(
    blocks: KeptBlocks, target: Llama, batch: Windows, key: Key[Array, ""] | None, objective: BlockObjective
) -> Summed:
    """KL(target ‖ draft) of the next token's distribution, or the text's cross-entropy, over the tokens that count.

    The key draws the length of the mask's blocks; None: the middle of their range.
    """
    tokens, segment = jnp.asarray(batch.tokens), jnp.asarray(batch.segment)
    verified, features = jax.lax.stop_gradient(encode(target, blocks.skips, tokens, segment))
    drafts = predict(blocks, target, tokens, verified, dual_block.draw(segment, objective, key))
    return distil(objective, drafts, unembed(target, features), batch)


def encode(
    target: Llama, skips: SkipMask, tokens: Int[Array, "B T"], segment: Int[Array, "B T"]
) -> tuple[tuple[KV | None, ...], Float[Array, "B T D"]]:
    """The target's keys and values of each layer (None if drafting skips its attention), and its features."""
    (*into, last), at = residual_streams(target, tokens, segment), positions(segment)
    verified = tuple(
        None if skipped else keys_and_values(layer, target.config, x, at)
        for layer, x, skipped in zip(target.layers, into, skips.attention, strict=True)
    )
    return verified, final_norm(target, last)


def predict(
    blocks: KeptBlocks, target: Llama, tokens: Int[Array, "B T"], verified: tuple[KV | None, ...], cut: Blocks
) -> Float[Array, "B T V"]:
    """Logits after each token, drafted in the blocks `cut`; float32.

    Args:
        verified: the target's keys and values of each layer, from `encode`.
    """
    x, config = embed(target, tokens), target.config
    for layer, prefix, no_mlp in zip(blocks.layers, verified, blocks.skips.mlp, strict=True):
        if prefix is not None:
            x = dual_block.attention_block(layer, config, x, prefix, cut)
        if not no_mlp:
            x = mlp_block(layer, config, x)
    return unembed(target, rms_norm(x, blocks.norm[...], config.norm_eps))
