"""Block heads: a few layers draft a whole block in one pass (DFlash, arXiv:2602.06036, and its descendants).

The block consists of the root and mask tokens after it. In every layer its tokens attend to each other and to the
context: keys and values of verified tokens, computed from fused features of several target layers. The drafted tokens
are not inputs, so each level of the tree has one marginal distribution, shared by all nodes of that level. Embedding
and LM head are the target's, or the head's own.

The context is normalised once and is the same in all layers. A layer applies only its key and value projections to it,
without its input norm. The root has no feature yet, so it is part of the block and not of the context.

`DflashOptions` has what differs between published kinds: the row at a position drafts that position's token (DFlash) or
the next one (DSpark, arXiv:2607.05147: `sample_from_anchor` in its configs); the block is bidirectional or
causal (JetSpec, arXiv:2606.18394); in DSpark, a Markov term makes the logits depend on the token before, and a
confidence head estimates whether the next draft is accepted.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, final

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxspec.decoding.drafter import FLOAT32, Committed, Drafter, Drafts, HeadShape, Models, Prefix, for_each
from jaxspec.decoding.tree import DraftTree, Frontier, take
from jaxspec.drafters import draft_vocabulary
from jaxspec.host.arguments import integer
from jaxspec.model import kv_cache as kv
from jaxspec.model import split_rows
from jaxspec.model.attention import Attend, causal_mask, in_window, over_cache, visible
from jaxspec.model.config import LlamaConfig
from jaxspec.model.layers import Linear, RMSNorm
from jaxspec.model.llama import STREAM, Angles, Layer, Llama, logits_of, look_up, run_layers
from jaxspec.model.rope import rotary
from jaxspec.model.sharding import constrain

LAYERS, BLOCK = 5, 16
"""The sizes of most heads that DFlash's authors publish."""


@dataclasses.dataclass(frozen=True)
class DflashOptions:
    """Options of a head, besides the shape of its layers."""

    taps: tuple[int, ...]  # layers of the target whose inputs are fused, in order
    block: int  # rows of a block in training, the root's included; drafting cannot use longer blocks
    mask_token: int  # id whose embedding stands for each unknown token
    draft_vocabulary: str | None = None  # mask of the tokens that it can draft, from `to_mask`; None: all
    own_embedding: bool = False  # it has its own embedding instead of the target's
    own_head: bool = False  # it has its own LM head instead of the target's; with a draft vocabulary always
    markov_rank: int = 0  # rank of its Markov term; 0: it has none
    anchor: bool = False  # each row drafts the token after its position, so the root's row drafts too
    causal: tuple[bool, ...] = ()  # by layer: a row sees only the rows of its block up to itself; empty: no layer
    windows: tuple[int, ...] = ()  # by layer: positions that a row sees, its own included; 0: all; empty: no windows
    confidence: Literal["none", "hidden", "markov"] = "none"
    """What its confidence head reads: the row's hidden state, with `markov` also the Markov embedding of the token."""
    temperatures: tuple[float, ...] = ()  # by level: divisors of the confidence head's logits; empty: 1, uncalibrated

    def __post_init__(self) -> None:
        if not self.taps:
            raise ValueError("a DFlash head reads at least one layer of its target")
        if self.confidence not in ("none", "hidden", "markov"):
            raise ValueError(f"confidence must be none, hidden or markov, not {self.confidence!r}")
        if self.confidence == "markov" and not self.markov_rank:
            raise ValueError("a confidence head that reads Markov embeddings needs a Markov term")
        for window in self.windows:
            integer("windows", window, 0)
        if not all(0 < divisor < float("inf") for divisor in self.temperatures):
            raise ValueError(f"temperatures must be above 0, not {self.temperatures}")
        integer("block", self.block, 2, 4096)
        integer("mask_token", self.mask_token, 0)
        integer("markov_rank", self.markov_rank, 0, 65_536)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "DflashOptions":
        """The options in `HeadShape.settings`, where tuples are lists, as in JSON."""
        values: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in settings.items()}
        return cls(**values)

    @property
    def kind(self) -> str:
        """The published kind that it is: DSpark, JetSpec or DFlash."""
        if self.markov_rank or self.confidence != "none":
            return "DSpark"
        return "JetSpec" if self.causal and all(self.causal) and not any(self.windows) else "DFlash"

    @property
    def levels(self) -> int:
        """Number of tokens that a block drafts."""
        return self.block if self.anchor else self.block - 1

    @property
    def with_lm_head(self) -> bool:
        """Whether the head has an LM head."""
        return self.own_head or self.draft_vocabulary is not None

    @property
    def settings(self) -> dict[str, Any]:
        """The options as JSON values."""
        values = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


