"""Pieces of a round run alone, and how they are timed."""

import dataclasses
from types import SimpleNamespace
from typing import ClassVar, final

import jax
import jax.numpy as jnp
import pytest

from jaxspec.checkpoint.loading import load
from jaxspec.costs import timed_loops, timing
from jaxspec.decoding.controller import Controller
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.decoding.speculation import Speculation
from jaxspec.drafters import EarlyExit
from jaxspec.engine.engine import Engine
from jaxspec.evaluate.cost_model import piece_costs
from jaxspec.evaluate.simulate import random_head
from jaxspec.methods.method import Method, parse_method
from tests.evaluate import tiny
from tests.quick_runs import shorten


@final
@dataclasses.dataclass(frozen=True)
class Wavering(Controller):
    """Drafts on with this probability, and remembers the counts it was given; stops for good where signals are odd."""

    name: ClassVar[str] = "wavering"
    chance: float = 0.5

    def init(self, batch):
        return jnp.zeros((batch, 3), jnp.int32)

    def keep_drafting(self, models, keys, state, signals):
        usual = (signals.level == 1) & (signals.top_prob > 0.8) & (signals.draft_hidden is None)
        return usual & (jax.vmap(jax.random.uniform)(keys) < self.chance)

    def update(self, state, counts):
        return state + jnp.stack([jnp.ones_like(counts.accepted), counts.accepted, counts.levels], axis=1)


