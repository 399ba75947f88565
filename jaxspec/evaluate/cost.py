"""What a forward of the target and a level of drafting cost, measured on this device at a run's own shapes."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxspec import cache as kv
from jaxspec import decode
from jaxspec.engine import Engine, Request, shapes, start
from jaxspec.llama import Llama, forward, unembed
from jaxspec.protocols import Committed, Models, Prefix
from jaxspec.sampling import fold
from jaxspec.tree import levels

REPEATS = 7
LEAST_SECONDS = 0.1  # that one timed call takes

Job = Callable[[int], int]  # iterations to run -> units of work done


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds a piece of a round takes.

    Attributes:
        target: s_t(n) by n: one forward of the target over n tree nodes, and their logits.
        level: s_d by method: one drafted level, with its share of what the drafter learns from the verified tokens.
    """

    target: Mapping[int, float]
    level: Mapping[str, float]


def measure(engines: Mapping[str, Engine], requests: Sequence[Request]) -> Costs:
    """Times every method's pieces at the shapes that decoding `requests`, one batch, has.

    Medians over several calls, which alternate over the pieces.
    """
    greedy = all(request.temperature == 0 for request in requests)
    specs = {name: e.method.speculation(greedy, tree_sizes=e.tree_sizes) for name, e in engines.items()}
    sizes = sorted({1, *(size for spec in specs.values() for size in spec.verify_sizes)})
    rows = max(shapes(spec, requests)[1] for spec in specs.values())
    engine = next(iter(engines.values()))
    batch = start(specs[next(iter(engines))], engine.models, requests, (), rows).length.shape[0]
    drafting = [name for name, spec in specs.items() if spec.builder.depth]
    with engine.precision():
        jobs = [target_job(engine.models.target, batch, size, rows) for size in sizes]
        jobs += [draft_job(specs[name], engines[name].models, requests, rows) for name in drafting]
        seconds = seconds_per_unit(jobs)
    levels = dict(zip(drafting, seconds[len(sizes) :], strict=True))
    return Costs(
        target=dict(zip(sizes, seconds[: len(sizes)], strict=True)),
        level={name: levels.get(name, 0.0) for name in specs},
    )


def modelled_speedup(
    batches: Sequence[Sequence[np.ndarray]], target: Mapping[int, float], level: float, sizes: Collection[int]
) -> float:
    """Speedup over plain decoding that the counts of a run imply, free of engine overhead and of the noise of timing.

        s_t(1) · tokens  /  Σ_rounds (levels · s_d + s_t(smallest compiled size that holds the round's nodes))

    A batch goes through its rounds together: its tokens are those of its longest row, the levels and nodes of a round
    those of the row that has most.

    Args:
        batches: of histories [rounds, 5] (columns `decode.HISTORY`), one a row of the batch.
        target: s_t(n), seconds.
        level: s_d, seconds.
        sizes: tree sizes that verification was compiled for.
    """
    plain = modelled = 0.0
    for histories in batches:
        together = np.zeros((max(map(len, histories)), len(decode.HISTORY)), int)
        for history in histories:
            np.maximum(together[: len(history)], history, out=together[: len(history)])
        plain += target[1] * max(int(history[:, 0].sum()) for history in histories)
        for _, _, depth, _, verified in together.tolist():
            used = min((size for size in sizes if size > verified), default=max(sizes))
            modelled += depth * level + target[used]
    return plain / modelled if modelled else 0.0


def seconds_per_unit(jobs: Sequence[Job]) -> list[float]:
    """Median seconds a unit of each job, the jobs taking turns."""
    lengths = []
    for job in jobs:
        job(1)  # compiles
        began = time.perf_counter()
        job(2)
        lengths.append(max(2, math.ceil(2 * LEAST_SECONDS / (time.perf_counter() - began))))
    samples: list[list[float]] = [[] for _ in jobs]
    for _ in range(REPEATS):
        for job, length, found in zip(jobs, lengths, samples, strict=True):
            began = time.perf_counter()
            units = job(length)
            found.append((time.perf_counter() - began) / max(units, 1))
    return [statistics.median(found) for found in samples]


def target_job(target: Llama, batch: int, size: int, rows: int) -> Job:
    """Iterations are forwards of the target over `size` nodes a sequence, over a half-filled cache of `rows` rows."""
    cache = kv.allocate(target.config, batch, rows, target.norm[...].dtype)
    tokens, cached = jnp.zeros((batch, size), jnp.int32), jnp.full((batch,), rows // 2, jnp.int32)

    def job(iterations: int) -> int:
        jax.block_until_ready(_verify_many(target, tokens, cache, cached, jnp.int32(iterations)))
        return iterations

    return job


def draft_job(spec: decode.Speculation, models: Models, requests: Sequence[Request], rows: int) -> Job:
    """Iterations are draft phases over a half-filled cache; units are the levels that they drafted."""
    state = start(spec, models, requests, (), rows)
    # One token over and over: it lets prompt lookup match, so that it drafts to its full depth too.
    state = dataclasses.replace(
        state,
        tokens=jnp.zeros_like(state.tokens),
        length=jnp.full_like(state.length, rows // 2),
        done=jnp.zeros_like(state.done),
    )
    return lambda iterations: int(_draft_many(spec, models, state, jnp.int32(iterations)))


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
        says = unembed(target, out.hidden).argmax(axis=-1).astype(jnp.int32)
        # A row is written, as in decoding, so that nothing computed from the cache can be kept between iterations.
        rows = (kv.gather_path(layer, jnp.zeros((batch, 1), jnp.int32)) for layer in out.nodes)
        return says, _append(cache, rows, cached + jnp.minimum(says[:, 0], 0))

    return jax.lax.fori_loop(0, iterations, once, (tokens, cache))[0]


@partial(jax.jit, static_argnames="spec")
def _draft_many(
    spec: decode.Speculation, models: Models, state: decode.DecodeState, iterations: Int[Array, ""]
) -> Int[Array, ""]:
    """Levels that `iterations` draft phases went down, each followed by the drafter's `observe` of a whole path."""
    batch, path = state.length.shape[0], spec.builder.depth + 1
    hidden = jnp.broadcast_to(state.feature[:, None], (batch, path, state.feature.shape[1]))

    def once(at, carry):
        state, drafted = carry
        keys = fold(state.keys, at)
        prefix = Prefix(token=state.tokens, length=state.length, cache=state.cache)
        tree, drafter = decode.draft(
            spec, models, state, prefix, fold(keys, decode.DRAFT), fold(keys, decode.CONTROL)
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


def _append(cache, rows, start):
    return tuple(kv.append(layer, new, start) for layer, new in zip(cache, rows, strict=True))
