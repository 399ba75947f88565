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
from jaxspec.train.hyperparameters import BlockObjective
from jaxspec.train.run.packed import attend, in_blocks, positions


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Blocks:
    """The blocks of B windows of T tokens.

    Attributes:
        segment: number of each token's document.
        length: tokens of a block.
        longest: upper bound of `length`.
    """

    segment: Int[Array, "B T"]
    length: Int[Array, ""]
    longest: int = dataclasses.field(metadata={"static": True})


def draw(segment: Int[Array, "B T"], objective: BlockObjective, key: Key[Array, ""] | None) -> Blocks:
    """The blocks of a step. The key draws their length from the objective's range; None: the middle of the range."""
    shortest, longest = objective.block_min, objective.block_max
    if key is None:
        return Blocks(segment, jnp.asarray((shortest + longest) // 2), longest)
    return Blocks(segment, jax.random.randint(key, (), shortest, longest + 1), longest)


def roots(segment: Int[Array, "B T"], length: Int[Array, ""]) -> Int[Array, "B T"]:
    """Index in the window of the first token of each token's block. Blocks are counted from a document's beginning."""
    return jnp.arange(segment.shape[1]) - positions(segment) % length


def mask(
    segment: Int[Array, "B T"], root: Int[Array, "B T"], start: int, end: int, low: int
) -> Bool[Array, "B queries keys"]:
    """Mask of queries `start` to `end` - 1. Keys are the hidden states 0 to `end` - 1, then tokens `low` to `end` - 1.

    Args:
        root: index of the first token of each token's block.
        low: at most the first query's `root`.
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