SAMPLING = SamplingParams(max_new_tokens=8)
REQUESTS = [Request([5, 6, 7], SAMPLING, 0), Request([5], SAMPLING, 1)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(load(tiny.checkpoint(tmp_path_factory.mktemp("cost") / "ckpt")), "ngram")


def wavering(chance: float, length: int = 3) -> Method:
    return dataclasses.replace(parse_method(f"ngram+chain,length={length}"), controller=Wavering(chance))


def half_way(engine: Engine, method: Method, *, greedy: bool = True) -> tuple[Speculation, DecodeState]:
    spec = method.speculation(greedy)
    return spec, timed_loops.half_way(spec, engine.models, REQUESTS, 32)


def test_a_round_has_the_levels_that_are_asked_for_whatever_the_controller(engine: Engine):
    spec, state = half_way(engine, wavering(0.0))
    assert [int(timed_loops.round_job(spec, engine.models, state, levels)(5)) for levels in (1, 2, 3, 9)] == [
        1,
        2,
        3,
        3,
    ]


def test_trees_that_end_early_do_not_while_they_are_timed(engine: Engine):
    """Under random weights no path is worth a second level at these costs."""
    method = parse_method("ngram+budgeted,cost=9,verify=1:1/64:2,depth=4,width=2,total=8")
    spec, state = half_way(engine, method)
    assert [int(timed_loops.round_job(spec, engine.models, state, levels)(5)) for levels in (1, 4)] == [1, 4]


def test_a_level_is_what_a_longer_round_takes_more():
    """By hand: rounds of 1 and 4 levels take 10 and 16 s, verification 7 s: 2 s a level, and 1 s for the rest."""
    assert timing.split(1, 4, 10.0, 16.0, 7.0) == (2.0, 1.0)
    assert timing.split(1, 1, 10.0, 10.0, 7.0) == (3.0, 0.0)  # one level: the rest is not told from it
    assert timing.split(0, 0, 10.0, 10.0, 7.0) == (0.0, 3.0)  # plain decoding
    level, rest = timing.split(1, 4, 10.0, 9.0, 7.0)  # levels that cost nothing, within noise, as those of a block
    assert 0 < level < 1e-8 and rest == pytest.approx(2.0)
    level, rest = timing.split(1, 4, 10.0, 9.0, 11.0)  # noise makes nothing negative
    assert 0 < level < 1e-8 and rest == 0


@pytest.mark.soak
def test_verification_after_an_early_exit_is_timed_by_itself(tmp_path, monkeypatch):
    shorten(monkeypatch, (1, 2))
    model = load(tiny.checkpoint(tmp_path / "ckpt", num_layers=2))
    head = random_head(EarlyExit(), model.config.model, "float32")
    methods = {"plain": "plain", "stops": "early-exit+chain,length=4+threshold"}
    engines = {name: Engine(model, method, draft=head) for name, method in methods.items()}
    found = piece_costs(engines, REQUESTS)
    assert [{*costs.verify} for costs in found.values()] == [{1, 2, 5}] * 2
    assert found["stops"].verify != found["plain"].verify
    assert all(seconds > 0 for costs in found.values() for seconds in costs.verify.values())


@pytest.mark.parametrize("greedy", [True, False])
def test_every_decision_is_made_anew_and_by_real_signals(engine: Engine, greedy: bool):
    def often(chance: float) -> list[int]:
        spec, state = half_way(engine, wavering(chance), greedy=greedy)
        return timed_loops.judge(spec, engine.models, state, jnp.int32(100)).tolist()

    assert often(1.0) == [100, 100]
    assert often(0.0) == [0, 0]
    assert all(25 < times < 75 for times in often(0.5))


def test_rounds_are_learnt_from_one_after_the_other(engine: Engine):
    """Of five rounds of three levels, with 0, 1, 2, 3 and 0 drafts accepted."""
    spec, state = half_way(engine, wavering(0.5))
    assert timed_loops.learn(spec, state, jnp.int32(5)).tolist() == [[5, 6, 15]] * 2


def test_every_piece_finds_its_place(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    """Times of its own for each piece; a controller that never stops costs nothing."""
    methods = {"plain": parse_method("plain"), "fixed": parse_method("ngram"), "wavering": wavering(0.5)}
    engines = {name: Engine(engine.model, method) for name, method in methods.items()}
    monkeypatch.setattr(timing, "seconds_per_iteration", lambda jobs: [float(2**i) for i in range(len(jobs))])
    monkeypatch.setattr(timing, "Compilations", lambda *of: SimpleNamespace(wait=lambda: None))
    for each in engines.values():
        monkeypatch.setattr(each, "tree_sizes", ())
    found = piece_costs(engines, REQUESTS)
    sizes = sorted({1, 4, 5})
    target = {size: 2.0**i for i, size in enumerate(sizes)}
    assert all((costs.plain, costs.verify, costs.plain_rest) == (1.0, target, 15.0) for costs in found.values())
    of = lambda piece: {name: getattr(costs, piece) for name, costs in found.items()}
    # Rounds of plain take 8 and 16 s, of the chain of 4 32 and 64, of the chain of 3 128 and 256.
    level = {"plain": 0.0, "fixed": (64 - 32) / 3, "wavering": (256 - 128) / 2}
    assert of("level") == pytest.approx(level)
    assert of("rest") == pytest.approx({"plain": 16 - 1, "fixed": 32 - 32 / 3 - 4, "wavering": 128 - 64 - 2})
    assert of("control_level") == {"plain": 0.0, "fixed": 0.0, "wavering": 512.0}
    assert of("control_round") == {"plain": 0.0, "fixed": 0.0, "wavering": 1024.0}


def test_jobs_take_turns(monkeypatch: pytest.MonkeyPatch):
    """A clock that only the jobs move: iterations take 2 and 3 s. Each call takes 5 s more, which belong to none."""
    now, calls = [0.0], []

    def job(name: str, seconds: float) -> timed_loops.Job:
        def run(iterations: int) -> None:
            now[0] += 5.0 + seconds * iterations
            calls.append(name)

        return run

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    assert timing.seconds_per_iteration([job("a", 2.0), job("b", 3.0)]) == [2.0, 3.0]
    assert calls[-4:] == ["a", "b", "a", "b"]


def test_a_slow_first_run_does_not_say_how_many_iterations_are_enough(monkeypatch: pytest.MonkeyPatch):
    """A millisecond an iteration; the first call that has any takes half a second more."""
    now, lengths = [0.0], []

    def job(iterations: int) -> int:
        now[0] += 0.001 * iterations + (0.5 if iterations and not lengths else 0.0)
        lengths.extend([iterations] if iterations else [])
        return iterations

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    assert timing.seconds_per_iteration([job]) == [pytest.approx(0.001)]
    assert lengths[-1] * 0.001 >= timing.LEAST_SECONDS / 2
