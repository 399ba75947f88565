"""`jaxspec plan` without compilation: sizes and work by hand, times, refusals, and output."""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jaxspec.builders.pruned import Pruned
from jaxspec.checkpoint.builtin import locate
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.host.buckets import to_path
from jaxspec.methods.method import parse_method
from jaxspec.model import sharding
from jaxspec.model.config import LlamaConfig
from jaxspec.options.by_command import PlanSettings
from jaxspec.planning import devices
from jaxspec.planning.chips import CHIPS, Collective, Slice, Work, parse_slice
from jaxspec.planning.plan import expected_rounds, plan
from jaxspec.planning.program import PlacedProgram
from jaxspec.planning.shapes import MODELS, Target, find_model, models_of
from tests.bucket import NAME, Bucket
from tests.planning.placed import placed
from tests.programs import Result, run

Command = Callable[..., Result]

BF16 = 2
SMALL = dataclasses.replace(MODELS["llama-2-70b"], num_layers=3)  # what is 70B but for its depth


@pytest.fixture
def jaxspec(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command in this process, SMALL standing for the 70B."""
    monkeypatch.setitem(MODELS, "llama-2-70b", SMALL)
    return functools.partial(run, "jaxspec", "plan", "--model", "llama-2-70b")


def kernels(c: LlamaConfig) -> int:
    """Elements of one layer's matrices, those of keys and values left out."""
    return 2 * c.hidden_size * c.num_heads * c.head_dim + 3 * c.hidden_size * c.intermediate_size


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-2-7b", 6.738),
        ("llama-2-13b", 13.016),
        ("llama-2-70b", 68.977),
        ("llama-3.1-8b", 8.030),
        ("llama-3.1-70b", 70.554),
    ],
)
def test_published_shapes_have_the_published_number_of_parameters(name: str, billions: float):
    c = MODELS[name]
    layer = kernels(c) + 2 * c.hidden_size * c.num_kv_heads * c.head_dim + 2 * c.hidden_size
    total = c.num_layers * layer + 2 * c.vocab_size * c.hidden_size + c.hidden_size
    assert total / 1e9 == pytest.approx(billions, abs=0.001)


def weights_of_a_chip(c: LlamaConfig, chips: int) -> float:
    """Bytes by hand: with 8 KV heads, each of 8 chips has one; of 16 chips, pairs have the same one."""
    cut = c.num_layers * kernels(c) + 2 * c.vocab_size * c.hidden_size
    kv_kernels = c.num_layers * 2 * c.hidden_size * c.num_kv_heads * c.head_dim
    return BF16 * (cut / chips + kv_kernels / 8)


def cache_of_a_chip(c: LlamaConfig, rows: int) -> int:
    """Bytes by hand of the keys and values of one head."""
    return BF16 * 2 * c.num_layers * rows * c.head_dim


@pytest.mark.parametrize("chips", [8, 16])
@pytest.mark.parametrize("c", [SMALL, pytest.param(MODELS["llama-2-70b"], marks=pytest.mark.soak)])
def test_bytes_of_a_70b_by_hand(c: LlamaConfig, chips: int):
    """Norms are whole everywhere, and too small to count."""
    found = placed(c, f"h100-80g:{chips}", rows=4096)
    assert sharding.device_bytes(found.models.target) == pytest.approx(weights_of_a_chip(c, chips), rel=0.001)
    assert sharding.device_bytes(found.state.cache) == cache_of_a_chip(c, 4096)


def test_the_table_in_the_docs_by_hand():
    text = (Path(__file__).parents[2] / "docs" / "large-models.md").read_text()
    table = re.findall(r"^\| `(\S+)` \| `(v5[ep]:\S+)` \|(.*)\|$", text, re.MULTILINE)
    assert len(table) == 10
    for method, where, cells in table:
        tau, levels, weights, _, kv, *_ = (cell.strip() for cell in cells.split("|"))
        c, chips = MODELS["llama-2-70b"], parse_slice(where).chips
        assert float(weights) * 1e9 == pytest.approx(weights_of_a_chip(c, chips), rel=0.02)
        assert float(kv) * 1e9 == pytest.approx(cache_of_a_chip(c, 2048), abs=5e6)  # as printed, in two decimals
        expected_rounds(
            PlanSettings(model="llama-2-70b", method=method, tau=tau, levels=float(levels)), parse_method(method)
        )


