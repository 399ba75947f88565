"""EDD's training (its paper's §3.1): the target encodes a text once, and a one-layer LLaMA learns to draft on it.

The dual-block mask trains many rounds of drafting in one forward pass over packed windows. Each document is cut into
blocks of L tokens. A block is one round: its first token is the root, and it sees the hidden states of all earlier
blocks, which are verified by then. So with 0-based indices token i + 1 is predicted from tokens jL..i and hidden states
below jL, where j = ⌊i / L⌋. (Eq. 3 as printed also shows token i + 1 itself and h_jL, which no round has.)
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.decoding.drafter import Models
from jaxspec.drafters.edd import Edd, EddHead
from jaxspec.model.attention import Rounds, over_rounds
from jaxspec.model.llama import Llama
from jaxspec.train import options
from jaxspec.train.data.text import Windows
from jaxspec.train.hyperparameters import BlockObjective
from jaxspec.train.run import heads
from jaxspec.train.run.packed import Summed, distil, positions, target_features


def train(settings: options.Edd) -> EddHead:
    """Trains a head; see `heads.train`."""
    drafter = Edd()
    with heads.open_job(drafter.name, settings) as job:
        target = job.target.target
        shape = drafter.head_for(target.config, tap=settings.tap)
        tap = shape.settings["tap"]
        heads.check_range("--tap", 0, target.config.num_layers - 1, tap)
        return heads.train(job, drafter, shape, initial(target, tap), partial(loss, objective=settings.objective))


def initial(target: Llama, tap: int) -> EddHead:
    """A head initialised with the target's embedding, first layer, final norm and LM head.

    The paper initialises embedding and LM head this way and does not mention the layer. On the builtin model the first
    layer, which was trained on embeddings, led to a lower loss than a random one, the one after the tap, and the last.
    """
    drafter = Edd()
    head = nnx.eval_shape(lambda: drafter.build_head(drafter.head_for(target.config, tap=tap), nnx.Rngs(0)))
    return heads.started(head, target, {name: name.removeprefix("decoder.") for name in module_to_dict(head)})


def loss(head: EddHead, target: Llama, batch: Windows, key: Key[Array, ""] | None, objective: BlockObjective) -> Summed:
    """The objective under a dual-block mask, over the tokens that count: by default Eq. 4, KL(target ‖ draft)."""
    tokens, segment = jnp.asarray(batch.tokens), jnp.asarray(batch.segment)
    features, taps = target_features(target, batch, Edd().taps(Models(target=target, draft=head)))
    (hidden,) = taps or (features,)
    drafts = predict(head, tokens, hidden, draw_rounds(segment, objective, key))
    return distil(objective, drafts, target.logits(features), batch)


def predict(
    head: EddHead, tokens: Int[Array, "B T"], hidden: Float[Array, "B T D"], rounds: Rounds
) -> Float[Array, "B T V"]:
    """Logits after each token, drafted in these rounds; float32."""
    at = positions(rounds.segment)
    out = head.decoder(tokens, at, [over_rounds(rounds, head.soft_prompt(hidden, at))])
    return head.decoder.logits(out.hidden)


def draw_rounds(segment: Int[Array, "B T"], objective: BlockObjective, key: Key[Array, ""] | None) -> Rounds:
    """The rounds of a batch. The key draws their length from the objective's range; None: the middle of the range."""
    shortest, longest = objective.block_min, objective.block_max
    middle = jnp.asarray((shortest + longest) // 2)
    length = middle if key is None else jax.random.randint(key, (), shortest, longest + 1, jnp.int32)
    return rounds_of(segment, length, longest)


def rounds_of(segment: Int[Array, "B T"], length: Int[Array, ""], longest: int) -> Rounds:
    """Rounds of `length` tokens, at most `longest`, counted from each document's beginning."""
    root = jnp.arange(segment.shape[1]) - positions(segment) % length
    return Rounds(segment=segment, root=root, longest=longest)
