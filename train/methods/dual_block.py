"""EDD's dual-block mask (its paper's §3.1): many rounds of drafting in one forward pass over packed windows.

Each document is cut into blocks. A block is one round: its first token is the root, and it sees the hidden states of
all earlier blocks, which are verified by then. A query at a token predicts the next one. So with 0-based indices token
i + 1 is predicted from tokens jL..i and hidden states below jL, where j = ⌊i / L⌋. (Eq. 3 as printed also shows token i
+ 1 itself and h_jL, which no round has.)

EDD computes keys and values from those hidden states. Layer skipping uses the target's own keys and values, with the
same mask.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jaxspec.model.attention import project
from jaxspec.model.config import LlamaConfig
from jaxspec.model.kv_cache import KV
from jaxspec.model.linear import linear
from jaxspec.model.llama import Layer, attention_input
from jaxspec.model.rope import rotary
from jaxspec.train.run.packed import attend, in_blocks, positions
from jaxspec.train.settings.heads import BlockObjective


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Blocks:
    """How B windows of T tokens are cut.

    Attributes:
        segment: number of the document that a token is of.
        length: of each block.
        longest: what `length` is at most.
    """

    segment: Int[Array, "B T"]
    length: Int[Array, ""]
    longest: int = dataclasses.field(metadata={"static": True})


def draw(segment: Int[Array, "B T"], objective: BlockObjective, key: Key[Array, ""] | None) -> Blocks:
    """The blocks of a step, their length drawn from those that the objective allows; without a key, the middle one."""
    shortest, longest = objective.block_min, objective.block_max
    if key is None:
        return Blocks(segment, jnp.asarray((shortest + longest) // 2), longest)
    return Blocks(segment, jax.random.randint(key, (), shortest, longest + 1), longest)


def roots(segment: Int[Array, "B T"], length: Int[Array, ""]) -> Int[Array, "B T"]:
    """Where in the window the block of each token begins, in blocks of `length` from the beginning of its document."""
    return jnp.arange(segment.shape[1]) - positions(segment) % length


def mask(
    segment: Int[Array, "B T"], root: Int[Array, "B T"], start: int, end: int, low: int
) -> Bool[Array, "B queries keys"]:
    """What the queries at tokens `start`..`end` see: of hidden states 0..`end`, then of tokens `low`..`end`.

    Args:
        root: where the block of each token begins.
        low: at or before the beginning of the first query's block.
    """
    query, hidden, token = jnp.arange(start, end)[:, None], jnp.arange(end), jnp.arange(low, end)
    begins = root[:, start:end, None]
    verified = (hidden < begins) & (segment[:, start:end, None] == segment[:, None, :end])
    drafted = (begins <= token) & (token <= query)  # a block is inside one document
    return jnp.concatenate([verified, drafted], axis=2)


def attention_block(
    layer: Layer, config: LlamaConfig, x: Float[Array, "B T D"], soft: KV, blocks: Blocks
) -> Float[Array, "B T D"]:
    """The first half of a decoder layer on embedded tokens: attention over [hidden states ; tokens].

    Of the tokens, a block of queries meets none before its first block.

    Args:
        soft: the layer's keys and values of the T verified tokens.
    """
    segment, into = blocks.segment, attention_input(layer, config, x)
    query, key, value = project(layer.attention, config, into, *rotary(config, positions(segment)))
    soft_key, root = soft.k.swapaxes(2, 3), roots(segment, blocks.length)

    def block(start: int, end: int) -> Array:
        low = max(0, start - blocks.longest + 1)
        keys = jnp.concatenate([soft_key[:, :, :end], key[:, :, low:end]], axis=2)
        values = jnp.concatenate([soft.v[:, :, :end], value[:, :, low:end]], axis=2)
        return attend(query[:, :, :, start:end], keys, values, mask(segment, root, start, end, low))

    return x + linear(in_blocks(block, x.shape[1]), layer.attention.o)
