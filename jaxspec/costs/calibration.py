"""Costs that builders and controllers need, and speeds of methods: measured once, and stored in the user's cache."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax

from jaxspec.builders import Eagle2
from jaxspec.checkpoint.checksums import NAME as CHECKSUMS
from jaxspec.checkpoint.heads import CALIBRATION, find_head
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.checkpoint.memory import available_bytes
from jaxspec.controllers.cali_ts import FOLDER
from jaxspec.costs.timed_loops import ToLevel
from jaxspec.costs.timing import interpolated, piece_times
from jaxspec.decoding.drafter import Models
from jaxspec.decoding.prefill_buckets import power_of_two, shapes
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.decoding.strategy import CostTable
from jaxspec.host import environment
from jaxspec.host.atomic import write_whole
from jaxspec.host.processes import broadcast_from_first, is_first
from jaxspec.host.terminal import say
from jaxspec.methods.method import Method
from jaxspec.model import kv_cache as kv
from jaxspec.model.backend import tree_sizes
from jaxspec.model.quantization import leaf_bytes

T = TypeVar("T")
FORMAT = {"format": "jaxspec-costs", "version": 4}
SPEEDS = "tokens_per_second"
WIDTHS = (1, 4, 16)  # nodes expanded at once; costs of other widths are interpolated
DEPTH = 5
NODES = 16  # most that a timed round verifies
TOKENS = 128  # tokens of the prompt and of the new text; so attention reads 128 rows on average
LONGER = (1024, 8192)  # likewise, where few costs are timed; those of other contexts are interpolated


@dataclasses.dataclass(frozen=True)
class CostKey:
    """What a stored table depends on: what was measured, and on which device. Other versions make it stale."""

    target: str  # SHA-256 of the target's config.json, which holds every shape
    head: str  # likewise of the head, empty without one; in a table of speeds, a hash of all weights
    drafter: str  # the strategy with its settings; in a table of speeds, `all methods`
    batch: int  # sequences decoded together
    dtype: str
    device: str
    versions: dict[str, str] = dataclasses.field(
        default_factory=lambda: {name: environment.versions()[name] for name in ("jaxspec", "jax", "jaxlib")}
    )

    @property
    def file(self) -> Path:
        """The file of its table, in the user's cache folder."""
        lasting = {name: value for name, value in dataclasses.asdict(self).items() if name != "versions"}
        name = hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()[:16]
        return folder() / f"{name}.json"


def costs_of(model: Checkpoint, method: Method, weights: Any, batch_size: int) -> CostTable:
    """The cost table of the method's drafter on this device: the stored one, otherwise it is measured now.

    Several processes measure together. `weights` are the drafter's; `batch_size` is rounded up to a power of two.
    """
    key = costs_key(model, method.fitted(weights), batch_size)

    def stored() -> dict[str, Any]:
        try:
            return {"table": dataclasses.asdict(read_costs(key))}
        except FileNotFoundError:
            return {"missing": f"{method} needs the costs of drafting and verification on this device"}
        except ValueError as error:
            return {"missing": str(error)}

    answer = broadcast_from_first(stored)
    if "table" in answer:
        return table_of(answer["table"])
    say(f"{answer['missing']}; measuring it once, which takes about a minute")
    table = measure(model, method, weights, batch_size)
    store(key, dataclasses.asdict(table))
    return table


def costs_key(model: Checkpoint, method: Method, batch_size: int) -> CostKey:
    """The key of a table of costs: everything that the times of a fitted method's drafter depend on."""
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
    """The table `few` with all sizes and widths of the first one; the time that a longer text adds is interpolated."""
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
    """The table for these sizes and widths, in the middle of decoding `tokens` tokens after a prompt of as many."""
    requests = [Request([0] * tokens, SamplingParams(max_new_tokens=tokens))] * batch
    total = max([2, *(size for size in tree_sizes() if size <= NODES)])
    timed = dataclasses.replace(method, controller=ToLevel(plain=True), history=0)
    builders = {width: Eagle2(total=total, depth=DEPTH, width=width) for width in widths}
    specs = {width: dataclasses.replace(timed, builder=each).speculation(True) for width, each in builders.items()}
    rows = max(shapes(spec, requests)[1] for spec in specs.values())
    models = dict.fromkeys(specs, Models(target=model.target, draft=weights))
    by_width = piece_times(specs, models, requests, rows, model.context, sizes)
    first, widest = by_width[widths[0]], by_width[max(widths)]
    assert first.idle is not None, "ToLevel(plain=True) has plain rounds"
    return CostTable(
        plain=first.plain,
        verify=tuple((size, widest.verify[size] + first.rest) for size in sizes),
        level=tuple((width, costs.level) for width, costs in by_width.items()),
        idle=max(first.idle, first.plain),  # anything below is noise, since it runs that forward
        context=rows // 2,
    )


