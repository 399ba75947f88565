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
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.decoding.drafter import HeadShape
from jaxspec.drafters.layer_skip import KeptBlocks, LayerSkip, SkipMask, draft, layers_of
from jaxspec.host import processes
from jaxspec.model.attention import Rounds, over_rounds
from jaxspec.model.kv_cache import KV
from jaxspec.model.llama import Llama
from jaxspec.model.rope import rotary
from jaxspec.train import options
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import BlockObjective
from jaxspec.train.methods import skip_search
from jaxspec.train.methods.edd import draw_rounds
from jaxspec.train.methods.skip_sets import aggressive, read_skip_set, write_skip_set
from jaxspec.train.run import heads
from jaxspec.train.run.folder import run_folder
from jaxspec.train.run.losses import Summed, distil
from jaxspec.train.run.packed import positions, read


def train(settings: options.LayerSkip) -> KeptBlocks:
    """Trains the blocks that a skip set keeps; see `heads.train`. The set of a resumed run must be the same."""
    drafter = LayerSkip()
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


def choose(settings: options.LayerSkip, target: Checkpoint) -> SkipMask:
    """The skip set to train: one on disk, or with --aggressive one from the trials of a search."""
    searched = target.path / "heads" / LayerSkip.name
    if not settings.aggressive:
        return read_skip_set(settings.skip_set or searched, target.config)
    trials = skip_search.read_trials(run_folder(searched, settings.search), target)
    return aggressive(trials, settings.attention_share, settings.mlp_share)


def initial(target: Llama, skips: SkipMask) -> KeptBlocks:
    """The target's own blocks, float32. Before training they draft exactly as the skip set does."""
    blocks = nnx.eval_shape(lambda: KeptBlocks(target.config, rngs=nnx.Rngs(0), skips=skips))
    return heads.started(blocks, target, {name: name for name in module_to_dict(blocks)})


def loss(
    blocks: KeptBlocks, target: Llama, batch: Windows, key: Key[Array, ""] | None, objective: BlockObjective
) -> Summed:
    """KL(target ‖ draft) of the next token's distribution, or the text's cross-entropy, over the tokens that count."""
    tokens, segment = jnp.asarray(batch.tokens), jnp.asarray(batch.segment)
    encoded = jax.lax.stop_gradient(read(target, tokens, segment))
    drafts = predict(blocks, target, tokens, encoded.nodes, draw_rounds(segment, objective, key))
    return distil(objective, drafts, target.logits(encoded.hidden), batch)


def predict(
    blocks: KeptBlocks, target: Llama, tokens: Int[Array, "B T"], verified: tuple[KV, ...], rounds: Rounds
) -> Float[Array, "B T V"]:
    """Logits after each token, drafted in these rounds, float32, from the target's keys and values of each layer."""
    angles, attends = rotary(target.config, positions(rounds.segment)), [over_rounds(rounds, kv) for kv in verified]
    hidden, _ = draft(target, blocks, blocks.skips, tokens, angles, attends, [None] * len(attends))
    return target.logits(hidden)