class MarkovTerm(nnx.Module):
    """DSpark's Markov term: a matrix [V, C] of rank R, added to the logits of the C tokens that may follow a token."""

    def __init__(self, vocab_size: int, rank: int, mask: str | None, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        rows = jax.random.normal(rngs.params(), (vocab_size, rank), dtype)
        self.embedding = nnx.Param(rows, axes=("vocab", "embed"))
        self.lm_head = draft_vocabulary.build_lm_head(rank, mask, vocab_size, rngs, dtype)

    def __call__(self, before: Int[Array, "B W"]) -> Float[Array, "B W C"]:
        """What is added to the logits after these tokens, float32."""
        return logits_of(self.lm_head, look_up(self.embedding, before))


class ConfidenceHead(nnx.Module):
    """DSpark's confidence head: a logistic regression on a row's hidden state, and maybe on the token before."""

    def __init__(self, width: int, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        self.proj = Linear(rngs, (width, 1), ("input", "vocab"), bias=True, dtype=dtype)

    def __call__(self, hidden: Float[Array, "B W E"]) -> Float[Array, "B W"]:
        """The log-odds that the next draft is accepted, if all drafts before it are; float32."""
        return logits_of(self.proj, hidden)[..., 0]


class DflashHead(nnx.Module):
    """A block head: layers that draft blocks of tokens over the target's fused hidden states."""

    def __init__(self, config: LlamaConfig, options: DflashOptions, *, rngs: nnx.Rngs, dtype: jnp.dtype = FLOAT32):
        self.config, self.options = config, options
        width, vocab = config.hidden_size, config.vocab_size
        self.causal = options.causal or (False,) * config.num_layers
        self.windows = options.windows or (0,) * config.num_layers
        self.fc = Linear(rngs, (len(options.taps) * width, width), ("input", "embed"), bias=False, dtype=dtype)
        self.context_norm = RMSNorm(width, config.norm_eps, dtype)
        self.layers = nnx.List([Layer(rngs, config, dtype) for _ in range(config.num_layers)])
        self.norm = RMSNorm(width, config.norm_eps, dtype)
        table = nnx.Param(jnp.zeros((vocab, width), dtype), axes=("vocab", "embed"))
        self.embedding = table if options.own_embedding else None
        rank, mask = options.markov_rank, options.draft_vocabulary
        own = draft_vocabulary.build_lm_head(width, mask, vocab, rngs, dtype)
        self.lm_head = own if options.with_lm_head else None
        self.markov = MarkovTerm(vocab, rank, mask, rngs=rngs, dtype=dtype) if rank else None
        reads = {"none": 0, "hidden": width, "markov": width + rank}[options.confidence]
        self.confidence = ConfidenceHead(reads, rngs=rngs, dtype=dtype) if reads else None

    def context(self, taps: tuple[Float[Array, "B T D"], ...], positions: Int[Array, "B T"]) -> tuple[kv.KV, ...]:
        """Each layer's keys and values of verified tokens, from the target's hidden states."""
        fused, angles = self.fuse(taps), rotary(self.config, positions)
        projected = [layer.attention.project(fused, angles) for layer in self.layers]
        return tuple(kv.KV(k=key.mT, v=value) for _, key, value in projected)

    def fuse(self, taps: tuple[Float[Array, "B T D"], ...]) -> Float[Array, "B T D"]:
        """The target's hidden states, fused and normalised."""
        joined = constrain(jnp.concatenate(taps, axis=-1), *STREAM)
        return constrain(self.context_norm(self.fc(joined)), *STREAM)

    def masked_block(self, root: Int[Array, " B"], width: int) -> Int[Array, "B W"]:
        """The tokens of a block: the root, then mask tokens."""
        return jnp.where(jnp.arange(width) == 0, root[:, None], self.options.mask_token)

    def __call__(
        self, target: Llama, tokens: Int[Array, "B W"], angles: Angles, attends: Sequence[Attend]
    ) -> Float[Array, "B W D"]:
        """The LM head's input at each row of the blocks. `attends`: each layer's attention to block and context."""
        x, _, _ = run_layers(self.layers, target.embed(tokens, self.embedding), angles, attends)
        return constrain(self.norm(x), *STREAM)

    def logits(self, target: Llama, hidden: Float[Array, "*B D"]) -> Float[Array, "*B C"]:
        """Logits of the tokens that the head can draft, float32, without the Markov term."""
        return target.logits(hidden, self.lm_head)

    def drafting_rows(self, hidden: Float[Array, "*B rows D"]) -> Float[Array, "*B levels D"]:
        """The rows of blocks that draft: all of them, or all but the root's."""
        return hidden if self.options.anchor else hidden[..., 1:, :]

    def acceptance_odds(
        self, hidden: Float[Array, "B #W D"], token: Int[Array, "B W"], level: Int[Array, ""] | int | None = None
    ) -> Float[Array, "B W"] | None:
        """The log-odds that the draft after each token is accepted, calibrated if a `level` is given.

        None without a confidence head. It depends on rows and tokens before that draft only.
        """
        if self.confidence is None:
            return None
        if self.options.confidence == "markov" and self.markov is not None:
            before = look_up(self.markov.embedding, token).astype(hidden.dtype)
            hidden = jnp.concatenate([for_each(hidden, token.shape[1]), before], axis=-1)
        odds = self.confidence(hidden)
        if level is None or not self.options.temperatures:
            return odds
        divisors = jnp.array(self.options.temperatures)
        return odds / divisors[jnp.minimum(level, len(divisors) - 1)]


@chex.dataclass(frozen=True)
class DflashState:
    """Each layer's keys and values of the context, and during drafting the outputs of the block."""

    cache: tuple[kv.KV, ...]  # one row for each committed token, except the root
    logits: Float[Array, "B levels C"] | None = None  # logits of each level, over the tokens that the head can draft
    hidden: Float[Array, "B levels D"] | None = None  # hidden states that gave the logits


def official_taps(num_layers: int, count: int) -> tuple[int, ...]:
    """The `count` default taps of DFlash's code, from layer 2 to n - 2. In a target of few layers some coincide."""
    outputs = [round(1 + i * (num_layers - 4) / (count - 1)) for i in range(count)] if count > 1 else [num_layers // 2]
    return tuple(min(max(layer + 1, 0), num_layers - 1) for layer in outputs)


def of_level(head: DflashHead, state: DflashState, level: Int[Array, ""] | int, token: Int[Array, "B W"]) -> Drafts:
    """The drafts after nodes with these tokens at depth `level`; none beyond the block."""
    assert state.logits is not None and state.hidden is not None, "root comes before expand"
    # Past the last level, the slice is the last one.
    at_level = lambda values: jax.lax.dynamic_slice_in_dim(values, level, 1, axis=1)
    mask, vocab = head.options.draft_vocabulary, head.config.vocab_size
    logits, hidden = at_level(state.logits), at_level(state.hidden)
    odds = head.acceptance_odds(hidden, token, level)
    if head.markov is not None:
        logits = logits + head.markov(token)
        hidden = for_each(hidden, token.shape[1])
    drafts = draft_vocabulary.drafts_of(mask, vocab, logits, hidden)
    return dataclasses.replace(
        drafts,
        logits=jnp.where(level < state.logits.shape[1], drafts.logits, -jnp.inf),
        log_accept=None if odds is None else jax.nn.log_sigmoid(odds),
    )


def over_block(
    head: DflashHead, cache: tuple[kv.KV, ...], before: Int[Array, " B"], place: Int[Array, "B W"]
) -> list[Attend]:
    """The attention of each layer for a block at the positions `place`, after `before` verified tokens."""
    batch, width = place.shape
    rows = [kv.capacity((layer,)) for layer in cache]
    kinds, seen = list(zip(head.causal, head.windows, rows, strict=True)), {}
    for causal, window, size in dict.fromkeys(kinds):
        mask = causal_mask(batch, width) if causal else jnp.ones((batch, width, width), bool)
        sees = visible(mask, before, size)
        seen[causal, window, size] = in_window(sees, window, place, place, size) if window else sees
    return [over_cache(seen[kind], (layer,))[0] for kind, layer in zip(kinds, cache, strict=True)]


def in_ring(window: int) -> bool:
    """Whether the cache of a layer with this window (0: none) holds only the last positions (`kv.write_ring`)."""
    return window > 0 and split_rows.parts() == 1


def held_positions(window: int, cache_len: int) -> int:
    """Number of positions that the cache of a layer with this window holds."""
    return min(window, cache_len) if in_ring(window) else cache_len


@final
@dataclasses.dataclass(frozen=True)
class Dflash(Drafter):
    """Drafts a whole block in one pass. Without a Markov term, all nodes of a level share one distribution (DFlash).

    `block` is the largest number of tokens of a round, the root and the drafts. The head's own limit applies too.
    """

    name: ClassVar[str] = "dflash"
    rank: ClassVar[int | None] = 3
    has_head: ClassVar[bool] = True
    block: int = BLOCK

    def __post_init__(self) -> None:
        self.require(block=2)

    @property
    def levels_at_once(self) -> int:
        return self.block - 1

    def estimates(self, draft: DflashHead) -> bool:
        return draft.options.confidence != "none"

    def fitted(self, draft: DflashHead) -> "Dflash":
        return dataclasses.replace(self, block=min(self.block, draft.options.levels + 1))

    # --- its weights

    def head_for(
        self,
        target: LlamaConfig,
        layers: int = LAYERS,
        block: int | None = None,
        taps: Iterable[int] | None = None,
        mask_token: int | None = None,
        **options: Any,
    ) -> HeadShape:
        """Layers of `LlamaConfig.bare_layers`, with norms of queries and keys.

        Args:
            layers: decoder layers of the head.
            block: rows of a block, the root's included; None: the drafter's `block`.
            taps: layers of the target whose inputs it reads, from 0; None: as in DFlash's own code.
            mask_token: id of the mask token; None: the last of the vocabulary. Any id works, because a block contains
                no token of the text except the root, which comes first.
            options: other fields of `DflashOptions`.
        """
        chosen = DflashOptions(
            taps=official_taps(target.num_layers, layers) if taps is None else tuple(taps),
            block=self.block if block is None else block,
            mask_token=target.vocab_size - 1 if mask_token is None else mask_token,
            **options,
        )
        return HeadShape(target.bare_layers(layers, qk_norm=True), chosen.settings)

    def build_head(self, shape: HeadShape, rngs: nnx.Rngs, dtype: jnp.dtype = FLOAT32) -> DflashHead:
        return DflashHead(shape.model, DflashOptions.from_settings(shape.settings), rngs=rngs, dtype=dtype)

    def check_head(self, shape: HeadShape, target: LlamaConfig) -> None:
        options = DflashOptions.from_settings(shape.settings)
        if outside := [tap for tap in options.taps if not 0 <= tap < target.num_layers]:
            raise ValueError(
                f"reads the input of layer {outside[0]} (from 0) and this target has {target.num_layers}: it is for "
                "another target, or its layer numbers follow another convention (--taps)"
            )
        if options.mask_token >= target.vocab_size:
            raise ValueError(
                f"has the mask token {options.mask_token}, and the target's ids go from 0 to {target.vocab_size - 1}"
            )
        if not shape.model.qk_norm:
            raise ValueError("has no norms of queries and keys, but a DFlash head needs them")
        for name, values in (("causal", options.causal), ("windows", options.windows)):
            if len(values) not in (0, shape.model.num_layers):
                raise ValueError(f"has {name} for {len(values)} layers, and it has {shape.model.num_layers}")

    # --- its part in the loop

    def taps(self, models: Models) -> tuple[int, ...]:
        return models.draft.options.taps

    def init(self, models: Models, batch: int, cache_len: int) -> DflashState:
        config, dtype = models.draft.config, models.target.dtype
        sizes = [held_positions(window, cache_len) for window in models.draft.windows]
        return DflashState(cache=tuple(kv.allocate(config, batch, size, dtype, 1)[0] for size in sizes))

    def enlarge(self, models: Models, state: DflashState, cache_len: int) -> DflashState:
        cache = []
        for window, layer in zip(models.draft.windows, state.cache, strict=True):
            size = held_positions(window, cache_len)  # a layer that holds its whole window stays as it is
            cache.append(layer if size == kv.capacity((layer,)) else kv.enlarge((layer,), size)[0])
        return DflashState(cache=tuple(cache))

    def observe(self, models: Models, state: DflashState, committed: Committed) -> DflashState:
        new = models.draft.context(committed.taps, committed.position)
        # For `kv.append`: computed from the verdict, so the write waits for the cache's reads.
        after = committed.taps[0][:, 0].argmax(-1)
        windows, cache = models.draft.windows, list(state.cache)
        for ring in (False, True):
            layers = [i for i, window in enumerate(windows) if in_ring(window) == ring]
            if layers:
                old, rows = (tuple(each[i] for i in layers) for each in (state.cache, new))
                count = {"count": committed.count} if ring else {}
                write = kv.write_ring if ring else kv.append
                for i, layer in zip(layers, write(old, rows, committed.start, **count, after=after), strict=True):
                    cache[i] = layer
        return DflashState(cache=tuple(cache))

    def root(self, models: Models, state: DflashState, prefix: Prefix, tree: DraftTree) -> tuple[Drafts, DflashState]:
        head: DflashHead = models.draft
        width, before = min(self.block - head.options.anchor, head.options.block), prefix.length - 1
        place = before[:, None] + jnp.arange(width)
        tokens, attends = head.masked_block(tree.token[:, 0], width), over_block(head, state.cache, before, place)
        hidden = head.drafting_rows(head(models.target, tokens, rotary(head.config, place), attends))
        drafted = dataclasses.replace(state, logits=head.logits(models.target, hidden), hidden=hidden)
        return of_level(head, drafted, 0, tree.token[:, :1]), drafted

    def expand(
        self, models: Models, state: DflashState, prefix: Prefix, tree: DraftTree, frontier: Frontier
    ) -> tuple[Drafts, DflashState]:
        return of_level(models.draft, state, frontier.level, take(tree.token, frontier.node)), state
