"""The pieces of a round as programs of their own, each run many times over at the shapes that decoding has."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxspec.controllers.fixed import Fixed
from jaxspec.decoding import decode_state, loop, speculation
from jaxspec.decoding.batch import start
from jaxspec.decoding.drafter import Committed, Models, Prefix, Reuse
from jaxspec.decoding.request import Request
from jaxspec.decoding.sampling import argmax, fold
from jaxspec.decoding.tree import DraftTree, compact, first_nodes, init_tree, levels, root_frontier
from jaxspec.model import kv_cache as kv
from jaxspec.model.llama import Llama, forward, unembed

Job = Callable[[int], int]  # iterations to run -> units of work done


def target_job(target: Llama, batch: int, size: int, rows: int) -> Job:
    """Iterations are forwards of the target over `size` nodes a sequence, over a half-filled cache of `rows` rows."""
    cache = kv.allocate(target.config, batch, rows, target.norm[...].dtype)
    tokens, cached = jnp.zeros((batch, size), jnp.int32), jnp.full((batch,), rows // 2, jnp.int32)
    return _job(lambda iterations: _verify_many(target, tokens, cache, cached, iterations))


def half_way(
    spec: speculation.Speculation, models: Models, requests: Sequence[Request], rows: int
) -> decode_state.DecodeState:
    """A state of decoding `requests`, its cache half filled."""
    state = start(spec, models, requests, (), rows)
    # One token over and over: it lets prompt lookup match, so that it drafts to its full depth too.
    return dataclasses.replace(
        state,
        tokens=jnp.zeros_like(state.tokens),
        length=jnp.full_like(state.length, rows // 2),
        done=jnp.zeros_like(state.done),
    )


def draft_job(spec: speculation.Speculation, models: Models, state: decode_state.DecodeState) -> Job:
    """Iterations are draft phases of full depth, whatever the controller; units are the levels that they drafted."""
    fixed = dataclasses.replace(spec, controller=Fixed())
    return lambda iterations: int(_draft_many(fixed, models, state, jnp.int32(iterations)))


def resumes(spec: speculation.Speculation, models: Models, state: decode_state.DecodeState) -> bool:
    """Whether verification goes on from what drafting computed. Traced only: nothing is computed."""
    return jax.eval_shape(lambda models, state: _draft(spec, models, state)[1], models, state) is not None


def resume_job(spec: speculation.Speculation, models: Models, state: decode_state.DecodeState, size: int) -> Job:
    """Iterations are verifications of `size` nodes that go on from what drafting computed."""
    return _job(lambda iterations: _resume_many(spec, size, models, state, iterations))


def judge_job(spec: speculation.Speculation, models: Models, state: decode_state.DecodeState) -> Job:
    """Iterations are levels after which the controller decides."""
    return _job(lambda iterations: judge(spec, models, state, iterations))


def learn_job(spec: speculation.Speculation, state: decode_state.DecodeState) -> Job:
    """Iterations are rounds that the controller learns from."""
    return _job(lambda iterations: learn(spec, state, iterations))


def _job(run: Callable[[Int[Array, ""]], Any]) -> Job:
    """A job whose units are its iterations."""

    def job(iterations: int) -> int:
        jax.block_until_ready(run(jnp.int32(iterations)))
        return iterations

    return job


@jax.jit
def _verify_many(
    target: Llama,
    tokens: Int[Array, "B N"],
    cache: tuple[kv.KV, ...],
    cached: Int[Array, " B"],
    iterations: Int[Array, ""],
) -> Int[Array, "B N"]:
    """`iterations` forwards, each over the tokens that the one before says."""
    batch, size = tokens.shape
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((size, size), bool)), (batch, size, size))

    def once(_, carry):
        tokens, cache = carry
        out = forward(target, tokens, cached[:, None] + jnp.arange(size), mask, cache, cached)
        says = argmax(unembed(target, out.hidden))
        # A row is written, as in decoding, so that nothing computed from the cache can be kept between iterations.
        rows = (kv.gather_path(layer, jnp.zeros((batch, 1), jnp.int32)) for layer in out.nodes)
        return says, _append(cache, rows, cached + jnp.minimum(says[:, 0], 0))

    return jax.lax.fori_loop(0, iterations, once, (tokens, cache))[0]


def _draft(
    spec: speculation.Speculation, models: Models, state: decode_state.DecodeState
) -> tuple[DraftTree, Reuse | None]:
    """A tree of full depth, and what drafting it computed of the target."""
    fixed = dataclasses.replace(spec, controller=Fixed())
    prefix = Prefix(token=state.tokens, length=state.length, cache=state.cache)
    tree, drafter = loop.draft(fixed, models, state, prefix, state.keys, state.keys)
    return compact(spec.builder.prune(tree)), spec.drafter.reuse(drafter)


@partial(jax.jit, static_argnames=("spec", "size"))
def _resume_many(
    spec: speculation.Speculation,
    size: int,
    models: Models,
    state: decode_state.DecodeState,
    iterations: Int[Array, ""],
) -> Int[Array, "B N"]:
    """`iterations` verifications, each of the tokens that the one before says; the last node is always a leaf."""
    whole, reuse = _draft(spec, models, state)
    assert reuse is not None
    tree, batch = first_nodes(whole, size), state.length.shape[0]
    leaf = jnp.arange(reuse.known.shape[1]) == tree.slot[:, size - 1, None]
    reuse = dataclasses.replace(reuse, known=reuse.known & ~leaf)

    def once(_, carry):
        token, cache = carry
        prefix = Prefix(token=state.tokens, length=state.length, cache=cache)
        out, logits = loop.target_forward(spec, models, prefix, dataclasses.replace(tree, token=token), reuse)
        says = argmax(logits)
        rows = (kv.gather_path(layer, jnp.zeros((batch, 1), jnp.int32)) for layer in out.nodes)
        return says, _append(cache, rows, state.length + jnp.minimum(says[:, 0], 0))

    return jax.lax.fori_loop(0, iterations, once, (tree.token, state.cache))[0]


@partial(jax.jit, static_argnames="spec")
def _draft_many(
    spec: speculation.Speculation, models: Models, state: decode_state.DecodeState, iterations: Int[Array, ""]
) -> Int[Array, ""]:
    """Levels that `iterations` draft phases went down, each followed by the drafter's `observe` of a whole path."""
    batch, path = state.length.shape[0], spec.builder.depth + 1
    hidden = jnp.broadcast_to(state.feature[:, None], (batch, path, state.feature.shape[1]))

    def once(at, carry):
        state, drafted = carry
        keys = fold(state.keys, at)
        prefix = Prefix(token=state.tokens, length=state.length, cache=state.cache)
        tree, drafter = loop.draft(
            spec, models, state, prefix, fold(keys, loop.DRAFT), fold(keys, loop.CONTROL)
        )  # fmt: skip
        token = tree.token[:, :path]
        committed = Committed(
            start=state.length - 1,
            count=jnp.full((batch,), path),
            token=token,
            next_token=jnp.roll(token, -1, axis=1),
            hidden=hidden,
            taps=tuple(hidden for _ in spec.drafter.taps(models)),
        )
        blank = kv.allocate(models.target.config, batch, 1, state.feature.dtype)
        state = dataclasses.replace(
            state,
            cache=_append(state.cache, blank, state.length + jnp.minimum(token[:, -1], 0)),
            drafter=spec.drafter.observe(models, drafter, committed),
        )
        return state, drafted + levels(tree).max()

    return jax.lax.fori_loop(0, iterations, once, (state, jnp.zeros((), jnp.int32)))[1]


