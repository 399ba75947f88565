"""The programs that are timed to find the costs of a round, at decoding's shapes.

A part that runs alone and repeatedly has its weights in the processor's cache, which it does not in the loop. So a
drafted level is not timed alone. Its cost is the difference between a round of many levels and a round of one.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from jaxspec.builders.top_paths import TopPaths, TreeLimits
from jaxspec.controllers import Fixed
from jaxspec.decoding import loop
from jaxspec.decoding.batch import padded, start
from jaxspec.decoding.builder import TreeBuilder
from jaxspec.decoding.controller import Controller, DraftSignals, draft_signals
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.request import Request
from jaxspec.decoding.round_records import RoundCounts
from jaxspec.decoding.rule import Draws
from jaxspec.decoding.sampling import argmax, fold
from jaxspec.decoding.speculation import Speculation
from jaxspec.decoding.tree import Rows, compaction, first_nodes, init_tree, root_frontier, subtree
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import causal_mask
from jaxspec.model.backend import Jitted
from jaxspec.model.llama import Llama, Output, forward

_jitted = partial(Jitted, dtype_of=lambda spec, models, *_: models.target.dtype, options={})  # as `loop.decode`
Levels = Int[Array, " B"]
Job = Callable[[int], Any]  # runs this many iterations; its result may not be computed yet


def target_job(target: Llama, batch: int, size: int, rows: int) -> Job:
    """A job of forwards of the target over `size` nodes per sequence, with a half-filled cache of `rows` rows."""
    cache = kv.allocate(target.config, batch, rows, target.dtype)
    tokens, cached = jnp.zeros((batch, size), jnp.int32), jnp.full((batch,), rows // 2, jnp.int32)
    return partial(verify_many, target, tokens, cache, cached)


def half_way(spec: Speculation, models: Models, requests: Sequence[Request], rows: int) -> DecodeState:
    """A state in the middle of decoding `requests`, with a half-filled cache."""
    state = start(spec, models, padded(requests), (), rows)
    length, limit = jnp.full_like(state.length, rows // 2), jnp.full_like(state.limit, rows)
    # The text repeats one token, so that prompt lookup drafts to full depth too.
    tokens, done = jnp.zeros_like(state.tokens), jnp.zeros_like(state.done)
    return dataclasses.replace(state, tokens=tokens, length=length, limit=limit, done=done)


def round_job(spec: Speculation, models: Models, state: DecodeState, levels: int) -> Job:
    """A job of whole rounds that draft `levels` levels, if the tree is deep enough, whatever the controller."""
    at_level = dataclasses.replace(state, controller=jnp.full_like(state.length, levels))
    return partial(rounds, to_depth(spec), models, at_level)


@partial(_jitted, dtype_of=lambda target, *_: target.dtype)
def verify_many(
    target: Llama,
    tokens: Int[Array, "B N"],
    cache: tuple[kv.KV, ...],
    cached: Int[Array, " B"],
    iterations: Int[Array, ""],
) -> Int[Array, "B N"]:
    """`iterations` forwards, each over the tokens that the forward before predicted."""
    batch, size = tokens.shape
    mask = causal_mask(batch, size)

    def once(_, carry):
        tokens, cache = carry
        out = forward(target, tokens, cached[:, None] + jnp.arange(size), mask, cache, cached)
        best = argmax(target.logits(out.hidden))
        # A row is written, as in decoding, so that XLA cannot reuse results from the cache between iterations.
        return best, kv.append(cache, _first_row(out), cached, after=best[:, 0])

    return jax.lax.fori_loop(0, iterations, once, (tokens, cache))[0]


def _first_row(out: Output) -> tuple[kv.KV, ...]:
    """Keys and values of the first node of each row."""
    path = jnp.zeros((out.hidden.shape[0], 1), jnp.int32)
    return tuple(kv.gather_path(layer, path) for layer in out.nodes)


@partial(_jitted, dtype_of=lambda spec, size, models, *_: models.target.dtype, static_argnames=("spec", "size"))
def resume(
    spec: Speculation, size: int, models: Models, state: DecodeState, iterations: Int[Array, ""]
) -> Int[Array, "B N"]:
    """`iterations` verifications that reuse the layers of drafting, each of the tokens that the one before predicted.
    The last node is always a leaf."""
    fixed, builder = dataclasses.replace(spec, controller=Fixed()), spec.builder
    grown, drafted = loop.draft(fixed, models, state, state.keys)
    selection = builder.prune(grown) or compaction(grown)
    tree = first_nodes(subtree(grown, selection), size)
    slots = selection.node[:, :size].at[:, -1].set(builder.size - 1)  # in the last level, never expanded
    leaves = 1 if builder.is_chain else max(1, size - 1)

    def once(_: Int[Array, ""], carry: tuple) -> tuple:
        token, cache = carry
        prefix = dataclasses.replace(state.prefix, cache=cache)
        nodes = dataclasses.replace(tree, token=token)
        out = spec.drafter.target_forward(models, drafted.drafter, prefix, nodes, slots, leaves)
        best = argmax(models.target.logits(out.hidden))
        return best, kv.append(cache, _first_row(out), state.length, after=best[:, 0])

    return jax.lax.fori_loop(0, iterations, once, (tree.token, state.cache))[0]


@final
@dataclasses.dataclass(frozen=True)
class ToLevel(Controller):
    """Drafts down to the level in its state, so that one program can run rounds of any depth."""

    name: ClassVar[str] = "to-level"
    plain: bool = False  # as `Controller.goes_plain`

    @property
    def goes_plain(self) -> bool:
        return self.plain

    def init(self, batch: int) -> Levels:
        return jnp.zeros(batch, jnp.int32)

    def begin(
        self, models: Models, keys: Key[Array, " B"], state: Levels, unfinished: Rows, builder: TreeBuilder
    ) -> tuple[Levels, Rows]:
        return state, state > 0

    def keep_drafting(self, models: Models, keys: Key[Array, " B"], state: Levels, signals: DraftSignals) -> Rows:
        return signals.level < state


@final
@dataclasses.dataclass(frozen=True)
class FullDepth(TopPaths):
    """A tree of top paths to full depth, in place of a builder that may end early."""

    name: ClassVar[str] = "full-depth"
    within: TreeLimits

    @property
    def limits(self) -> TreeLimits:
        return self.within

    @property
    def depth(self) -> int:
        return self.within.depth


def to_depth(spec: Speculation) -> Speculation:
    """The method with `ToLevel`, trees of full depth, and a single size of verification (one node in plain rounds)."""
    builder = FullDepth(spec.builder.limits) if isinstance(spec.builder, TopPaths) else spec.builder
    controller = ToLevel(plain=spec.controller.goes_plain)
    return dataclasses.replace(spec, builder=builder, controller=controller, tree_sizes=())


@partial(_jitted, static_argnames="spec")
def rounds(spec: Speculation, models: Models, state: DecodeState, iterations: Int[Array, ""]) -> Int[Array, ""]:
    """Runs `iterations` rounds at the same length of the text, and returns the number of levels of the last one."""

    def once(_: Int[Array, ""], before: DecodeState) -> DecodeState:
        after = loop.one_round(spec, models, before)
        return dataclasses.replace(after, length=state.length, done=state.done, round=state.round)

    after = jax.lax.fori_loop(0, iterations, once, state)
    return jax.lax.dynamic_index_in_dim(after.history.levels, state.round, axis=1, keepdims=False).max()


@partial(_jitted, static_argnames="spec")
def judge(spec: Speculation, models: Models, state: DecodeState, iterations: Int[Array, ""]) -> Int[Array, " B"]:
    """Runs `iterations` decisions after the first level, and returns how often each row would draft another level."""
    root = root_frontier(state.length.shape[0])
    vocab_size = models.target.config.vocab_size if spec.rule.keeps_probs else None
    tree = init_tree(state.tokens[:, 0], spec.builder.size, vocab_size)
    controller, _ = spec.controller.begin(models, state.keys, state.controller, ~state.done, spec.builder)
    drafts, _ = spec.drafter.root(models, state.drafter, state.prefix, tree)
    noise = loop.noise(models, state.keys, state.length)
    draws = Draws(sampling=state.sampling, keys=state.keys, noise=noise, level=root.level)
    propose = partial(spec.rule.propose, draws, drafts, 1)
    tree, newest = spec.builder.grow(propose, tree, root, ~state.done)

    def once(at, kept):
        # The barrier keeps XLA from computing the decision only once.
        seen, now, kept = jax.lax.optimization_barrier(((tree, newest, root, drafts, state.feature), controller, kept))
        signals = draft_signals(*seen)
        now = spec.controller.on_level(now, signals)
        return kept + spec.controller.keep_drafting(models, fold(state.keys, at), now, signals)

    return jax.lax.fori_loop(0, iterations, once, jnp.zeros_like(state.length))


@partial(jax.jit, static_argnames="spec")
def learn(spec: Speculation, state: DecodeState, iterations: Int[Array, ""]) -> Any:
    """The controller's state after `iterations` rounds of full depth, in which 0, 1, 2, … drafts were accepted."""
    depth = jnp.full_like(state.length, spec.builder.depth)

    def once(at: Int[Array, ""], learnt: Any) -> Any:
        accepted = at % (depth + 1)
        whole, drafts = accepted + 1, dict.fromkeys(("levels", "drafted", "verified"), depth)
        return spec.controller.update(learnt, RoundCounts(committed=whole, accepted=accepted, uncut=whole, **drafts))

    return jax.lax.fori_loop(0, iterations, once, state.controller)
