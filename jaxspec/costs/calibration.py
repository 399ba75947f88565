"""The table of costs that builders and controllers need: measured once, stored, and read again."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from jaxspec.builders import Eagle2
from jaxspec.checkpoint.heads import find_head
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.checkpoint.memory import available_bytes
from jaxspec.costs.stored import CostKey, digest, read_costs, store, table_of
from jaxspec.costs.timed_loops import ToLevel, half_way, resume, target_job
from jaxspec.costs.timing import interpolated, round_pair, seconds_per_iteration, spread
from jaxspec.decoding.cost_table import CostTable
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.prefill_buckets import power_of_two, shapes
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.host import environment
from jaxspec.host.processes import broadcast_from_first
from jaxspec.host.terminal import say
from jaxspec.methods.method import Method
from jaxspec.model import kv_cache as kv
from jaxspec.model.backend import tree_sizes
from jaxspec.model.quantization import leaf_bytes

WIDTHS = (1, 4, 16)  # nodes expanded at once; costs of other widths are interpolated
DEPTH = 5
NODES = 16  # most that a timed round verifies
TOKENS = 128  # tokens of the prompt and of the new text; so attention reads 128 rows on average
LONGER = (1024, 8192)  # likewise, where few costs are timed; those of other contexts are interpolated


def costs_of(model: Checkpoint, method: Method, weights: Any, batch_size: int) -> CostTable:
    """The cost table of the method's drafter on this device: the stored one, otherwise it is measured now.

    Several processes measure together. `weights` are the drafter's; `batch_size` is rounded up to a power of two.
    """
    key = costs_key(model, method, batch_size)

    def stored() -> dict[str, Any]:
        try:
            return {"table": dataclasses.asdict(read_costs(key))}
        except FileNotFoundError:
            return {"missing": f"{method} needs the costs of drafting and verification on this device"}
        except ValueError as error:
            return {"missing": str(error)}

    found = broadcast_from_first(stored)
    if "table" in found:
        return table_of(found["table"])
    say(f"{found['missing']}; measuring it once, which takes about a minute")
    table = measure(model, method, weights, batch_size)
    store(key, dataclasses.asdict(table))
    return table


def costs_key(model: Checkpoint, method: Method, batch_size: int) -> CostKey:
    """The key of a table of costs: everything that the times of a method's drafter depend on."""
    head = "" if method.head is None else digest(find_head(model.path, method.head))
    how, batch = how_run(model), power_of_two(batch_size)
    return CostKey(digest(model.path), head, repr(method.drafter), batch, how["dtype"], how["device"])


def how_run(model: Checkpoint) -> dict[str, str]:
    """`dtype` and `device` of a `CostKey`."""
    mesh = "" if model.mesh is None else f", mesh {dict(model.mesh.shape)}"
    dtype = dtype_of(str(model.target.dtype), model.config.quantize)
    return {"dtype": dtype, "device": environment.device() + mesh}


def dtype_of(dtype: str, quantize: str | None) -> str:
    """The dtype of a target's weights and their quantisation, as text."""
    return ", ".join(filter(None, (dtype, quantize)))


def measure(model: Checkpoint, method: Method, weights: Any, batch_size: int) -> CostTable:
    """Times drafted levels and verification, with half-filled caches, and a few of them over longer texts.

    Levels are EAGLE-2's, because the builders that use the table grow their levels in the same way.
    """
    sizes, batch = tree_sizes(by_cost=True), power_of_two(batch_size)
    # Without weights of its own a drafter copies tokens, and the number of nodes makes no difference.
    widths = WIDTHS if jax.tree.leaves(weights) or method.drafter.reuses_drafting else WIDTHS[:1]
    longest = model.config.model.usable_length // 2
    first = _measure_at(min(TOKENS, longest), model, method, weights, batch, sizes, widths)
    few = (sizes[0], sizes[-1]), widths[:1]  # each is a program that takes seconds to compile
    fitting = [tokens for tokens in LONGER if tokens <= longest and _fits(model, batch, tokens)]
    longer = [_measure_at(tokens, model, method, weights, batch, *few) for tokens in fitting]
    return dataclasses.replace(first, longer=tuple(_filled(first, table) for table in longer))


def _fits(model: Checkpoint, batch: int, tokens: int) -> bool:
    """Whether the target's cache for texts of twice as many tokens takes at most a third of the free memory."""
    shape, dtype = model.config.model, model.target.dtype
    cache = jax.eval_shape(lambda: kv.allocate(shape, batch, 2 * tokens, dtype))
    needed = sum(leaf_bytes(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(cache))
    chips = 1 if model.mesh is None else model.mesh.size
    return 3 * needed <= chips * available_bytes(environment.default_device())


def _filled(first: CostTable, few: CostTable) -> CostTable:
    """A table of few sizes and one width, with all of the first table's: what a longer text adds is interpolated."""
    before = dict(first.verify)
    added = interpolated({size: max(taken - before[size], 0.0) for size, taken in few.verify}, before)
    more = max(few.level[0][1] - first.level[0][1], 0.0)
    verify = tuple((size, taken + added[size]) for size, taken in first.verify)
    return dataclasses.replace(few, verify=verify, level=tuple((width, taken + more) for width, taken in first.level))


def _measure_at(
    tokens: int,
    model: Checkpoint,
    method: Method,
    weights: Any,
    batch: int,
    sizes: Sequence[int],
    widths: Sequence[int],
) -> CostTable:
    """The table for these tree sizes and widths, in the middle of decoding `tokens` tokens after as many."""
    models = Models(target=model.target, draft=weights)
    requests = [Request([0] * tokens, SamplingParams(max_new_tokens=tokens))] * batch

    def spec(width):
        total = max([2, *(size for size in tree_sizes() if size <= NODES)])
        builder = Eagle2(total=total, depth=DEPTH, width=width)
        timed = dataclasses.replace(method, builder=builder, controller=ToLevel(plain=True), history=0)
        return timed.speculation(True)

    rows = shapes(spec(1), requests)[1]
    with model.context():
        states = {width: half_way(spec(width), models, requests, rows) for width in widths}
        pairs = {width: round_pair(spec(width), models, state) for width, state in states.items()}
        timed = sorted({*spread(sizes), *(pair.nodes for pair in pairs.values())})
        forwards = {size: target_job(models.target, batch, size, rows) for size in {1, *timed}}
        wide = max(widths)
        resumed = lambda size: partial(resume, spec(wide), size, models, states[wide])
        verify = {size: resumed(size) if method.drafter.reuses_drafting else forwards[size] for size in timed}
        # Equal jobs are timed once. Verifying one node is a forward over one token, unless it reuses drafting's layers.
        rounds = [job for pair in pairs.values() for job in (pair.short, pair.full)]
        idle = pairs[widths[0]].idle
        assert idle is not None, "ToLevel(plain=True) has plain rounds"
        distinct = list(dict.fromkeys([forwards[1], *rounds, *verify.values(), idle]))
        seconds = dict(zip(distinct, seconds_per_iteration(distinct), strict=True))
    split = {
        width: pair.split(seconds[pair.short], seconds[pair.full], seconds[verify[pair.nodes]])
        for width, pair in pairs.items()
    }
    _, rest = split[widths[0]]
    verified = interpolated({size: seconds[verify[size]] for size in timed}, sizes)
    return CostTable(
        plain=seconds[forwards[1]],
        verify=tuple((size, verified[size] + rest) for size in sizes),
        level=tuple((width, level) for width, (level, _) in split.items()),
        idle=max(seconds[idle], seconds[forwards[1]]),  # anything below is noise, since it runs that forward
        context=rows // 2,
    )
