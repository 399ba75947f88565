"""The search for the blocks to skip in drafting (Draft & Verify, arXiv:2309.08168, §3.3 and Appendix C).

A trial of a set measures its time per verified token relative to plain decoding (Eq. 1). The set is a traced argument,
so one compiled loop serves all sets. On disk a skip set is a head without weights, whose config.json lists the blocks.
"""

import dataclasses
import functools
import importlib.util
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from rich.console import Console
from scipy.stats import norm

from jaxspec.checkpoint.config_json import CheckpointConfig
from jaxspec.checkpoint.heads import write_config
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.costs.timing import PieceCosts
from jaxspec.decoding.drafter import HeadShape
from jaxspec.decoding.request import Request
from jaxspec.drafters.layer_skip import LayerSkip, SkipMask, layers_of, skip
from jaxspec.engine.engine import Engine
from jaxspec.engine.generation import Generation
from jaxspec.engine.head_weights import head_config, read_shape
from jaxspec.engine.statistics import ratio, statistics_of
from jaxspec.evaluate.cost_model import piece_costs, run_costs
from jaxspec.evaluate.runner import warm
from jaxspec.host.atomic import staged_by_all, write_whole
from jaxspec.host.interrupts import deferred
from jaxspec.host.json_lines import LineLog
from jaxspec.host.processes import broadcast_from_first, is_first, largest
from jaxspec.host.terminal import print_table, progress, say
from jaxspec.methods.method import Method, parse_method
from jaxspec.train.data.prompts import greedy_requests, hash_of, load_with_tokenizer
from jaxspec.train.decoding_options import Objectives, SkipSearch
from jaxspec.train.run.folder import Run, as_typed, default_out, hashes, open_run, run_folder

LOG = "the log of a skip search"
REFIT = 10  # trials before the first fit, and between fits
_CANDIDATES = 1024
_PARENTS = 5  # the best sets, whose neighbours are candidates
_FLIPS = 4  # most switches in which a neighbour differs
_NOISE = 1e-2  # variance of one trial's noise; the variance of all trials is normalised to 1

Corner = Bool[np.ndarray, " D"]


@dataclasses.dataclass(frozen=True)
class Trial:
    """A set and its results: the speedup over plain decoding (by time per verified token), acceptance rate and tau."""

    skips: SkipMask
    speedup: float
    acceptance_rate: float
    tau: float

    @property
    def corner(self) -> Corner:
        """Whether each attention block, then each MLP block, is skipped."""
        return np.array([*self.skips.attention, *self.skips.mlp])

    def to_json(self) -> dict[str, Any]:
        """The trial as a line of the log."""
        skips = layers_of(self.skips)
        return {**skips, "speedup": self.speedup, "acceptance_rate": self.acceptance_rate, "tau": self.tau}

    @staticmethod
    def from_json(line: dict[str, Any], num_layers: int) -> "Trial":
        """Inverse of `to_json`."""
        values = dict(line)
        skips = skip(num_layers, values.pop("attention"), values.pop("mlp"))
        return Trial(skips, **values)


Objective = Callable[[SkipMask], Trial]


def search(settings: SkipSearch) -> SkipMask:
    """Searches for a skip set, compares the best one with simpler choices, and writes it atomically.

    The run stores every trial: a killed search resumes with the same result, and a finished one can be extended.
    """
    method = parse_method(settings.method)
    if not isinstance(method.drafter, LayerSkip):
        raise ValueError(f"a skip set is for the drafter layer-skip, and --method is {method}")
    if method.needs_costs:
        raise ValueError(
            f"--method {settings.method} decides by the cost of a drafted level, which differs from set to set; search "
            "with another builder and controller, such as layer-skip+adaptive, or write the costs into the method"
        )
    if importlib.util.find_spec("sklearn") is None:
        raise ValueError("the search needs the package scikit-learn: pip install scikit-learn")
    model = load_with_tokenizer(settings.target, settings.dtype, settings.devices.open(several=True))
    out = settings.out or default_out(model.path / "heads" / LayerSkip.name, "a head for the builtin target")
    layers, requests = model.config.model.num_layers, greedy_requests(model, settings, settings.prompts)
    chat_args = dict(settings.data.format.arguments) if settings.chat else None
    typed = as_typed("skip-search", settings, model.target.dtype.name) | identity(model) | hash_of(requests)
    with open_run(run_folder(out, settings.run_dir), typed) as run, staged_by_all(out, 0) as folder:
        log = LineLog(run.trials, LOG, "another --run")
        first, lines = is_first(), broadcast_from_first(lambda: log.resume(typed))
        if not lines:
            lines = [{"costs": measure(model, method, settings.objective, requests)}]
            if first:
                log.append(lines)
        objective = objective_of(model, method, settings.objective, requests, lines[0]["costs"])
        trials = [Trial.from_json(line, layers) for line in lines[1:]]
        run_trials(trials, layers, settings, objective, log)
        trials = trials[: settings.trials]
        best = max(trials, key=lambda each: each.speedup)
        compared = {"searched": best}
        for name, skips in strategies(best.skips, settings.seed).items():
            compared[name] = objective(skips)
            if first:
                write_skip_set(run.folder / "sets" / name, model.config, skips, chat_args)
        numbers = lambda skips: [" ".join(map(str, chosen)) or "–" for chosen in layers_of(skips).values()]
        counts = lambda skips: [str(sum(skips.attention)), str(sum(skips.mlp))]
        rows = [(name, numbers(each.skips), each) for name, each in compared.items()]
        show("blocks left out", f"speedup,\n{settings.objective}", rows)
        show("trials", "speedup", [(str(count), counts(each.skips), each) for count, each in best_so_far(trials)])
        if first:
            draw_figure(trials, best.skips, run.folder / "search.svg")
            with deferred():
                write_skip_set(folder, model.config, best.skips, chat_args)
    if best.speedup <= 1:
        say("no set is faster than plain decoding on this model: rejected drafts cost more than skipped blocks save")
    say(f"the other sets of the table are in {run.folder / 'sets'}, for `jaxspec bench`")
    say(f"wrote {out}: {describe(best)}, with --method {settings.method}")
    return best.skips