def test_bytes_of_quantised_weights_by_hand():
    whole = kernels(SMALL) + 2 * SMALL.hidden_size * SMALL.num_kv_heads * SMALL.head_dim
    table = SMALL.vocab_size * SMALL.hidden_size  # the embedding stays as it is, and the head is int8 in either case
    for quantize, size in (("int8", 1), ("int4", 0.5)):
        found = sharding.device_bytes(placed(SMALL, "h100-80g:1", quantize=quantize).models.target)
        assert found == pytest.approx(SMALL.num_layers * whole * size + table * (BF16 + 1), rel=0.04)  # and the scales


def test_sequences_are_cut_along_data():
    one, two = placed(SMALL, "h100-80g:8", batch=4), placed(SMALL, "h100-80g:8", data=2, batch=4)
    bytes_of = lambda found: sharding.device_bytes(found.state.cache)
    assert bytes_of(two) == bytes_of(one)  # half of the sequences, and heads for two chips
    assert two.parts.verify[1].flops == pytest.approx(one.parts.verify[1].flops, rel=0.01)


@pytest.mark.parametrize(("data", "batch", "padded"), [(1, 17, 32), (4, 2, 4), (1, 4, 4)])
def test_a_batch_is_planned_as_it_is_padded(jaxspec: Command, tmp_path: Path, data: int, batch: int, padded: int):
    out = tmp_path / "out.json"
    where = ("--device", "h100-80g:8", "--mesh", f"data={data},model={8 // data}", "--context", 256)
    code, shown, _ = jaxspec("--method", "plain", *where, "--batch-size", batch, "--json", out)
    assert code == 0
    found, of_one = json.loads(out.read_text()), placed(SMALL, f"h100-80g:{8 // data}", rows=256).state.cache
    assert (found["settings"]["batch_size"], found["padded_batch_size"]) == (batch, padded)
    assert found["bytes_per_chip"]["kv"] == sharding.device_bytes(of_one) * padded // data
    assert f", {padded} x 256 tokens\n" in shown
    assert (f"A batch of {batch} is padded to {padded} sequences.\n" in shown) == (batch != padded)


def test_work_of_a_plain_round_by_hand():
    found = placed(SMALL, "h100-80g:16")
    work = found.parts.work(found.parts.verification(1))
    c = SMALL
    read = c.num_layers * (kernels(c) / 16 + 2 * c.hidden_size * c.head_dim) + c.vocab_size * c.hidden_size / 16
    keys_and_values = 2 * c.num_layers * 2048 * c.head_dim
    assert work.bytes == pytest.approx(BF16 * (read + keys_and_values), rel=0.001)
    assert work.flops == pytest.approx(2 * (read + keys_and_values * 8 / 2), rel=0.01)  # 8 query heads on two chips
    assert work.collectives == (Collective("all-reduce", BF16 * c.hidden_size, 2 * c.num_layers + 1, 16),)


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
def test_work_of_a_plain_round_of_a_mixture_by_hand(quantize: str | None):
    """Two of the experts run, and their results are one message."""
    c = dataclasses.replace(SMALL, num_layers=2, intermediate_size=2048, num_experts=8, experts_per_token=2)
    found, alone = (placed(c, f"h100-80g:{chips}", quantize=quantize) for chips in (8, 1))
    work, whole = (each.parts.work(each.parts.verification(1)) for each in (found, alone))
    layer = kernels(c) + 3 * c.hidden_size * c.intermediate_size + 2 * c.hidden_size * c.num_kv_heads * c.head_dim
    read = c.num_layers * layer + c.vocab_size * c.hidden_size
    attention = 2 * c.num_layers * 2048 * c.num_heads * c.head_dim
    routers = c.num_layers * 8 * c.hidden_size  # whole everywhere
    assert whole.flops == pytest.approx(2 * (read + attention + routers), rel=0.001)
    assert work.flops == pytest.approx(2 * ((read + attention) / 8 + routers), rel=0.001)
    assert work.bytes == pytest.approx(whole.bytes / 8, rel=0.01)
    if quantize is None:
        keys_and_values = attention * c.num_kv_heads / c.num_heads
        assert whole.bytes == pytest.approx(BF16 * (read + keys_and_values), rel=0.001)
    sums = lambda count, results: Collective("all-reduce", BF16 * c.hidden_size * results, count, 8)
    assert set(work.collectives) == {sums(c.num_layers + 1, 1), sums(c.num_layers, 2)}