@partial(jax.jit, static_argnames="spec")
def judge(
    spec: speculation.Speculation, models: Models, state: decode_state.DecodeState, iterations: Int[Array, ""]
) -> Int[Array, " B"]:
    """How often each row would draft on, in `iterations` decisions after the first level."""
    prefix = Prefix(token=state.tokens, length=state.length, cache=state.cache)
    root = root_frontier(state.length.shape[0])
    vocab_size = models.target.config.vocab_size if spec.rule.keeps_probs else None
    tree = init_tree(state.tokens[:, 0], spec.builder.size, vocab_size)
    logits, hidden, _ = spec.drafter.root(models, state.drafter, prefix, tree)
    propose = lambda logits, count: spec.rule.propose(state.keys, state.sampling, logits, count)
    tree, newest = spec.builder.grow(propose, tree, root, logits[:, None], ~state.done)

    def once(at, kept):
        # Behind the barrier nothing is the same in every iteration, so that XLA computes all of it in each.
        seen, controller, kept = jax.lax.optimization_barrier(
            ((tree, newest, root, logits[:, None], hidden[:, None], state.feature), state.controller, kept)
        )
        evidence = loop.draft_signals(*seen)
        return kept + spec.controller.keep_drafting(models, fold(state.keys, at), controller, evidence)

    return jax.lax.fori_loop(0, iterations, once, jnp.zeros_like(state.length))


@partial(jax.jit, static_argnames="spec")
def learn(spec: speculation.Speculation, state: decode_state.DecodeState, iterations: Int[Array, ""]) -> Any:
    """The controller's state after `iterations` rounds of full depth, with none of the drafts accepted, one, two, …"""
    drafted = jnp.full_like(state.length, spec.builder.depth)
    once = lambda at, learnt: spec.controller.update(learnt, at % (drafted + 1), drafted)
    return jax.lax.fori_loop(0, iterations, once, state.controller)


def _append(cache, rows, start):
    return tuple(kv.append(layer, new, start) for layer, new in zip(cache, rows, strict=True))
