"""From made-up answers to reported numbers, and divergences of made-up texts."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from rich.console import Console

from jaxspec.costs.timing import PieceCosts
from jaxspec.evaluate import divergence, table
from jaxspec.evaluate.divergence import batch_noise, diverges, next_logits, noise
from jaxspec.evaluate.results import Form, Measured, by_method
from jaxspec.evaluate.run_description import weight_bytes
from jaxspec.evaluate.runlog import Answer, Turn
from jaxspec.model import kv_cache as kv
from jaxspec.model.attention import causal_mask
from jaxspec.model.llama import Llama, forward
from tests.evaluate import tiny

FORMS = {"plain": Form("plain", (1,), True, 10**9, 0, 0), "m": Form("m,full", (1, 4), True, 10**9, 3e8, 2e8)}


def answer(question: int, method: str, batch: int, rounds: list[list[int]], seconds: list[float]) -> Answer:
    turn = Turn([1], [2], "", rounds, None, prefill_seconds=[1.0] * len(seconds), decode_seconds=seconds)
    return Answer(question, None, None, method, batch, [turn])


def with_costs(measured: Measured, **changes: Any) -> Measured:
    """The measurements with other costs of the method m."""
    assert measured.pieces is not None
    changed = dataclasses.replace(measured.pieces["m"], **changes)
    return dataclasses.replace(measured, pieces={**measured.pieces, "m": changed})


def test_rows_of_a_batch_share_its_time():
    """Two questions side by side and one alone; the median of three repeats each."""
    ones, drafted = [[1, 0, 0, 0, 0, 1]], [[2, 1, 2, 2, 2, 3]]
    answers = [
        answer(0, "plain", 0, ones * 4, [3.0, 2.0, 9.0]),
        answer(1, "plain", 0, ones * 2, [3.0, 2.0, 9.0]),
        answer(2, "plain", 1, ones * 4, [1.0, 1.0, 1.0]),
        answer(0, "m", 0, drafted * 2, [1.0, 7.0, 1.0]),
        answer(1, "m", 0, drafted * 1, [1.0, 7.0, 1.0]),
        answer(2, "m", 1, drafted * 2, [1.0, 1.0, 1.0]),
    ]
    measured = Measured(
        noise=0.1,
        pieces={
            "plain": PieceCosts(1.0, {1: 1.0, 4: 1.5}),
            "m": PieceCosts(1.0, {1: 1.0, 4: 1.5}, level=0.25, control_level=0.05, control_round=0.1),
        },
        divergences={"plain": [], "m": [{"explained": True}, {"explained": False}]},
        forms=FORMS,
    )
    found = by_method(answers, measured)
    assert (found["plain"]["decode_seconds"], found["m"]["decode_seconds"]) == (4.0, 2.0)
    assert found["plain"]["prefill_seconds"] == 2.0
    assert (found["plain"]["tokens"], found["plain"]["tokens_per_second"]) == (10, 2.5)
    assert found["m"]["speedup"] == 2.0
    # 4 rounds of each batch for 4 seconds; 2 of each for 2.
    assert (found["plain"]["gigabytes_per_second"], found["m"]["gigabytes_per_second"]) == (2.0, 2.0)
    assert found["m"]["modelled_speedup"] == pytest.approx(8 / (4 * (2 * 0.3 + 0.1 + 1.5)))
    assert found["m"]["predicted_seconds"] == pytest.approx(4 * (2 * 0.3 + 0.1 + 1.5))
    # The first level reads 0.3 of a forward's bytes, and the second 0.2.
    assert found["m"]["flat_speedup"] == pytest.approx(8 / (4 * (1 + 0.3 + 0.2)))
    assert (found["m"]["draft_accuracy"], found["m"]["draft_share"]) == (5 / 10, 5 / 10)
    assert found["m"]["eq14_speedup"] == pytest.approx(0.5 / ((0.25 - 0.5) * 0.5 + 0.5))
    assert found["plain"]["eq14_speedup"] == 1
    # The first batch goes through two rounds together; what is left of 2 seconds is less than nothing.
    parts = {"drafting": 4 * 2 * 0.25, "verification": 4 * 1.5, "control": 4 * (2 * 0.05 + 0.1)}
    assert found["m"]["breakdown"] == pytest.approx({**parts, "other": 2 - sum(parts.values())})
    assert found["plain"]["breakdown"] == {"drafting": 0, "verification": 8, "control": 0, "other": -4}
    assert (found["m"]["draft_cost"], found["m"]["verify_cost"], found["plain"]["draft_cost"]) == (0.25, 1.5, 0.0)
    assert (found["m"]["resolved"], found["m"]["unexplained_divergences"]) == ("m,full", 1)

    # The two questions of a batch are drawn together: 4 and 1 tokens a second of ours, 3 and 4 of plain.
    assert found["m"]["speedup_interval"] == pytest.approx([(6 / 1) / (6 / 3), (4 / 1) / (4 / 1)][::-1])
    assert found["plain"]["speedup_interval"] == found["plain"]["tau_interval"] == [1, 1]
    assert found["m"]["tau_interval"] == [2, 2]
    assert found["m"]["against_fastest"] is None
    rival = {"method": "m", "ratio": 0.5, "ratio_interval": pytest.approx([1 / 3, 1]), "p_value": 1.0}
    assert found["plain"]["against_fastest"] == rival
    assert found["m"]["tau_uncut"] == 3

    assert measured.seconds() == {
        "target_seconds": {"1": 1.0, "4": 1.5},
        "resumed_seconds": {},
        "level_seconds": {"plain": 0.0, "m": 0.25},
        "rest_seconds": {"plain": 0.0, "m": 0.0},
        "control_level_seconds": {"plain": 0.0, "m": 0.05},
        "control_round_seconds": {"plain": 0.0, "m": 0.1},
    }
    resumed = with_costs(measured, verify={4: 1.25})
    assert resumed.seconds()["resumed_seconds"] == {"m": {"4": 1.25}}
    assert by_method(answers, resumed)["m"]["modelled_speedup"] == pytest.approx(8 / (4 * (2 * 0.3 + 0.1 + 1.25)))
    with_rest = by_method(answers, with_costs(measured, rest=0.75, plain_rest=0.5))["m"]
    assert with_rest["predicted_seconds"] == pytest.approx(4 * (2 * 0.3 + 0.1 + 1.5 + 0.75))
    assert with_rest["modelled_speedup"] == pytest.approx(8 * 1.5 / with_rest["predicted_seconds"])

    trees = {**FORMS, "m": dataclasses.replace(FORMS["m"], is_chain=False)}
    assert by_method(answers, dataclasses.replace(measured, forms=trees))["m"]["eq14_speedup"] is None


def test_what_is_printed_of_uncertainty():
    """In 80 columns, with names of usual length; nothing is printed for a single question."""
    of = lambda speedup, rival: {
        "speedup_interval": speedup,
        "tau_interval": [2.51, 2.694],
        "tau_uncut": 2.75,
        "against_fastest": rival,
    }
    slower = {"method": "eagle+chain", "ratio": 0.95, "ratio_interval": [0.92, 0.97], "p_value": 0.0002}
    alike = {"method": "eagle+chain", "ratio": 0.99, "ratio_interval": [0.97, 1.01], "p_value": 0.4}
    console = Console(record=True, width=80)
    methods = {
        "eagle+chain": of([1.38, 1.47], None),
        "early-exit+chain,length=5": of([1.31, 1.4], slower),
        "edd+chain": of([1.37, 1.45], alike),
    }
    table._show_uncertainty(methods, console)
    *_, first, second, third = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert first == "eagle+chain [1.38, 1.47] [2.51, 2.69] 2.75 fastest"
    assert second == "early-exit+chain,length=5 [1.31, 1.40] [2.51, 2.69] 2.75 3–8 % slower <.001"
    assert third == "edd+chain [1.37, 1.45] [2.51, 2.69] 2.75 unclear .400"
    one = {**methods["eagle+chain"], "tau_interval": None, "speedup_interval": None}
    table._show_uncertainty({"eagle+chain": one}, console)
    assert not console.export_text().strip()


@pytest.fixture(scope="module")
def target() -> Llama:
    return Llama(tiny.MODEL, rngs=nnx.Rngs(0))


def test_the_gap_decides(target: Llama):
    prompt, text = [5, 6, 7], [9, 9]
    ranked = next_logits(target, prompt + text[:1]).argsort()[::-1].tolist()
    logits = np.sort(next_logits(target, prompt + text[:1]))[::-1]
    near = diverges(target, 3, 0, (prompt, [9, ranked[0]]), [9, ranked[1]])
    far = diverges(target, 3, 0, (prompt, [9, ranked[0]]), [9, ranked[5]])
    short = diverges(target, 3, 0, (prompt, [9, ranked[0]]), [9])
    assert near is not None
    assert far is not None
    assert (near.prompt, near.turn, near.position) == (3, 0, 1)
    assert near.gap == near.behind == far.gap == pytest.approx(logits[0] - logits[1])
    assert far.behind == pytest.approx(logits[0] - logits[5])
    assert near.explained(near.gap / 2 + 1e-6)
    assert not near.explained(near.gap / 2 - 1e-6)
    assert not far.explained(near.gap / 2 + 1e-6)  # not one of the two best
    assert short is not None
    assert not short.explained(1e9)
    assert diverges(target, 3, 0, (prompt, [9, 9]), [9, 9]) is None


def test_noise_is_rounding_and_no_more(target: Llama):
    texts = [([5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8]), ([4], [3, 2, 1])]
    assert 0 < noise(target, [texts], [1, 4]) < 1e-4
    assert noise(target, [texts], [1]) == 0
    assert noise(target, [[([1], [2])]], [4]) == 0  # one token: nothing was decoded
    assert batch_noise(target, texts) < 1e-4  # of the shorter text only up to its end


@pytest.mark.parametrize("chunk", [4, 512])
def test_noise_starts_from_the_prompts(target: Llama, chunk: int, monkeypatch: pytest.MonkeyPatch):
    """A prompt of nine tokens in a block of 16, read in chunks of at most `chunk`: in three, and in one."""
    block = np.arange(16, dtype=np.int32)[None]
    monkeypatch.setattr(divergence, "CHUNK", chunk)
    _, read = divergence.read_texts(target, block, 9)
    empty = kv.allocate(target.config, 1, 16, jnp.dtype("float32"))
    whole = forward(target, jnp.array(block), jnp.arange(16)[None], causal_mask(1, 16), empty, jnp.zeros(1, int))
    for layer, nodes in zip(read, whole.nodes, strict=True):
        np.testing.assert_allclose(layer.v[:, :, :9], nodes.v[:, :, :9], atol=1e-5)


@pytest.mark.parametrize("experts", [0, 4])
def test_a_mixtures_speed_counts_every_expert_and_says_so(experts: int):
    shape = dataclasses.replace(tiny.MODEL, num_experts=experts, experts_per_token=min(experts, 2))
    weights = weight_bytes(nnx.eval_shape(lambda: Llama(shape, rngs=nnx.Rngs(0))))
    assert weights["expert_bytes"] == experts * 3 * 32 * 48 * 4  # three float32 matrices each
    found = {"weights": weights, "settings": {"quantize": None}, "dtype": "float32", "device": "NVIDIA H100"}
    console = Console(record=True, width=200)
    table.show_weights({**found, "methods": {"plain": {"gigabytes_per_second": 900.0}}}, console)
    assert ("every expert counted" in (said := console.export_text())) == bool(experts)
    assert "plain: 900" in said
