"""benchmarks/accelerator.py at tiny shapes: every step runs, also when the clock stops it; the numbers mean nothing."""

import dataclasses
import importlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import accelerator, accelerator_page, replay
from benchmarks import accelerator_steps as steps
from jaxspec.costs import timing
from jaxspec.planning import devices
from jaxspec.planning.shapes import MODELS

STUCK = """
import json, pathlib, subprocess, sys
notes = pathlib.Path(sys.argv[sys.argv.index("--notes") + 1])
known = json.loads(notes.read_text())
notes.write_text(json.dumps({**known, "about": {"platform": "gpu"}, f"part {len(known)}": 1}))
subprocess.Popen(["sleep", "600"], stderr=sys.stderr)
while True:  # as XLA while it compiles
    pass
"""


@pytest.fixture(autouse=True)
def short_timing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timing, "LEAST_SECONDS", 0.001)
    monkeypatch.setattr(timing, "REPEATS", 1)


def measured(name: str, folder: Path, scale: steps.Scale = steps.QUICK) -> dict[str, Any]:
    assert steps.run(name, folder / f"{name}.json", scale) is None
    return json.loads((folder / f"{name}.json").read_text())


def test_the_first_steps(tmp_path: Path):
    tried = measured("compiler", tmp_path)
    assert tried["loop"]["layers"] == 1 and tried["one program per shape"]["tokens_per_second"] > 0
    plain = measured("plain", tmp_path)
    assert plain["about"].keys() == {"platform", "card", "driver", "versions", "date"}
    assert plain["plain"]["layers"] == 2 and plain["plain"]["tau"] == 1
    read = plain["plain"]["gigabytes_per_second"] * 1e9 * plain["plain"]["round_seconds"]
    shape = steps.TINY  # a round reads the layers, the last norm and the LM head
    layer = 64 * (32 + 2 * 16 + 32) + 3 * 64 * 64 + 2 * 64
    assert read == pytest.approx(4 * (2 * layer + 64 + 64 * shape.vocab_size))

    forwards = measured("verification", tmp_path)
    assert list(forwards) == ["about", "forward of 1", "forward of 5", "forward of 16"]

    rounds = measured("rounds", tmp_path)
    for name in (steps.CHAIN, steps.BLOCK):
        assert rounds[name]["text_equals_plain"] and rounds[name]["tau"] > 1 and rounds[name]["draft_seconds"] > 0


def test_transformers(tmp_path: Path):
    found = measured("transformers", tmp_path, dataclasses.replace(steps.QUICK, rows=16, tokens=3))
    assert found["eager"]["first_call_seconds"] > 0 and found["static cache"]["first_call_seconds"] > 0


def test_the_later_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert measured("batches", tmp_path)["dflash,block=16, batch 2"]["tau"] > 1
    long = measured("context", tmp_path)
    assert long["parity of cuDNN's attention"]["largest_difference"] < 1e-5
    assert long["prefill of 64, dense"]["seconds"] > 0
    assert measured("int8", tmp_path)["plain, int8"]["tokens_per_second"] > 0
    assert measured("graphs", tmp_path)["dflash,block=16"]["tau"] > 1

    def verify(settings: Any) -> None:
        settings.json.write_text(json.dumps({"passed": False, "methods": {}, "failures": [], "noise": 0.0}))
        raise SystemExit(1)

    monkeypatch.setattr(importlib.import_module("jaxspec.verify.run"), "run", verify)
    assert measured("builtin", tmp_path)["verify"] == {"passed": False, "methods": {}, "failures": []}


def test_a_step_without_its_package_or_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def lacks(scale: steps.Scale, notes: steps.Notes) -> None:
        notes.write("first", 1)
        importlib.import_module("a_package.part")

    def full(scale: steps.Scale, notes: steps.Notes) -> None:
        notes.part("first", pytest.fail)  # is known
        raise RuntimeError("RESOURCE_EXHAUSTED:\nout of memory")

    monkeypatch.setattr(steps, "STEPS", {"int8": lacks})
    why = steps.run("int8", tmp_path / "notes.json", steps.QUICK)
    assert why == "this step needs the package a_package, which is not installed"
    monkeypatch.setattr(steps, "STEPS", {"int8": full})
    assert steps.run("int8", tmp_path / "notes.json", steps.QUICK) == "RuntimeError: RESOURCE_EXHAUSTED: out of memory"
    monkeypatch.setattr(steps, "about", lambda name: {"card": "another"})
    with pytest.raises(pytest.fail.Exception):  # is not known for this card
        steps.run("int8", tmp_path / "notes.json", steps.QUICK)


