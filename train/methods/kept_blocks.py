"""Draft & Verify's Appendix E: the blocks that a skip set keeps are trained further, to draft better.

A round of drafting reads the target's keys and values of the verified tokens, and the drafter's own of the root and the
drafted tokens. Training does the same, with EDD's dual-block mask.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.decoding.drafter import HeadShape
from jaxspec.drafters.layer_skip import KeptBlocks, LayerSkip, SkipMask, draft, layers_of, skip
from jaxspec.host import processes
from jaxspec.model.attention import Rounds, over_rounds
from jaxspec.model.kv_cache import KV
from jaxspec.model.llama import Llama
from jaxspec.model.rope import rotary
from jaxspec.train import options
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import BlockObjective
from jaxspec.train.methods.edd import draw_rounds
from jaxspec.train.methods.skip_search import Trial, read_skip_set, read_trials, write_skip_set
from jaxspec.train.run import heads
from jaxspec.train.run.folder import run_folder
from jaxspec.train.run.packed import Summed, distil, positions, read


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
    trials = read_trials(run_folder(searched, settings.search), target)
    return aggressive(trials, settings.attention_share, settings.mlp_share)


def aggressive(trials: Sequence[Trial], attention: float, mlp: float) -> SkipMask:
    """The set that skips these shares (rounded) of attention and of MLP blocks, those with the largest gains.

    It skips more blocks than the best set of a search (Draft & Verify, Appendix E). The paper ranks blocks by
    "probabilities" of its optimiser, without details; here the ranking is by `gains` over all trials.
    """
    layers = len(trials[0].skips.attention)
    first = lambda gain, share: np.argsort(-gain, kind="stable")[: round(share * layers)].tolist()
    of_attention, of_mlp = np.split(gains(trials), 2)
    return skip(layers, first(of_attention, attention), first(of_mlp, mlp))


def gains(trials: Sequence[Trial]) -> np.ndarray:
    """[2 L], the gain in speedup from skipping each attention block, then each MLP block, the others unchanged.

    They are slopes of a linear regression of the trials' speedups on their switches. Differences of means would mix the
    gains: a search mostly tries sets near its best ones, which skip the same blocks. A ridge term, like one more
    trial in which a block made no difference, keeps the solution unique when there are few trials.
    """
    switches = np.array([each.corner for each in trials], float)
    speedups = np.array([each.speedup for each in trials])
    switches -= switches.mean(axis=0)
    normal = switches.T @ switches + np.eye(switches.shape[1])
    return np.linalg.solve(normal, switches.T @ (speedups - speedups.mean()))


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