# --- stored tables


def folder() -> Path:
    """The folder of all tables."""
    return environment.cache_folder() / "costs"


def digest(folder: Path) -> str:
    """SHA-256 of a checkpoint's or head's config.json."""
    return hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()


def speeds_key(path: Path, heads: Sequence[str], *, batch_size: int, dtype: str, device: str) -> CostKey:
    """The key of a table of speeds of a checkpoint's methods. Acceptance depends on the weights, so all are hashed."""
    folders = (path, *(find_head(path, head) for head in sorted(heads)))
    weights = "".join(f"{folder.name} {weights_sha256(folder)}\n" for folder in folders)
    weights_hash, batch = hashlib.sha256(weights.encode()).hexdigest(), power_of_two(batch_size)
    return CostKey(digest(path), weights_hash, "all methods", batch, dtype, device)


def weights_sha256(folder: Path) -> str:
    """SHA-256 of the configs, checksums and measured settings of a folder and of the acceptance predictor in it."""
    files = [place / name for place in (folder, folder / FOLDER) for name in ("config.json", CHECKSUMS, CALIBRATION)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files if file.exists())).hexdigest()


def store(key: CostKey, values: Mapping[str, Any]) -> None:
    """Stores a table, a `CostTable` as a dictionary or `SPEEDS` by method, in the first process's cache folder."""
    if not is_first():
        return
    try:
        key.file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(key.file, json.dumps({**FORMAT, "of": dataclasses.asdict(key), **values}, indent=2) + "\n")
        say(f"kept in {key.file}")
    except OSError as error:
        say(f"not kept, since {key.file.parent} cannot be written ({error.strerror})")


def read_costs(key: CostKey) -> CostTable:
    """The stored table. Raises FileNotFoundError without one, ValueError if it is damaged or of other versions."""
    return _read(table_of, key)


def read_speeds(key: CostKey) -> dict[str, float]:
    """Tokens per second by method, as in `Engine.named`; raises as `read_costs`."""

    def speeds_of(values: Mapping[str, Any]) -> dict[str, float]:
        speeds = {str(method): float(speed) for method, speed in values[SPEEDS].items()}
        if not speeds or not all(0 < speed < math.inf for speed in speeds.values()):
            raise ValueError("there must be speeds, and all must be positive")
        return speeds

    return _read(speeds_of, key)


def _read(make: Callable[[Mapping[str, Any]], T], key: CostKey) -> T:
    try:
        values = json.loads(key.file.read_text(encoding="utf-8"))
        header = {name: values[name] for name in (*FORMAT, "of")}
        table = make(values)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the table {key.file} cannot be read ({' '.join(str(error).split())})") from error
    if header != {**FORMAT, "of": dataclasses.asdict(key)}:
        raise ValueError(f"the table {key.file} was measured with other versions")
    return table


def table_of(values: Mapping[str, Any]) -> CostTable:
    """The table of costs in JSON. Raises ValueError, TypeError or KeyError if it is damaged."""
    pairs = lambda name: tuple((int(nodes), float(seconds)) for nodes, seconds in values[name])
    idle = values.get("idle")  # as `context` and `longer`, absent in tables of earlier versions
    return CostTable(
        plain=float(values["plain"]),
        verify=pairs("verify"),
        level=pairs("level"),
        idle=None if idle is None else float(idle),
        context=int(values.get("context", 0)),
        longer=tuple(map(table_of, values.get("longer", ()))),
    )