def test_a_step_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture):
    monkeypatch.setattr(accelerator, "STEPS", (accelerator.Step(1, "plain"),))
    accelerator.main(["--quick", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["steps"]["plain"]["status"] == "done"
    assert found["steps"]["plain"]["found"][""]["plain"]["tokens_per_second"] > 0
    with tarfile.open(tmp_path / "caches.tar.gz") as tar:
        assert any("jit_decode" in name for name in tar.getnames())
    assert {file.name for file in tmp_path.iterdir()} == {"results.json", "caches.tar.gz"}
    accelerator.main(["--quick", "--out", str(tmp_path)])
    assert "plain: finished before" in capfd.readouterr().out


def test_the_clock_stops_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "stuck.py").write_text(STUCK)
    out, file = ["--out", str(tmp_path)], tmp_path / "results.json"
    monkeypatch.setattr(accelerator, "__file__", str(tmp_path / "stuck.py"))
    with pytest.raises(SystemExit, match=f"not finished: {', '.join(accelerator.NAMES)}"):
        accelerator.main([*out, "--seconds", "0.1", "--from", "1"])
    found = json.loads(file.read_text())["steps"]
    assert list(found) == accelerator.NAMES
    assert all(record["status"] == "cut" and "stopped after 0 s" in record["why"] for record in found.values())

    with pytest.raises(SystemExit, match="not finished: builtin"):
        accelerator.main([*out, "--seconds", "3", "--from", "builtin"])  # enough for the first part
    again = json.loads(file.read_text())["steps"]
    before = found["builtin"]["found"][""]
    assert again["builtin"]["found"][""] == before | {"about": {"platform": "gpu"}, f"part {len(before)}": 1}
    assert {**again, "builtin": None} == {**found, "builtin": None}

    with pytest.raises(SystemExit, match="not finished: int8, graphs, builtin"):
        accelerator.main([*out, "--from", "7", "--minutes", "0.1"])
    assert json.loads(file.read_text())["steps"] == again  # nothing was started


def test_a_process_gets_its_setting_and_says_why_it_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "fails.py").write_text("""
import os, pathlib, sys
folder = pathlib.Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
assert any(folder.iterdir())
sys.exit(f"{os.environ['XLA_FLAGS']} {folder.parent.name} {os.environ.get('JAX_PLATFORMS')}")
""")
    monkeypatch.setattr(accelerator, "__file__", str(tmp_path / "fails.py"))
    monkeypatch.setenv("XLA_FLAGS", "--a")
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    run = lambda name, **setting: accelerator.started(name, tmp_path / "notes", setting, tmp_path, 60, quick=False)
    assert run("plain", XLA_FLAGS="--b") == "--a --b caches cuda"
    assert run("compiler") == "--a empty cuda"
    assert run("transformers") == "--a caches cpu"


def test_a_finished_step_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ran = []

    def started(name: str, notes: Path, setting: dict[str, str], *more: Any) -> str | None:
        ran.append((name, setting))
        loop = {"tokens_per_second": 99.0 if setting else 100.0, "compile_seconds": 3.0 if setting else 9.0}
        notes.write_text(json.dumps({"about": {"platform": "gpu"}, "loop": loop}))
        return "failed: it" if name == "rounds" and len(ran) < 10 else None

    monkeypatch.setattr(accelerator, "started", started)
    with pytest.raises(SystemExit, match="not finished: rounds"):
        accelerator.main(["--out", str(tmp_path)])
    every = list(accelerator.COMPILER["gpu"].values())
    assert ran[:4] == [("compiler", setting) for setting in ({}, *every)]
    assert ran[4:] == [(name, every[0]) for name in ("plain", "verification", "rounds", "transformers")]  # it is chosen
    ran.clear()
    ran.extend([("", {})] * 10)
    accelerator.main(["--out", str(tmp_path)])
    assert ran[10:] == [("rounds", every[0])]