def identity(model: Checkpoint) -> dict[str, str]:
    """The keys by which a log recognises its target."""
    return {"--dtype": model.target.dtype.name, **hashes(model.path)}


def read_trials(folder: Path, model: Checkpoint) -> list[Trial]:
    """The trials of a search, from the folder of its run. Raises ValueError if there are none for this target."""
    lines = LineLog(Run(folder).trials, LOG, "another --search").read(identity(model))[1:]  # costs come first
    if not lines:
        raise ValueError(f"{folder} has no trials: run `jaxspec-train skip-search` first, or name its run in --search")
    return [Trial.from_json(line, model.config.model.num_layers) for line in lines]


def write_skip_set(
    path: Path, target: CheckpointConfig, skips: SkipMask, chat_args: dict[str, Any] | None = None
) -> None:
    """Writes a set into the folder `path`, which may exist. A method can refer to it by its path."""
    path.mkdir(parents=True, exist_ok=True)
    shape = HeadShape(target.model, layers_of(skips))
    write_config(path, head_config(LayerSkip(), shape, target, chat_args=chat_args))


def read_skip_set(path: Path, target: CheckpointConfig) -> SkipMask:
    """The set at `path`, trained or not. Raises CheckpointError if there is none, or it is for another target."""
    shape = read_shape(path, LayerSkip(), target.model)
    return skip(target.model.num_layers, shape.settings["attention"], shape.settings["mlp"])


