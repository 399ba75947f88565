"""`jaxspec plan` where nothing is compiled: sizes and work by hand, times, what it refuses, what it writes."""

import dataclasses
import importlib.util
import json

import jax.numpy as jnp
import pytest

from jaxspec import cli, sharding
from jaxspec.builders.pruned import Pruned
from jaxspec.config import LlamaConfig
from jaxspec.methods import parse_method
from jaxspec.planning import program, report
from jaxspec.planning.command import Plan
from jaxspec.planning.devices import CHIPS, parse_slice
from jaxspec.planning.shapes import MODELS, models_of
from jaxspec.planning.work import Collective, Work

BF16 = 2
SMALL = dataclasses.replace(MODELS["llama-2-70b"], num_layers=3)  # what is 70B but for its depth


@pytest.fixture
def jaxspec(monkeypatch, capsys):
    """Runs the command in this process, SMALL standing for the 70B: (exit code, stdout, stderr)."""
    monkeypatch.setitem(MODELS, "llama-2-70b", SMALL)

    def command(*arguments):
        monkeypatch.setattr("sys.argv", ["jaxspec", "plan", "--model", "llama-2-70b", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return exit_.value.code or 0, *capsys.readouterr()

    return command


def placed(config: LlamaConfig, where: str, *, data=1, batch=1, rows=2048, quantize=None):
    """Plain decoding on these chips."""
    method, chips = parse_method("plain"), parse_slice(where)
    models = models_of(config, None, method, jnp.dtype("bfloat16"), quantize)
    mesh = program.mesh_on(chips, config, data, chips.chips // data)
    return program.place(method.speculation(greedy=True), models, batch, rows, mesh)


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


@pytest.mark.parametrize("chips", [8, 16])
@pytest.mark.parametrize("c", [SMALL, pytest.param(MODELS["llama-2-70b"], marks=pytest.mark.soak)])
def test_bytes_of_a_70b_by_hand(c: LlamaConfig, chips: int):
    """Of 8 KV heads each chip has one, and of 16 chips two have the same. Norms are whole everywhere."""
    rows = 4096
    found = placed(c, f"h100-80g:{chips}", rows=rows)
    cut = c.num_layers * kernels(c) + 2 * c.vocab_size * c.hidden_size
    kv_kernels = c.num_layers * 2 * c.hidden_size * c.num_kv_heads * c.head_dim
    by_hand = BF16 * (cut / chips + kv_kernels / 8)
    assert sharding.device_bytes(found.models.target) == pytest.approx(by_hand, rel=0.001)
    assert sharding.device_bytes(found.state.cache) == BF16 * 2 * c.num_layers * rows * 128


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
    assert two.count(two.trace()).verify[1].flops == pytest.approx(one.count(one.trace()).verify[1].flops, rel=0.01)


def test_work_of_a_plain_round_by_hand():
    found = placed(SMALL, "h100-80g:16")
    work = found.count(found.trace()).verification(1)
    c = SMALL
    read = c.num_layers * (kernels(c) / 16 + 2 * c.hidden_size * c.head_dim) + c.vocab_size * c.hidden_size / 16
    keys_and_values = 2 * c.num_layers * 2048 * c.head_dim
    assert work.bytes == pytest.approx(BF16 * (read + keys_and_values), rel=0.001)
    assert work.flops == pytest.approx(2 * (read + keys_and_values * 8 / 2), rel=0.01)  # 8 query heads on two chips
    assert work.collectives == (Collective("all-reduce", BF16 * c.hidden_size, 2 * c.num_layers + 1),)


def test_the_roofline_by_hand():
    where = parse_slice("v5e:4x4")
    chip = CHIPS["v5e"]
    assert where.seconds(Work(flops=197e12, bytes=1.0)) == pytest.approx(1)
    assert where.seconds(Work(flops=1.0, bytes=819e9)) == pytest.approx(1)
    message = Collective("all-reduce", 16 * 10**6, 3)
    once = 15e6 / chip.link + 6 * chip.hop  # to receive 15 of 16 parts, from 3 + 3 chips away
    assert where.seconds(Work(collectives=(message,))) == pytest.approx(3 * 2 * once)
    assert parse_slice("h100-80g:1").seconds(Work(collectives=(message,))) == 0


def test_a_bench_file_tells_what_rounds_are_like(jaxspec, tmp_path):
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
    assert level == [{"phase": "level", "kind": "all-reduce", "bytes": BF16 * SMALL.hidden_size, "count": 4}]


def test_builders_learn_costs_from_the_roofline():
    settings = Plan(model="builtin", method="early-exit+pruned", device="h100-80g:1", context=256)
    builder = parse_method(report.plan(settings)["resolved"]).builder
    assert isinstance(builder, Pruned)
    assert builder.cost is not None
    # Its exit comes after one of the target's layers, and has a layer and a head of its own: less than the whole.
    assert 0 < builder.cost < 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--device", "h100-80g:8", "--topology", "v5e:4x4"), "either --topology"),
        ((), "either --topology"),
        (("--topology", "h100-80g:8"), "GPUs with --device"),
        (("--device", "h100:8"), "a100-80g:8"),
        (("--device", "h100-80g:2x4"), "number alone"),
        (("--device", "h100-80g:8", "--mesh", "data=2,model=2"), "must be the 8 chips"),
        (("--device", "h100-80g:8", "--context", 4097), "4096 positions"),
        (("--device", "h100-80g:8", "--tau", "much"), "neither a number nor a file"),
        (("--device", "h100-80g:8", "--levels", 9), "0 to 4 levels"),
        (("--device", "h100-80g:8", "--model", "llama-9"), "llama-2-70b"),
        (("--device", "h100-80g:8", "--method", "draft-model"), "depends on its shape"),
    ],
)
def test_what_cannot_be_is_one_sentence(jaxspec, arguments, said):
    code, _, remarks = jaxspec("--method", "eagle+chain", *arguments)
    assert code == 2
    assert said in remarks.splitlines()[-1]


def test_without_the_compiler_it_says_how_to_install_it(jaxspec, monkeypatch):
    real = importlib.util.find_spec
    absent = lambda name, *rest: None if name == "libtpu" else real(name, *rest)
    monkeypatch.setattr(importlib.util, "find_spec", absent)
    code, _, remarks = jaxspec("--method", "plain", "--topology", "v5e:4x4")
    assert code == 1
    assert remarks.splitlines() == [
        "error: planning for a TPU needs its compiler, and no TPU; it is not installed: pip install 'jaxspec[tpu]'"
    ]