def test_a_checkout_is_enough():
    code = """
import importlib.metadata as metadata
def version(name, version=metadata.version):
    if name == "jax-specdec":
        raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version = version
import jaxspec
from jaxspec.host import environment
assert jaxspec.__version__ == environment.versions()["jaxspec"] == "checkout"
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(accelerator.__file__).parent.parent)


def test_the_choice_is_by_speed_and_compile_seconds():
    def loops(**numbers: tuple[float, float]) -> dict[str, Any]:
        return {
            name.replace("_", " "): {"loop": {"tokens_per_second": speed, "compile_seconds": seconds}}
            for name, (speed, seconds) in numbers.items()
        }

    choose = lambda **numbers: accelerator.choose(loops(**numbers))["setting"]
    no_triton = accelerator.COMPILER["gpu"]["no Triton"]
    assert choose(own=(100, 20), no_Triton=(96, 5)) == no_triton  # as fast, sooner
    assert choose(own=(100, 20), no_Triton=(90, 5)) == {}  # slower
    assert accelerator.choose({"level 0": {}})["setting"] == {}


def test_small_files_are_packed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    caches = tmp_path / "caches" / "own"
    caches.mkdir(parents=True)
    for name, size in (("large", 10**5), ("small", 10), ("middle", 10**4)):
        (caches / name).write_bytes(bytes(size))
    monkeypatch.setattr(accelerator, "LARGEST", 5 * 10**4)
    accelerator.pack(tmp_path, tmp_path)
    with tarfile.open(tmp_path / "caches.tar.gz") as tar:
        assert tar.getnames() == ["caches/own/small", "caches/own/middle"]


def test_the_page_marks_a_plan_that_is_far_off(monkeypatch: pytest.MonkeyPatch):
    plan = {"seconds_per_round": {"draft": 1e-3, "verify": 5e-3}, "device": {"flops": 1e15}}
    plan |= {"prefill": {"floor_seconds": 0.1, "flops": 4e13}}
    monkeypatch.setattr(accelerator_page, "plan_of", lambda card, *given: plan if card == "H100" else None)
    about = {"card": "H100", "driver": "580", "versions": {"jax": "0.11.2"}, "date": "2026-11-27"}
    rounds = {"round_seconds": 6.6e-3, "tokens_per_second": 300.0, "tau": 2.0, "compile_seconds": 7.0}
    rounds |= {"speedup": 2.0, "text_equals_plain": False, "draft_seconds": 1.5e-3}
    found = {
        "verification": {"about": about, "forward of 1": {"seconds": 5e-3}, "forward of 5": {"seconds": 5.5e-3}},
        "rounds": {"about": about, steps.CHAIN: rounds},
        "context": {"about": about, "prefill of 8192, cudnn": {"seconds": 0.11, "compile_seconds": 8.0}},
        "plain": {"about": about | {"card": "a TPU"}, "plain": {"round_seconds": 5e-3, "tokens_per_second": 200.0}},
    }
    steps_ = {name: {"status": "done", "found": {"": values}} for name, values in found.items()}
    steps_["context"] |= {"status": "cut", "why": "stopped after 90 s"}
    lines = accelerator_page.page({"steps": steps_, "why": "Chosen is it."}).splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")][2:]
    assert all(row[-3:] == ["580", "jax 0.11.2", "2026-11-27"] for row in rows)
    cells = {row[1]: row[2:7] for row in rows}
    assert cells["forward of 5"] == ["5.500", "5.000", "+10%", "", "1.10 of one node"]
    assert cells[f"{steps.CHAIN}: draft"][:3] == ["1.500", "1.000", "**+50%**"]
    assert cells[f"{steps.CHAIN}: round"][:4] == ["6.600", "6.000", "+10%", "300.0"]
    assert "**text differs from plain's**" in cells[f"{steps.CHAIN}: round"][4]
    assert float(cells[f"{steps.CHAIN}: outside forwards"][0]) == pytest.approx(6.6 - 5.5 - 1.5)
    assert "36% of peak" in cells["prefill of 8192, cudnn"][4]
    assert cells["plain: round"][:4] == ["5.000", "", "", "200.0"]  # there is no plan
    assert "`context` is cut: stopped after 90 s." in lines


def test_as_many_layers_as_fit(monkeypatch: pytest.MonkeyPatch):
    def layers(gigabytes: float) -> int:
        monkeypatch.setattr(replay.memory, "available_bytes", lambda device: int(gigabytes * 1e9))
        return replay.layers_that_fit(MODELS["llama-3.1-8b"], "bfloat16")

    assert layers(80) == layers(24) == 32
    assert 10 < layers(15.5) < 32  # of a TPU v5e


def test_replayed_drafts_are_right_as_often_as_published():
    scale = dataclasses.replace(steps.QUICK, rows=512, tokens=200)
    model = steps.target(scale)
    loop = steps.compiled_loop(scale, model, steps.CHAIN, steps.head_for(scale, model, steps.CHAIN))
    state = loop.text(scale)[1]
    text = np.asarray(state.tokens[0, 256:456])
    assert (np.diff(text) % steps.TINY.vocab_size == 1).all()
    accepted, (chance,) = np.asarray(state.history.accepted[0, : int(state.round)]), steps.ACCEPTANCE["eagle3"]
    assert abs((accepted[:-1] > 0).mean() - chance) < 3 * (chance * (1 - chance) / len(accepted)) ** 0.5
    assert jnp.unique(accepted).size > 2


@pytest.mark.skipif(not devices.can_compile(), reason="needs the extra plan-cuda")
def test_programs_for_an_absent_gpu():
    subprocess.run([sys.executable, "-m", "tests.gpu_programs", "--quick"], check=True, timeout=600)