def test_a_level_of_medusa_is_one_head():
    """A switch holds them all, and one of its branches runs."""
    found = placed(SMALL, "h100-80g:8", "medusa+chain,length=5")
    level = found.parts.level
    head = SMALL.hidden_size**2 + SMALL.hidden_size * SMALL.vocab_size
    assert level.bytes == pytest.approx(BF16 * head / 8, rel=0.01)
    assert level.flops == pytest.approx(2 * head / 8, rel=0.01)
    assert level.collectives == (Collective("all-reduce", BF16 * SMALL.hidden_size, 1, 8),)


def test_a_level_of_a_block_is_nothing():
    """The round's one pass is DFlash's: its layers over the block, and the LM head over all of it but the root."""
    found = placed(SMALL, "h100-80g:8", "dflash,block=8")
    parts = found.parts
    assert parts.level.flops == 0
    of_layers = 5 * kernels(SMALL) / 8
    head = SMALL.hidden_size * SMALL.vocab_size / 8
    assert parts.draft.flops > 2 * (8 * of_layers + 7 * head)
    assert parts.draft.bytes == pytest.approx(BF16 * (of_layers + head), rel=0.2)  # and the context, and its fc


def test_sums_go_over_the_chips_that_have_parts():
    found = placed(SMALL, "h100-80g:16", "eagle+chain", data=8, batch=8)
    parts = found.parts
    sums = lambda nodes, count: Collective("all-reduce", BF16 * SMALL.hidden_size * nodes, count, 2)
    assert parts.verify[5].collectives == (sums(5, 2 * SMALL.num_layers + 1),)
    assert parts.level.collectives == (sums(1, 4),)
    assert parts.draft.collectives == (sums(5, 4),)  # and none of what is kept of each sequence


def test_the_roofline_by_hand():
    where = parse_slice("v5e:4x4")
    chip = CHIPS["v5e"]
    assert where.seconds(Work(flops=197e12, bytes=1.0)) == pytest.approx(1)
    assert where.seconds(Work(flops=1.0, bytes=819e9)) == pytest.approx(1)
    message = Collective("all-reduce", 16 * 10**6, 3)
    once = 15e6 / chip.link + 6 * chip.hop  # to receive 15 of 16 parts, from 3 + 3 chips away
    assert where.seconds(Work(collectives=(message,))) == pytest.approx(3 * 2 * once)
    pairs = Collective("all-reduce", 16 * 10**6, 3, chips=2)
    assert where.seconds(Work(collectives=(pairs,))) == pytest.approx(3 * 2 * (8e6 / chip.link + chip.hop))
    eight = dataclasses.replace(pairs, chips=8)  # 2 x 4 of them: 1 + 3 away
    assert where.seconds(Work(collectives=(eight,))) == pytest.approx(3 * 2 * (14e6 / chip.link + 4 * chip.hop))
    assert parse_slice("h100-80g:1").seconds(Work(collectives=(message,))) == 0


