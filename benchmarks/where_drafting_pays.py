"""Simulates methods that draft only where it pays, at modelled costs: `python benchmarks/where_drafting_pays.py`.

Nothing is timed, and no model runs. Costs are those of a roofline of LLaMA-3.1-8B on an H100, with the constants below.
A method holds these costs, and the true ones differ from them by up to 30 %. The decisions are the library's own: each
round calls `loop.draft`, the builder, `count_round` and the controller, from the prior on, so learning is included.
Drafts are scripted: the log-odds that a draft is accepted, given those before it, vary by NOISE around those of the
given rate, and the head's own estimate differs from them by NOISE again. A cell ends when the rows of the batch have
TOKENS new tokens on average. A batch has that many rows throughout, as where other texts take the place of finished
ones. The best fixed choice is the length whose expected time over the cell, by the true costs, is the least.
"""

import argparse
import dataclasses
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, final

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from jaxspec.controllers import LengthTS
from jaxspec.decoding import loop
from jaxspec.decoding.decode_state import DecodeState, select_rows
from jaxspec.decoding.drafter import Drafter, Drafts, Models
from jaxspec.decoding.round_records import count_round, of_drafter
from jaxspec.decoding.rule import Verdict
from jaxspec.decoding.speculation import Speculation
from jaxspec.decoding.strategy import CostTable
from jaxspec.decoding.tree import subtree
from jaxspec.methods.method import parse_method
from jaxspec.model.backend import TREE_SIZES_BY_COST
from jaxspec.model.config import LlamaConfig
from jaxspec.model.llama import Llama

RESULT = Path(__file__).parent / "results" / "where_drafting_pays.json"
# The roofline. A pass takes the longer of reading its bytes and computing its products, and each kernel's launch.
BANDWIDTH = 2.77e12  # bytes a second; of copies on an H100, by a run that is not in results/
PRODUCTS = 0.6 * 989e12  # operations a second: the data sheet's, times a share that is assumed
KERNEL = 2.4e-6  # seconds; of small kernels on an H100, likewise
LAYERS, WIDTH, MLP, KV, VOCAB, DRAFT_VOCAB = 32, 4096, 14336, 1024, 128_256, 32_000  # of the 8B; EAGLE-3's vocabulary
LAYER = 2 * WIDTH * WIDTH + 2 * WIDTH * KV + 3 * WIDTH * MLP  # weights of a layer
LAYER_KERNELS, LEVEL_KERNELS = 10, 40  # of a layer, and of choosing the nodes of a level; assumed
BLOCK, BLOCK_LAYERS = 16, 5  # of DFlash

HEADS = {"eagle3": "chain,length=12", "dflash": "chain,length=15"}
METHODS = ("length-ts", "expected-gain", "budgeted")
BUDGETED = "budgeted,width=1,depth=6,total=7,greedy_power=1"  # a chain; trees take long to simulate
BATCHES, CONTEXTS = (1, 4, 16, 64), (512, 8192, 32_768)
RATES = {f"{rate}": (rate, rate) for rate in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)} | {
    "rising": (0.4, 0.9),
    "falling": (0.9, 0.4),
}
PRICES = {
    "as held": (1.0, 1.0),
    "dearer": (1.3, 1.3),
    "cheaper": (0.7, 0.7),
    "levels dearer": (1.3, 0.7),
    "nodes dearer": (0.7, 1.3),
}
"""True prices of levels, and of all else that a round costs beyond a plain one, in units of those that are held."""
CELL = ("of_plain", "of_plain_bound", "of_best_bound", "best_fixed", "best_fixed_levels")
TOKENS, NOISE, SEEDS = 256, 1.0, 200


def seconds(batch: int, context: int, width: int, layers: int, weights: float, kernels: int = 0) -> float:
    """Modelled seconds of a pass of `width` tokens of each row through layers and other `weights`."""
    weights, tokens = weights + layers * LAYER, batch * width
    read = 2 * weights + batch * context * layers * 2 * KV * 2
    products = 2 * weights * tokens + 4 * layers * WIDTH * context * tokens
    return max(read / BANDWIDTH, products / PRODUCTS) + (layers * LAYER_KERNELS + kernels) * KERNEL


def target(batch: int, context: int, nodes: int) -> float:
    """Seconds of a forward of the target."""
    return seconds(batch, context, nodes, LAYERS, VOCAB * WIDTH)


def pieces(head: str, batch: int, context: int, nodes: int, few: int) -> tuple[float, float]:
    """Seconds of a level, and of all else of a round that verifies `nodes` nodes; of a round without drafts, if 1.

    Args:
        few: new tokens of a row that the drafter reads in its first pass; the others take a second one.
    """
    widths = [width for width in (min(nodes, few), nodes - few) if width > 0]
    if head == "eagle3":
        weights = 2 * WIDTH * WIDTH // 2 + WIDTH * KV * 2 + DRAFT_VOCAB * WIDTH  # reads two vectors; its LM head
        level = seconds(batch, context, 1, 1, weights, LEVEL_KERNELS)
        read = sum(seconds(batch, context, width, 1, weights + 3 * WIDTH * WIDTH, LAYER_KERNELS) for width in widths)
        first = -level  # the pass over new tokens gives the first level
    else:
        level, weights = LEVEL_KERNELS * KERNEL, BLOCK_LAYERS * WIDTH * (WIDTH + 2 * KV)
        read = sum(seconds(batch, 0, width, 0, weights, LAYER_KERNELS) for width in widths)
        first = seconds(batch, context, BLOCK, BLOCK_LAYERS, VOCAB * WIDTH)
    return level, target(batch, context, nodes) + read + (first if nodes > 1 else 0.0)


