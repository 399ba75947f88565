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


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch):
    """Steps run in this process, at tiny shapes, and time little."""

    def started(name: str, notes: Path, *more: Any) -> str | None:
        small = {"rows": 16, "tokens": 3} if name == "transformers" else {}
        return steps.run(name, notes, dataclasses.replace(steps.QUICK, **small))

    monkeypatch.setattr(accelerator, "started", started)
    monkeypatch.setenv("JAXSPEC_ATTENTION", "dense")  # the step `context` sets it
    monkeypatch.setattr(timing, "LEAST_SECONDS", 0.001)
    monkeypatch.setattr(timing, "REPEATS", 1)


def found_in(out: Path) -> dict[str, Any]:
    """What each step found with the chosen setting of the compiler."""
    records = json.loads((out / "results.json").read_text())["steps"]
    assert all(record["status"] == "done" for record in records.values()), records
    return {name: next(iter(record["found"].values())) for name, record in records.items()}


def test_the_first_steps(tmp_path: Path, in_this_process: None):
    accelerator.main(["--quick", "--out", str(tmp_path)])
    found = found_in(tmp_path)
    assert found["compiler"]["loop"]["layers"] == 1
    assert found["compiler"]["one program per shape"]["tokens_per_second"] > 0
    plain = found["plain"]
    assert plain["about"].keys() == {"platform", "card", "driver", "versions", "date"}
    assert plain["plain"]["layers"] == 2 and plain["plain"]["tau"] == 1
    read = plain["plain"]["gigabytes_per_second"] * 1e9 * plain["plain"]["round_seconds"]
    layer = 64 * (32 + 2 * 16 + 32) + 3 * 64 * 64 + 2 * 64  # a round reads the layers, the last norm and the LM head
    assert read == pytest.approx(4 * (2 * layer + 64 + 64 * steps.TINY.vocab_size))
    assert list(found["verification"]) == ["about", "forward of 1", "forward of 5", "forward of 16"]
    for name in (steps.CHAIN, steps.BLOCK):
        drafted = found["rounds"][name]
        assert drafted["text_equals_plain"] and drafted["tau"] > 1 and drafted["draft_seconds"] > 0
    assert all(found["transformers"][name]["first_call_seconds"] > 0 for name in ("eager", "static cache"))
    assert {file.name for file in tmp_path.iterdir()} == {"results.json", "caches.tar.gz"}


@pytest.mark.soak
def test_the_later_steps(tmp_path: Path, in_this_process: None, monkeypatch: pytest.MonkeyPatch):
    def verify(settings: Any) -> None:
        settings.json.write_text(json.dumps({"passed": False, "methods": {}, "failures": [], "noise": 0.0}))
        raise SystemExit(1)

    monkeypatch.setattr(importlib.import_module("jaxspec.verify.run"), "run", verify)
    accelerator.main(["--quick", "--out", str(tmp_path), "--from", "5"])
    found = found_in(tmp_path)
    assert found["batches"]["dflash,block=16, batch 2"]["tau"] > 1
    assert found["context"]["parity of cuDNN's attention"]["largest_difference"] < 1e-5
    assert found["context"]["prefill of 64, dense"]["seconds"] > 0
    assert found["int8"]["plain, int8"]["tokens_per_second"] > 0
    assert found["graphs"]["dflash,block=16"]["tau"] > 1
    assert found["builtin"]["verify"] == {"passed": False, "methods": {}, "failures": []}


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


def test_a_step_that_is_stuck_is_killed_and_keeps_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "stuck.py").write_text(STUCK)
    monkeypatch.setattr(accelerator, "__file__", str(tmp_path / "stuck.py"))
    monkeypatch.setattr(accelerator, "STEPS", (accelerator.Step(9, "builtin"),))
    for parts in (1, 2):  # the second run goes on from the first
        with pytest.raises(SystemExit, match="not finished: builtin"):
            accelerator.main(["--out", str(tmp_path), "--seconds", "2", "--from", "builtin"])
        record = json.loads((tmp_path / "results.json").read_text())["steps"]["builtin"]
        assert record["status"] == "cut" and "stopped after" in record["why"]
        assert len(record["found"][""]) == 1 + parts


