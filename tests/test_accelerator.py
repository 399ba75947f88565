"""benchmarks/accelerator.py in its quick mode: every part runs and fits the next; the numbers mean nothing."""

import dataclasses
import importlib
import importlib.util
import json
import tempfile
from pathlib import Path

import jax
import pytest

from jaxspec.costs import timing
from jaxspec.model.config import LlamaConfig
from jaxspec.model.mesh import make_mesh, split
from jaxspec.planning.chips import chip_of, parse_slice
from jaxspec.planning.program import tpus

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
PARTS = ("memory", "bandwidth", "plan", "profile", "shapes", "trained", "transformers")


def test_quick_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(timing, "LEAST_SECONDS", 0.001)
    script = importlib.import_module("accelerator")
    script.main(["--quick", "--minutes", "60", "--out", str(tmp_path / "out.json")])  # however busy the machine is
    found = json.loads((tmp_path / "out.json").read_text())
    assert {"device", "versions", *PARTS} <= found.keys()
    assert not any("left_out" in found[name] for name in PARTS)

    drafting = ("eagle+chain,length=5", "dflash,block=4")
    rows = found["profile"]["phases"]
    assert [row["phase"] for row in rows] == [
        "prefill of 64",
        *(f"plain: {part}" for part in ("verify", "rest", "round by the clock")),
        *(f"{name}: {part}" for name in drafting for part in ("draft", "verify", "rest", "round by the clock")),
    ]
    assert all(row["floor_seconds"] > 0 and row["measured_seconds"] > 0 for row in rows)
    assert all(row["estimated_seconds"] is None for row in rows)  # of a CPU
    profiles = found["profile"]["profiles"].values()
    assert all(one["unknown"] == 0 for one in profiles)
    printed = capsys.readouterr().out
    assert "phase " in printed and found["profile"]["verdict"] in printed

    shapes = found["shapes"]
    assert shapes["share_of_bandwidth"] > 0
    per_second = shapes["methods"]["plain"]["tokens_per_second"]
    a_token = 1e9 * shapes["plain_gigabytes_per_second"] / per_second
    assert 0 < a_token < shapes["read_bytes"]  # all of the weights, and no cache
    assert shapes["plain_share_of_bandwidth"] * found["bandwidth"]["gigabytes_per_second"] == pytest.approx(
        shapes["plain_gigabytes_per_second"]
    )
    assert list(shapes["verification_seconds"]) == ["8"]
    taus = {name: values["tau"] for name, values in shapes["methods"].items()}
    assert taus.pop("plain") == 1
    assert tuple(taus) == drafting and all(tau > 1 for tau in taus.values())
    methods = found["trained"]["methods"]
    assert all(values["tau"] >= 1 and values["unexplained_divergences"] == 0 for values in methods.values())
    assert found["transformers"]["times_as_fast"].keys() == methods.keys()

    script.main(["--quick", "--minutes", "-1", "--out", str(tmp_path / "none.json")])
    assert "left_out" in json.loads((tmp_path / "none.json").read_text())["trained"]


def test_parts_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = importlib.import_module("accelerator")
    script.main(["--quick", "--parts", "bandwidth", "transformers", "--out", str(tmp_path / "out.json")])
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["bandwidth"]["gigabytes_per_second"] > 0
    assert found["memory"]["left_out"] == "--parts does not name it"
    assert found["transformers"]["left_out"] == "it needs the results of trained"


def test_xla_knows_the_option_that_turns_cuda_graphs_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = importlib.import_module("accelerator")
    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    assert lowered.compile(compiler_options=script.falsifier.NO_GRAPHS)(1.0) == 2
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_gpu_enable_command_buffers"):
        lowered.compile(compiler_options={"xla_gpu_enable_command_buffers": ""})


def test_a_part_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = importlib.import_module("accelerator")

    def full(*arguments):
        raise RuntimeError("RESOURCE_EXHAUSTED:\nout of memory")

    monkeypatch.setattr(script.falsifier, "plans", full)
    monkeypatch.setattr(script, "shapes", full)
    monkeypatch.setattr(script, "trained", full)
    with pytest.raises(SystemExit, match="failed: plan, shapes, trained"):
        script.main(["--quick", "--out", str(tmp_path / "out.json")])
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["bandwidth"]["gigabytes_per_second"] > 0
    failed = {"failed": "RuntimeError: RESOURCE_EXHAUSTED: out of memory"}
    assert found["plan"] == found["shapes"] == found["trained"] == failed
    assert "left_out" in found["transformers"] and "left_out" in found["profile"]


def test_as_many_layers_as_fit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = importlib.import_module("accelerator")

    def layers(gigabytes, quantize=None):
        found = script.fitting(
            script.FULL.shape, "bfloat16", quantize, 1024, int(gigabytes * 1e9), script.FULL.replayed
        )
        assert f"{found['layers']} of 32 layers in {quantize or 'bfloat16'}" in found["why"]
        return found["layers"]

    assert layers(24) == layers(80) == 32
    assert 20 <= layers(16.9) < 32  # of a TPU v5e
    assert layers(16.9, "int8") < layers(24, "int8") == 32  # the floats are there when it quantises
    with pytest.raises(ValueError, match="too few for one layer"):
        layers(1)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu compiles for TPUs")
def test_a_plan_for_one_tpu_has_an_interval_for_each_phase(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = importlib.import_module("accelerator")
    shape = LlamaConfig(
        vocab_size=1024,
        hidden_size=256,
        intermediate_size=512,
        num_layers=1,
        num_heads=2,
        num_kv_heads=2,
        head_dim=128,
        max_length=4096,
    )
    chip = list(tpus(parse_slice("v5e:2x2")))[:1]  # of the smallest slice that can be described
    mesh = split(make_mesh(data=1, model=1, devices=chip), shape)
    monkeypatch.setattr(script.falsifier, "one_chip", lambda: mesh)
    scale = dataclasses.replace(script.FULL, prompt=128, rows=256, profiled=("plain",))
    asked = dataclasses.replace(script.question(scale, shape, None, 1.0), where=chip_of("TPU v5 lite"))
    found = script.falsifier.describe(asked, script.falsifier.plans(asked))
    assert found["chip"] == "v5e"
    for name, phase in (("prefill", "prefill"), ("plain", "verify1")):
        planned = found["programs"][name]
        assert planned["faults"] == []
        lower, upper = planned["phases"][phase]["estimated_seconds"]
        assert 0 < lower <= upper
        assert 0 < planned["phases"][phase]["floor_seconds"] < upper


def test_quick_results_are_no_results(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = importlib.import_module("accelerator")
    assert script.parse(["--quick"]).out.parent == Path(tempfile.gettempdir())
    assert script.parse([]).out.parent == BENCHMARKS / "results"