def table(head: str, batch: int, sizes: Sequence[int] = TREE_SIZES_BY_COST) -> CostTable:
    """The costs of verifying trees of these sizes, and of all else."""
    few, found = max(1, loop.READ_TOGETHER // batch), []
    for context in (CONTEXTS[0], *CONTEXTS[1:], 2 * CONTEXTS[-1]):
        verify = tuple((size, pieces(head, batch, context, size, few)[1]) for size in sizes)
        level, idle = pieces(head, batch, context, 1, few)
        plain = target(batch, context, 1)
        found.append(CostTable(plain, verify, ((1, level),), idle, context))
    return dataclasses.replace(found[0], longer=tuple(found[1:]))


def best_fixed(
    head: str, depth: int, batch: int, context: int, rates: tuple[float, float], prices: tuple[float, float]
) -> tuple[float, int]:
    """The speed of the best fixed choice in hindsight, in units of plain decoding's, and its levels; 0: plain."""
    position = np.arange(TOKENS) + 0.5
    accepted = lambda at: rates[0] + (rates[1] - rates[0]) * np.minimum(at / TOKENS, 1)
    plain, speeds = target(batch, context + TOKENS // 2, 1), [1.0]
    for levels in range(1, depth + 1):
        tokens = 1 + np.cumprod([accepted(position + i) for i in range(levels)], axis=0).sum(axis=0)
        level, rest = pieces(head, batch, context + TOKENS // 2, levels + 1, levels + 1)
        cost = plain + prices[0] * levels * level + prices[1] * (rest - plain)
        speeds.append(plain / (cost / tokens).mean())
    return max(speeds), int(np.argmax(speeds))


@final
@dataclasses.dataclass(frozen=True)
class Scripted(Drafter):
    """Drafts one token after each node, with the log-probability that its state has for the level."""

    name: ClassVar[str] = "scripted"

    def expand(self, models: Any, state: Any, prefix: Any, tree: Any, frontier: Any) -> tuple[Drafts, Any]:
        log_prob = jax.lax.dynamic_index_in_dim(state, frontier.level, axis=1)
        return Drafts(logits=log_prob[..., None], token=jnp.zeros((1, 1, 1), jnp.int32)), state


@chex.dataclass(frozen=True)
class Run:
    """A batch in the middle of decoding."""

    controller: Any
    produced: Int[Array, " B"]
    forwards: Float[Array, ""]  # time of one token's forward in each round, in units of the first context's
    levels: Float[Array, ""]  # time of levels, by the prices that are held
    rest: Float[Array, ""]  # time of all else, likewise
    plain: Float[Array, ""]  # time of plain decoding for the same tokens
    rounds: Int[Array, ""]
    idle: Int[Array, ""]  # rounds without drafts


TINY = LlamaConfig(
    vocab_size=2, hidden_size=2, intermediate_size=2, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=2
)
MODELS = Models(target=nnx.eval_shape(lambda: Llama(TINY, rngs=nnx.Rngs(0))), draft=None)  # nothing of it is used
GRID = np.linspace(-4, 6, 201)
MEANS = (1 / (1 + np.exp(-GRID[:, None] - NOISE * np.random.default_rng(0).normal(size=4000)))).mean(axis=1)


def centre(rate: Array) -> Array:
    """The log-odds around which those of single drafts have this mean acceptance."""
    return jnp.interp(rate, jnp.array(MEANS, jnp.float32), jnp.array(GRID, jnp.float32))


def one_round(spec: Speculation, true: CostTable, context: Array, rates: Array, key: Key[Array, ""], run: Run) -> Run:
    """A round of the method, and its costs. The method cannot see true prices, so they change no decision."""
    batch, depth = run.produced.shape[0], spec.builder.depth
    length = context + run.produced
    keys = jax.random.split(jax.random.fold_in(key, run.rounds), 4)
    at = jnp.minimum((run.produced[:, None] + jnp.arange(depth)) / TOKENS, 1)
    odds = centre(rates[0] + (rates[1] - rates[0]) * at) + NOISE * jax.random.normal(keys[0], (batch, depth))
    right = jax.random.uniform(keys[1], odds.shape) < jax.nn.sigmoid(odds)
    own = jax.nn.log_sigmoid(odds + NOISE * jax.random.normal(keys[2], odds.shape))

    done = jnp.zeros(batch, bool)
    unused: Any = dict.fromkeys(("sampling", "history", "log_prob", "trace"))
    state = DecodeState(
        tokens=jnp.zeros((batch, 1), jnp.int32), length=length, limit=length + depth + 1, done=done, finite=~done,
        keys=jax.random.split(keys[3], batch), eos=jnp.zeros(0, jnp.int32), cache=(), drafter=own,
        feature=jnp.zeros((batch, 1)), controller=run.controller, round=run.rounds, **unused,
    )  # fmt: skip
    spec = spec.at_context(length.max())
    grown, after = loop.draft(spec, MODELS, state, state.keys)
    selection = spec.builder.prune(grown)
    tree = grown if selection is None else subtree(grown, selection)
    accepted = jnp.minimum(jnp.cumprod(right, axis=1).sum(axis=1), tree.live.sum(axis=1) - 1)
    verdict = Verdict(
        path=jnp.zeros((batch, depth + 1), jnp.int32), accepted=accepted, next_token=jnp.zeros(batch, jnp.int32)
    )
    counts = count_round(done, grown, tree, verdict, accepted + 1)
    learnt = spec.controller.update(after.controller, of_drafter(counts, done))

    costs, levels = priced(true).at_context(length.max()), counts.levels.max()
    level, unit, tables = levels * costs.known_costs[0], true.plain, (true, *true.longer)
    plain = jnp.interp(
        length.mean(), jnp.array([t.context for t in tables]), jnp.array([t.plain / unit for t in tables])
    )
    cost = costs.round_cost(levels, 1.0 + counts.verified.max())
    return Run(
        controller=select_rows(done, after.controller, learnt),
        produced=run.produced + counts.committed,
        forwards=run.forwards + plain,
        levels=run.levels + level,
        rest=run.rest + cost - level - plain,
        plain=run.plain + plain * counts.committed.mean(),
        rounds=run.rounds + 1,
        idle=run.idle + (levels == 0),
    )


def priced(true: CostTable) -> Any:
    """Something that has the true costs of rounds."""
    return LengthTS().with_costs(true)


@partial(jax.jit, static_argnames=("spec", "true", "batch"))
def simulate(spec: Speculation, true: CostTable, batch: int, contexts: Array, rates: Array, keys: Array) -> Run:
    """Runs of every seed [S] at every context [C], from the prior."""

    def whole(context: Array, key: Array) -> Run:
        zero, none = jnp.zeros(()), jnp.zeros((), jnp.int32)
        times, counts = dict.fromkeys(("forwards", "levels", "rest", "plain"), zero), {"rounds": none, "idle": none}
        produced = jnp.zeros(batch, jnp.int32)
        start = Run(controller=spec.controller.init(batch), produced=produced, **times, **counts)
        step = partial(one_round, spec, true, context, rates, key)
        end = jax.lax.while_loop(lambda run: run.produced.mean() < TOKENS, step, start)
        return dataclasses.replace(end, controller=())

    return jax.vmap(jax.vmap(whole, in_axes=(None, 0)), in_axes=(0, None))(contexts, keys)


def spec_of(head: str, method: str, held: CostTable) -> Speculation:
    """The method for batches at temperature 0, with the head scripted."""
    found = parse_method(f"ngram+{BUDGETED if method == 'budgeted' else f'{HEADS[head]}+{method}'}").with_costs(held)
    return dataclasses.replace(found, drafter=Scripted()).speculation(True, tree_sizes=TREE_SIZES_BY_COST)


def entries(head: str, method: str, batch: int, seeds: int) -> Iterator[dict[str, Any]]:
    """The results of a method in a batch; each entry has a cell for each of PRICES, with the keys CELL."""
    spec = spec_of(head, method, table(head, batch))
    true, keys = table(head, batch, spec.verify_sizes[1:]), jax.random.split(jax.random.key(0), seeds)
    for name, rates in RATES.items():
        run = jax.tree.map(np.asarray, simulate(spec, true, batch, jnp.array(CONTEXTS), jnp.array(rates), keys))
        for i, context in enumerate(CONTEXTS):
            entry = {"head": head, "method": method, "batch": batch, "seeds": seeds, "context": context}
            entry |= {"acceptance": name, "plain_rounds": round(float(run.idle[i].sum() / run.rounds[i].sum()), 4)}
            for prices, (of_levels, of_rest) in PRICES.items():
                # In units of plain decoding's time for the same tokens.
                taken = (run.forwards[i] + of_levels * run.levels[i] + of_rest * run.rest[i]) / run.plain[i]
                bound = 1 / (taken.mean() + 1.96 * taken.std(ddof=1) / seeds**0.5)
                best, levels = best_fixed(head, spec.builder.depth, batch, context, rates, PRICES[prices])
                numbers = (1 / taken.mean(), bound, bound / best, best)
                entry[prices] = [*(round(float(number), 4) for number in numbers), levels]
            yield entry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--heads", nargs="+", default=list(HEADS))
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    found = []
    for batch in options.batches:
        for head in options.heads:
            for method in options.methods:
                found += entries(head, method, batch, options.seeds)
                print(head, method, batch, flush=True)
                lines = ",\n".join(map(json.dumps, found))
                options.out.write_text(f'{{"cell": {json.dumps(CELL)}, "entries": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