def test_every_step_is_stopped_and_none_begins_without_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def stopped(name: str, notes: Path, setting: Any, folder: Path, seconds: float, quick: bool) -> str:
        now[0] += seconds
        return f"stopped after {seconds:.0f} s"

    now = [0.0]
    monkeypatch.setattr(accelerator.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(accelerator, "started", stopped)
    for minutes in ("99", "0.1"):  # the second time nothing is started
        with pytest.raises(SystemExit, match=f"not finished: {', '.join(accelerator.NAMES)}"):
            accelerator.main(["--out", str(tmp_path), "--from", "1", "--minutes", minutes])
        found = json.loads((tmp_path / "results.json").read_text())["steps"]
        assert [record["seconds"] for record in found.values()] == [step.seconds for step in accelerator.STEPS]


def test_both_ways_on_a_tpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ran = []

    def started(name: str, notes: Path, setting: dict[str, str], *more: Any) -> None:
        ran.append((name, setting))
        notes.write_text(json.dumps({"about": {"platform": "tpu"}}))

    monkeypatch.setattr(accelerator, "started", started)
    accelerator.main(["--out", str(tmp_path), "--tpu-options"])
    both = ({}, {"JAXSPEC_TPU_OPTIONS": "1"})
    assert ran == [(step.name, way) for step in accelerator.STEPS if step.number <= 4 for way in both]


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
    ran, fails = [], {"rounds"}

    def started(name: str, notes: Path, setting: dict[str, str], *more: Any) -> str | None:
        ran.append((name, setting))
        loop = {"tokens_per_second": 99.0 if setting else 100.0, "compile_seconds": 3.0 if setting else 9.0}
        notes.write_text(json.dumps({"about": {"platform": "gpu"}, "loop": loop}))
        return "failed: it" if name in fails else None

    monkeypatch.setattr(accelerator, "started", started)
    with pytest.raises(SystemExit, match="not finished: rounds"):
        accelerator.main(["--out", str(tmp_path)])
    every = list(accelerator.COMPILER["gpu"].values())
    assert ran[:4] == [("compiler", setting) for setting in ({}, *every)]
    assert ran[4:] == [(name, every[0]) for name in ("plain", "verification", "rounds", "transformers")]  # it is chosen
    ran.clear()
    fails.clear()
    accelerator.main(["--out", str(tmp_path)])
    assert ran == [("rounds", every[0])]


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


@pytest.mark.parametrize(("speed", "chosen"), [(96, "no Triton"), (90, None)])
def test_a_setting_is_chosen_that_is_as_fast_and_compiles_sooner(speed: float, chosen: str | None):
    loops = {accelerator.OWN: (100, 20), "no Triton": (speed, 5), "level 0": None}
    named = ("tokens_per_second", "compile_seconds")
    found = {name: {"loop": dict(zip(named, loop, strict=True))} if loop else {} for name, loop in loops.items()}
    assert accelerator.choose(found)["setting"] == (accelerator.COMPILER["gpu"][chosen] if chosen else {})


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
        "verification": {"forward of 1": {"seconds": 5e-3}, "forward of 5": {"seconds": 5.5e-3}},
        "rounds": {steps.CHAIN: rounds},
        "context": {"prefill of 8192, cudnn": {"seconds": 0.11, "compile_seconds": 8.0}},
        "plain": {"plain": {"round_seconds": 5e-3, "tokens_per_second": 200.0}},
    }
    cards = {"plain": "a TPU"}
    records = {
        name: {"status": "done", "found": {"": {"about": about | {"card": cards.get(name, "H100")}, **values}}}
        for name, values in found.items()
    }
    records["context"] |= {"status": "cut", "why": "stopped after 90 s"}
    page = accelerator_page.page({"steps": records, "why": "Chosen is it."})
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    assert all(row[-3:] == ["580", "jax 0.11.2", "2026-11-27"] for row in rows[2:])
    cells = {row[1]: row[2:7] for row in rows}
    assert cells["forward of 5"] == ["5.500", "5.000", "+10%", "", "1.10 of one node"]
    assert cells[f"{steps.CHAIN}: draft"][:3] == ["1.500", "1.000", "**+50%**"]
    assert cells[f"{steps.CHAIN}: round"][:4] == ["6.600", "6.000", "+10%", "300.0"]
    assert "**text differs from plain's**" in cells[f"{steps.CHAIN}: round"][4]
    assert float(cells[f"{steps.CHAIN}: outside forwards"][0]) == pytest.approx(6.6 - 5.5 - 1.5)
    assert "36% of peak" in cells["prefill of 8192, cudnn"][4]
    assert cells["plain: round"][:4] == ["5.000", "", "", "200.0"]  # there is no plan
    assert "`context` is cut: stopped after 90 s." in page


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