def test_a_chip_of_two_devices():
    where = parse_slice("v7x:2x2x1")
    assert (where.chips, where.chip.memory, where.chip.devices) == (8, 96 * 2**30, 2)
    assert [where.hops(count) for count in (1, 2, 3, 4, 8)] == [0, 0, 1, 1, 2]


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="its version is in a plan for TPUs")
def test_chips_that_this_libtpu_does_not_know(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    def unknown(where: Slice):
        raise ValueError(f"{where} is not a TPU slice: Invalid TPU external name: TPU7x")

    monkeypatch.setattr(devices, "tpus", unknown)
    found = plan(PlanSettings(model="builtin", method="plain", topology="v7x:1x1x1", context=256))
    assert "the installed libtpu cannot compile for v7x, so all values come from sizes" in capsys.readouterr().err
    assert found["from"] == "sizes and data sheets; nothing was compiled" and not found["compiled"] and found["fits"]
    assert found["device"]["chips"] == 2 and found["estimated_speedup"] is None
    monkeypatch.setattr(devices, "tpus", lambda where: (_ for _ in ()).throw(ValueError("no such topology")))
    with pytest.raises(ValueError, match="no such topology"):
        plan(PlanSettings(model="builtin", method="plain", topology="v7x:1x1x1", context=256))


def test_a_checkpoint_that_is_quantised_is_planned_for_as_it_is(tmp_path: Path):
    config = json.loads((locate("builtin") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantize": "int8"}))
    assert find_model(str(tmp_path)).quantize == "int8"
    with pytest.raises(ValueError, match="holds int8 weights, which cannot become int4"):
        find_model(str(tmp_path), "int4")
    found = plan(PlanSettings(model=str(tmp_path), method="plain", device="h100-80g:1", context=256))
    whole = plan(PlanSettings(model="builtin", method="plain", device="h100-80g:1", context=256))
    assert (found["settings"]["quantize"], whole["settings"]["quantize"]) == ("int8", None)
    assert found["bytes_per_chip"]["weights"] < 0.7 * whole["bytes_per_chip"]["weights"]


def test_a_head_of_eagle_for_a_mixture_of_experts_is_dense():
    mixture = dataclasses.replace(SMALL, num_experts=8, experts_per_token=2)
    head = lambda config: module_to_dict(models_of(Target(config), parse_method("eagle"), jnp.dtype("bfloat16")).draft)
    assert {name: leaf.shape for name, leaf in head(mixture).items()} == {
        name: leaf.shape for name, leaf in head(SMALL).items()
    }


def test_a_model_known_by_name_has_no_heads_in_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for place in (tmp_path / "eagle", tmp_path / "heads" / "eagle"):
        place.mkdir(parents=True)
        (place / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert models_of(Target(SMALL), parse_method("eagle"), jnp.dtype("bfloat16")).draft is not None


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="its version is in a plan for TPUs")
def test_what_the_compiler_finds_no_room_for_does_not_fit(
    jaxspec: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    real = PlacedProgram.traced.func

    def full():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Used 17.00G of 15.75G hbm.")

    traced = property(lambda placed: SimpleNamespace(jaxpr=real(placed).jaxpr, lower=full))
    monkeypatch.setattr(PlacedProgram, "traced", traced)
    out = tmp_path / "out.json"
    code, shown, remarks = jaxspec("--method", "plain", "--topology", "v5e:4x4", "--tpu-options", "--json", out)
    assert code == 0, remarks
    found = json.loads(out.read_text())
    assert "15.75G" in remarks
    assert "It does not fit: the compiler found no room." in shown
    assert (found["fits"], found["compiled"], found["settings"]["tpu_options"]) == (False, False, True)
    assert found["from"] == "sizes and data sheets; the compiler found no room"
    assert found["bytes_per_chip"]["spare"] > 0  # of what was estimated


def test_a_bench_file_tells_what_rounds_are_like(jaxspec: Command, tmp_path: Path):
    bench, out = tmp_path / "bench.json", tmp_path / "out.json"
    rounds = {"resolved": "-", "tau": 2.5, "depth_per_round": 3.5, "nodes_per_round": 4.0}
    bench.write_text(json.dumps({"methods": {"eagle+chain": rounds}}))
    code, shown, _ = jaxspec(
        "--method", "eagle+chain", "--device", "h100-80g:8", "--context", 256, "--tau", bench, "--json", out
    )
    assert code == 0
    assert max(map(len, shown.splitlines())) <= 80
    found = json.loads(out.read_text())
    assert found["fits"]
    assert found["settings"]["quantize"] is None
    assert (found["levels_per_round"], found["nodes_per_round"]) == (3.5, 5.0)
    memory = found["bytes_per_chip"]
    parts = ("weights", "head_weights", "kv", "state", "temporaries")
    assert sum(memory[name] for name in parts) == memory["total"] == memory["limit"] - memory["spare"]
    seconds = found["seconds_per_round"]
    assert found["speedup"] == pytest.approx(2.5 * found["plain_seconds"] / (seconds["draft"] + seconds["verify"]))
    # EAGLE's layer sums twice and its fc once, and the embedding is cut too.
    level = [each for each in found["collectives"] if each["phase"] == "level"]
    sums = {"phase": "level", "kind": "all-reduce", "bytes": BF16 * SMALL.hidden_size, "count": 4, "chips": 8}
    assert level == [sums]


def test_prefill_is_planned_by_hand():
    settings = PlanSettings(model="builtin", method="plain", device="h100-80g:1", context=256, prompt=64)
    found = plan(settings)["prefill"]
    c = find_model("builtin").config
    layer = kernels(c) + 2 * c.hidden_size * c.num_kv_heads * c.head_dim + 2 * c.hidden_size
    attending = 4 * c.num_heads * c.head_dim * 64 * 65 / 2
    assert found["flops"] == pytest.approx(c.num_layers * (2 * 64 * layer + attending))
    assert (found["estimated_seconds"], found["share_of_peak"]) == (None, None)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu compiles for TPUs")
def test_a_plan_does_not_fit_if_the_compiler_finds_no_room_for_prefill(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(MODELS, "llama-2-70b", dataclasses.replace(SMALL, num_layers=1))
    monkeypatch.setattr("jaxspec.planning.plan._prefill", lambda *_: None)
    settings = PlanSettings(model="llama-2-70b", method="plain", topology="v5e:2x2", context=256, prompt=64)
    found = plan(settings)
    assert found["compiled"] and found["bytes_per_chip"]["spare"] > 0
    assert not found["fits"]


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu compiles for TPUs")
def test_what_is_compiled_for_a_tpu_has_floors_and_estimates(
    jaxspec: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sizes = {"vocab_size": 4096, "hidden_size": 1024, "intermediate_size": 2048, "num_heads": 8, "num_kv_heads": 4}
    monkeypatch.setitem(MODELS, "llama-2-70b", dataclasses.replace(SMALL, num_layers=1, **sizes))
    out = tmp_path / "out.json"
    options = ("--topology", "v5e:2x2", "--context", 256, "--prompt", 64, "--explain", 2, "--tau", 2, "--json", out)
    code, shown, remarks = jaxspec("--method", "eagle+chain,length=2", *options)
    assert code == 0, remarks
    assert max(map(len, shown.splitlines())) <= 80
    found = json.loads(out.read_text())
    for part, (lower, upper) in found["estimate_over_floor"].items():
        assert 0 < lower <= found["scheduled_over_floor"][part] <= upper, part
        assert 0 <= found["estimate_coverage"][part] <= 1
        assert all(each["seconds"] >= 0 for each in found["not_estimated"][part].values())
    memory = found["bytes_per_chip"]
    assert memory["prefill_temporaries"] > 0
    largest = max(memory["temporaries"], memory["prefill_temporaries"])
    assert memory["total"] == sum(memory[key] for key in ("weights", "head_weights", "kv", "state")) + largest
    low, high = found["prefill"]["share_of_peak"]
    assert 0 < low <= high <= 1
    assert len(found["slowest_operations"]) == 2
    assert found["slowest_operations"][0]["seconds"] >= found["slowest_operations"][1]["seconds"]
    assert 0 < found["estimated_speedup"][0] <= found["estimated_speedup"][1]
    assert found["scheduled_speedup"] > 0


def test_a_bench_file_without_tau_is_one_sentence(jaxspec: Command, tmp_path: Path, in_bucket: Bucket):
    for bench in (tmp_path / "bench.json", to_path(f"gs://{NAME}/bench.json")):
        bench.write_text(json.dumps({"methods": {"eagle+chain": {"resolved": "-", "depth_per_round": 3.5}}}))
        code, _, remarks = jaxspec("--method", "eagle+chain", "--device", "h100-80g:8", "--tau", bench)
        assert code == 2
        assert "lacks tau" in remarks.splitlines()[-1]


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_the_plan_replaces_nothing_that_it_reads(place: str, jaxspec: Command, tmp_path: Path, in_bucket: Bucket):
    folder = tmp_path if place == "disk" else to_path(f"gs://{NAME}")
    (bench := folder / "bench.json").write_text("{}")
    (config := folder / "config.json").write_text("{}")
    for more in (("--tau", bench, "--json", bench), ("--model", folder, "--json", config)):
        code, _, remarks = jaxspec("--method", "eagle+chain", "--device", "h100-80g:8", *more)
        assert code == 2
        assert "is read by this command, and would be replaced by its output" in remarks.splitlines()[-1]
    assert bench.read_text() == config.read_text() == "{}"


def test_builders_learn_costs_from_the_roofline():
    settings = PlanSettings(model="builtin", method="early-exit+pruned", device="h100-80g:1", context=256)
    builder = parse_method(plan(settings)["resolved"]).builder
    assert isinstance(builder, Pruned)
    assert builder.cost is not None
    # Its exit comes after one of the target's layers, and has a layer and a head of its own: less than the whole.
    assert 0 < builder.cost < 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--device", "h100-80g:8", "--topology", "v5e:4x4"), "either --topology"),
        ((), "either --topology"),
        (("--topology", "h100-80g:8"), "--device for GPUs"),
        (("--device", "h100:8"), "a100-80g:8"),
        (("--device", "h100-80g:2x4"), "only their number"),
        (("--device", "h100-80g:8", "--mesh", "data=2,model=2"), "must be the 8 chips"),
        (("--device", "h100-80g:6", "--mesh", "data=1,model=2,rows=3"), "split over 2, 4 or 8 devices, not 3"),
        (("--device", "h100-80g:8", "--mesh", "data=1,model=4,rows=2", "--context", 1001), "must be a multiple of 2"),
        (("--device", "h100-80g:8", "--context", 4097), "4096 positions"),
        (("--device", "h100-80g:8", "--tau", "much"), "neither a number nor a file"),
        (("--device", "h100-80g:8", "--tau", 38), "commits 5 tokens at most"),
        (("--device", "h100-80g:8", "--tau", "nan"), "commits 5 tokens at most"),
        (("--device", "h100-80g:8", "--tau=-1"), "commits 5 tokens at most"),
        (("--device", "h100-80g:8", "--tau", 3.8, "--levels", 2), "commits 3 tokens at most"),
        (("--device", "h100-80g:8", "--method", "plain", "--tau", 3.8), "commits 1 tokens at most"),
        (("--device", "h100-80g:8", "--levels", 9), "0 to 4 levels"),
        (("--device", "h100-80g:8", "--tpu-options"), "--tpu-options has no effect with --device: leave"),
        (("--device", "h100-80g:8", "--explain", 3), "--explain has no effect with --device: leave out one"),
        (("--device", "h100-80g:8", "--tau", "OUT.json", "--levels", 3), "has its own number of levels"),
        (("--device", "h100-80g:8", "--json", "/nowhere/out.json"), "there is no folder /nowhere"),
        (("--device", "h100-80g:8", "--model", "llama-9"), "llama-2-70b"),
        (("--device", "h100-80g:8", "--method", "draft-model"), "depends on its shape"),
    ],
)
def test_what_cannot_be_is_one_sentence(jaxspec: Command, arguments: tuple[object, ...], sentence: str):
    code, _, remarks = jaxspec("--method", "eagle+chain", *arguments)
    assert code == 2
    assert sentence in remarks.splitlines()[-1]


def test_without_the_compiler_it_says_how_to_install_it(jaxspec: Command, monkeypatch: pytest.MonkeyPatch):
    real = importlib.util.find_spec
    absent = lambda name, *rest: None if name == "libtpu" else real(name, *rest)
    monkeypatch.setattr(importlib.util, "find_spec", absent)
    code, _, remarks = jaxspec("--method", "plain", "--topology", "v5e:4x4")
    assert code == 1
    assert remarks.splitlines() == [
        "error: planning needs the TPU compiler (but no TPU), which is not installed: pip install 'jax[tpu]'"
    ]


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="its version is read")
def test_a_compiler_too_old_for_jax_is_named(jaxspec: Command, monkeypatch: pytest.MonkeyPatch):
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.9.9" if name == "libtpu" else real(name))
    code, _, remarks = jaxspec("--method", "plain", "--topology", "v5e:4x4")
    assert code == 1
    assert re.search(r"error: libtpu 0\.0\.9\.9 is too old for jax [\d.]+, which needs [\d.]+: pip", remarks)