def strategies(best: SkipMask, seed: int) -> dict[str, SkipMask]:
    """Other sets with as many skipped blocks as `best`: those of the paper's Table 8, and evenly spread blocks."""
    layers, rng = len(best.attention), np.random.default_rng(seed)
    choose: dict[str, Callable[[int], Sequence[int]]] = {
        "first": lambda count: range(count),
        "middle": lambda count: range((layers - count) // 2, (layers + count) // 2),
        "last": lambda count: range(layers - count, layers),
        "random": lambda count: rng.permutation(layers)[:count].tolist(),
        "uniform": lambda count: [(2 * i + 1) * layers // (2 * count) for i in range(count)],
    }
    counts = sum(best.attention), sum(best.mlp)
    return {name: skip(layers, *map(chosen, counts)) for name, chosen in choose.items()}


def run_trials(trials: list[Trial], num_layers: int, settings: SkipSearch, objective: Objective, log: LineLog) -> None:
    """Appends trials until there are `settings.trials`, and writes each to the log.

    The first process suggests the sets for all: on another processor the last bits of a fit may differ.
    """
    before = len(trials)
    suggested = lambda: suggest(trials, 2 * num_layers, settings.seed).tolist()
    with progress("trial", settings.trials, before) as shown:
        for number in range(before, settings.trials):
            switches = broadcast_from_first(suggested)
            skips = SkipMask(attention=tuple(switches[:num_layers]), mlp=tuple(switches[num_layers:]))
            trials.append(objective(skips))
            if is_first():
                log.append([trials[-1].to_json()])
            shown.report(number + 1, f"best so far {describe(max(trials, key=lambda each: each.speedup))}")


@dataclasses.dataclass(frozen=True)
class BlockCosts(PieceCosts):
    """Seconds of the pieces of a round for one sequence, where `level` skips no blocks."""

    attention: float = 0.0  # seconds saved by skipping one attention block, equal for all layers
    mlp: float = 0.0

    def of_pieces(self, skips: SkipMask) -> PieceCosts:
        """Costs of the pieces of a round if drafting skips this set."""
        saved = sum(skips.attention) * self.attention + sum(skips.mlp) * self.mlp
        return dataclasses.replace(self, level=self.level - saved)


def measure(model: Checkpoint, method: Method, kind: Objectives, requests: Sequence[Request]) -> dict[str, Any]:
    """The measurements on this device that an objective needs, as JSON values."""
    if kind == "measured":
        return {"plain": timed(Engine(model, "plain"), requests)[1]}
    say("measuring what a block costs on this device, which takes a minute or so")
    return dataclasses.asdict(measure_costs(model, method, requests[:1]))


def measure_costs(model: Checkpoint, method: Method, requests: Sequence[Request]) -> BlockCosts:
    """Times the pieces of a round on this device; a drafted level also without all attention or all MLP blocks."""
    layers = model.config.model.num_layers
    none, all_ = (), range(layers)
    sets = {"whole": (none, none), "no attention": (all_, none), "no mlp": (none, all_), "bare": (all_, all_)}
    engines = {name: Engine(model, method, draft=skip(layers, *each).traced()) for name, each in sets.items()}
    costs = piece_costs({**engines, "plain": Engine(model, "plain")}, requests)
    whole, no_attention, no_mlp, bare = (costs[name].level for name in sets)
    # Each kind is measured twice, with and without the other kind. Their sum must not exceed the time of both.
    both = max(whole - bare, 0.0)
    attention = min(max((whole - no_attention + no_mlp - bare) / 2, 0.0), both)
    return BlockCosts(**vars(costs["whole"]), attention=attention / layers, mlp=(both - attention) / layers)


def objective_of(
    model: Checkpoint, method: Method, kind: Objectives, requests: Sequence[Request], costs: dict[str, Any]
) -> Objective:
    """A function that runs a trial of a set. `costs` is the result of `measure`, before the first trial.

    For the kind `measured`, the time is wall-clock time, one prompt after another. Otherwise it is computed from the
    rounds of decoding and the costs, so that other work on the machine does not disturb it.
    """

    def objective(skips: SkipMask) -> Trial:
        drafting = Engine(model, method, draft=skips.traced())
        if kind == "measured":
            results, seconds = timed(drafting, requests)
            speedup = ratio(costs["plain"], seconds)
        else:
            verify = {int(nodes): seconds for nodes, seconds in costs["verify"].items()}  # JSON made them strings
            pieces = BlockCosts(**{**costs, "verify": verify}).of_pieces(skips)
            sizes = method.speculation(greedy=True, tree_sizes=drafting.tree_sizes).verify_sizes
            results = drafting.run(requests)
            speedup = run_costs([[each.history] for each in results], pieces, sizes).speedup  # batches of one
        counts = statistics_of([each.history for each in results])
        return Trial(skips, speedup, counts.acceptance_rate, counts.tau)

    return objective


def timed(decoding: Engine, requests: Sequence[Request]) -> tuple[list[Generation], float]:
    """Decodes each request alone, and measures the seconds per committed token, without compilation.

    With several processes, these are the seconds of the slowest.
    """
    results = [warm(decoding, [request], [None])[0] for request in requests]
    tokens = statistics_of([each.history for each in results]).tokens
    return results, largest(ratio(sum(each.decode_seconds for each in results), tokens))


def describe(best: Trial) -> str:
    """The speedup of a set and its number of skipped blocks, in words."""
    count, attention, mlp = len(best.skips.mlp), sum(best.skips.attention), sum(best.skips.mlp)
    return f"{best.speedup:.3f}x plain without {attention} of {count} attention and {mlp} of {count} MLP blocks"


def show(title: str, speedup: str, rows: Iterable[tuple[str, list[str], Trial]]) -> None:
    """Prints a table with the name, the blocks and the results of each trial."""
    results = lambda each: (f"{each.acceptance_rate:.3f}", f"{each.tau:.2f}", f"{each.speedup:.3f}")
    cells = [(name, *blocks, *results(each)) for name, blocks, each in rows]
    print_table(Console(), [title, "attention", "MLP"], ["acceptance", "tau", speedup], cells)


def best_so_far(trials: Sequence[Trial]) -> list[tuple[int, Trial]]:
    """The best of the first 50, 100, 200, 300 and so on, and of all (the paper's Table 9)."""
    counts = [*(count for count in (50, *range(100, len(trials), 100)) if count < len(trials)), len(trials)]
    return [(count, max(trials[:count], key=lambda each: each.speedup)) for count in counts]


def draw_figure(trials: Sequence[Trial], best: SkipMask, out: Path) -> None:
    """Draws all trials (the paper's Figure 4) and the map of the best set (Figure 6), if matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError:
        say("no figure: matplotlib is not installed (pip install matplotlib); the trials are in the log")
        return
    drawn = Figure(figsize=(8, 5), layout="constrained")
    above, below = drawn.subplots(2, 1, height_ratios=(4, 1))
    skipped = [sum(each.skips.attention) + sum(each.skips.mlp) for each in trials]
    speedups = [each.speedup for each in trials]
    above.scatter(skipped, speedups, s=10, color="0.5")
    most = {count: max(s for n, s in zip(skipped, speedups, strict=True) if n == count) for count in sorted({*skipped})}
    above.plot(list(most), list(most.values()), "--", color="tab:red", label="best for this number of blocks")
    above.axhline(1, color="0.8", linewidth=1, zorder=0)
    above.set(xlabel="blocks left out", ylabel="speedup over plain decoding", title="Trials of the search")
    above.legend(frameon=False, fontsize="small")
    for row, (switches, colour) in enumerate(((best.mlp, "tab:blue"), (best.attention, "tab:red"))):
        for layer, off in enumerate(switches):
            below.add_patch(Rectangle((layer - 0.45, row - 0.45), 0.9, 0.9, facecolor=colour if off else "0.85"))
    below.set(
        xlim=(-0.6, len(best.mlp) - 0.4), ylim=(-0.6, 1.6), aspect="equal", xlabel="layer", title="Blocks left out"
    )
    below.set_yticks([0, 1], ["MLP", "attention"])
    below.spines[:].set_visible(False)
    from jaxspec.evaluate.sweep import to_svg  # it imports much

    write_whole(out, to_svg(drawn))


def suggest(tried: Sequence[Trial], size: int, seed: int) -> Corner:
    """The next set of `size` switches to try, by Bayesian optimisation. The first is empty, the next are random.

    A Gaussian process models the results so far on the cube [0, 1]^size, whose corners are the sets. Its length scale
    is refitted every tenth trial. Expected improvement is compared at random corners, some of them near the best sets.

    The arguments determine the result, so a resumed search continues alike. Raises ValueError if all sets were tried.
    """
    rng = np.random.default_rng((seed, len(tried)))
    if not tried:
        return np.zeros(size, bool)  # the baseline: nothing is skipped
    known = {each.corner.tobytes() for each in tried}
    fresh = lambda corners: np.array([c for c in corners if c.tobytes() not in known], bool).reshape(-1, size)
    corners = fresh(rng.random((_CANDIDATES, size)) < rng.random((_CANDIDATES, 1)))  # random, each with its own density
    if fitted := len(tried) // REFIT * REFIT:
        parents = [each.corner for each in sorted(tried, key=lambda each: -each.speedup)[:_PARENTS]]
        corners = np.concatenate([corners, fresh(neighbours(rng, _CANDIDATES, parents))])
    if not len(corners):
        raise ValueError(f"all sets of {size} blocks were tried; lower --trials")
    if not fitted:
        return corners[0]
    process = _process(_kernel(tuple(tried[:fitted])), tried, optimizer=None)
    mean, deviation = process.predict(corners.astype(float), return_std=True)
    best = max(each.speedup for each in tried)
    return corners[expected_improvement(mean, np.maximum(deviation, 1e-9), best).argmax()]


def neighbours(rng: np.random.Generator, count: int, parents: Sequence[Corner]) -> Bool[np.ndarray, "N D"]:
    """Sets that differ from one of the parents in a few switches."""
    chosen = np.array(parents)[rng.integers(len(parents), size=count)]
    rank = rng.random(chosen.shape).argsort(axis=1).argsort(axis=1)
    return chosen ^ (rank < rng.integers(1, _FLIPS + 1, size=(count, 1)))


def expected_improvement(
    mean: Float[np.ndarray, " N"], deviation: Float[np.ndarray, " N"], best: float
) -> Float[np.ndarray, " N"]:
    """E max(0, X - best) for X ~ N(mean, deviation²)."""
    above = mean - best
    z = above / deviation
    return above * norm.cdf(z) + deviation * norm.pdf(z)


@functools.lru_cache(maxsize=1)
def _kernel(tried: tuple[Trial, ...]) -> Any:
    """The kernel of a Gaussian process, with its length scale fitted to these trials."""
    from sklearn.gaussian_process.kernels import Matern

    return _process(Matern(nu=2.5, length_scale_bounds=(0.1, 1e3)), tried, optimizer="fmin_l_bfgs_b").kernel_


def _process(kernel: Any, tried: Sequence[Trial], optimizer: Any) -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor

    process = GaussianProcessRegressor(kernel, alpha=_NOISE, normalize_y=True, optimizer=optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that stops early or at a bound is good enough
        return process.fit(np.array([each.corner for each in tried], float), [each.speedup for each in tried])
