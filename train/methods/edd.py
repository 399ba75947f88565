"""EDD's training (its paper's §3.1): the target encodes a text once, and a one-layer LLaMA learns to draft on it."""

import dataclasses
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from jaxspec.checkpoint.heads import HeadConfig, write_head
from jaxspec.checkpoint.parameters import dict_to_module, module_to_dict
from jaxspec.drafters.edd import NAME, EddHead, default_tap, soft_prompt
from jaxspec.model.llama import Llama, embed, final_norm, mlp_block, unembed
from jaxspec.model.quantization import dense
from jaxspec.train.data.text import Windows
from jaxspec.train.methods import dual_block
from jaxspec.train.methods.distillation import distil
from jaxspec.train.methods.packed import positions, residual_streams
from jaxspec.train.run import heads
from jaxspec.train.run.heads import Job
from jaxspec.train.run.trainer import Sums
from jaxspec.train.settings.objectives import BlockObjective


def train(job: Job, objective: BlockObjective, tap: int | None, dtype: str) -> EddHead:
    """Trains a head; see `heads.train`.

    Args:
        tap: layer of the target, from 0, whose output is the soft prompt; None for the fourth-to-last.
        dtype: of the head on disk.
    """
    if job.cache is not None:
        raise ValueError("--cache-features keeps the target's last features, and EDD reads another layer too: omit it")
    target = job.target.target
    count = target.config.num_layers
    tap = default_tap(count) if tap is None else tap
    if not 0 <= tap < count:
        raise ValueError(f"--tap must be from 0 to {count - 1} for this target, not {tap}")
    head = initial(target, tap)
    described = HeadConfig(drafter=NAME, model=head.config, dtype=dtype, source_dtype=dtype, settings={"tap": tap})

    def write(folder: Path, trained: EddHead) -> None:
        write_head(folder, described, trained)

    return heads.train(job, NAME, head, partial(loss, objective=objective), write)


def initial(target: Llama, tap: int) -> EddHead:
    """A head begun with the target's embedding, first layer, final norm and LM head.

    The paper starts embedding and LM head so, and says nothing of the layer. The first one is used to embeddings: on
    the builtin model it has a held-out loss of 1.22 after 100 steps, a random layer of 1.56, the one after the tap of
    2.72, and the last one of 2.64.
    """
    config = dataclasses.replace(target.config, num_layers=1)
    head, theirs = nnx.eval_shape(lambda: EddHead(config, rngs=nnx.Rngs(0), tap=tap)), module_to_dict(target)
    sources = {name: name.removeprefix("decoder.") for name in module_to_dict(head)}
    own = dense(theirs, sources.values())
    # Copies: training donates them, and the target needs its own.
    return dict_to_module(
        head, {name: jnp.array(own[source], jnp.float32, copy=True) for name, source in sources.items()}
    )


def loss(
    head: EddHead, target: Llama, batch: Windows, key: Key[Array, ""] | None, objective: BlockObjective
) -> tuple[Float[Array, ""], Sums]:
    """KL(target ‖ draft) of the next token's distribution under a dual-block mask, over the tokens that count (Eq. 4).

    With a key, the length of the mask's blocks is drawn from it; without, it is the middle one.
    """
    tokens, segment = jnp.asarray(batch.tokens), jnp.asarray(batch.segment)
    hidden, features = jax.lax.stop_gradient(encode(target, tokens, segment, head.tap))
    shortest, longest = objective.block_min, objective.block_max
    length = dual_block.draw_length(shortest, longest, key)
    drafts = predict(head, tokens, hidden, segment, length, longest)
    return distil(objective.goal, drafts, unembed(target, features), batch)


def encode(
    target: Llama, tokens: Int[Array, "B T"], segment: Int[Array, "B T"], tap: int
) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"]]:
    """The hidden states that EDD reads, and the target's features, in one forward."""
    after = residual_streams(target, tokens, segment)
    features = final_norm(target, after[-1])
    return (after[tap] if tap + 1 < len(after) else features), features


def predict(
    head: EddHead,
    tokens: Int[Array, "B T"],
    hidden: Float[Array, "B T D"],
    segment: Int[Array, "B T"],
    length: Int[Array, ""],
    longest: int,
) -> Float[Array, "B T V"]:
    """Logits, float32, after each token, drafted in blocks of `length`, which is at most `longest`."""
    decoder, soft = head.decoder, soft_prompt(head, hidden, positions(segment))
    x = embed(decoder, tokens)
    x = dual_block.attention_block(decoder.layers[0], head.config, x, soft, segment, length, longest)
    return unembed(decoder, final_norm(decoder, mlp_block(decoder.layers[0], head.config, x)))
