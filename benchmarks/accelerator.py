"""Measures decoding of LLaMA-3.1-8B's shape on one GPU or TPU, step by step, the most valuable numbers first.

python benchmarks/accelerator.py [--out FOLDER] [--minutes 8] [--from STEP] [--tpu-options] [--quick]

Without --from it runs the steps of numbers 1 to 4 and stops, after at most --minutes. With it, it runs this step and
all later ones. Finished steps are kept. Weights are random and made on the device, nothing is downloaded, and jaxspec
need not be installed.

1 compiler       settings of the compiler, for plain decoding of 8 layers: speed and seconds of compiling; chooses one
1 plain          plain decoding at batch 1: tokens a second, and share of the bandwidth of copying
2 verification   a forward over 1, 5, 16 and 60 nodes
3 rounds         EAGLE-3 (chain, tree) and DFlash with published acceptance replayed; their texts equal plain decoding's
4 transformers   the same shape in transformers: eager, and a static cache with torch.compile
5 batches        batches of 4, 16 and 64
6 context        texts of 8k and 32k; prefill with dense attention and with cuDNN's; parity of the two
7 int8           int8 kernels (needs Qwix)
8 graphs         CUDA graphs: as XLA chooses, with loops and branches, none
9 builtin        `jaxspec verify` of the builtin model in bfloat16 (needs tyro)

Each step is a process of its own that is stopped after 90 s (`builtin`: 200 s), also while XLA compiles. What a step
measured before that is kept, and so is what it compiled: started again, it goes on from there.

The folder gets `results.json` and `caches.tar.gz`, compiled programs and tuning results, at most 16 MB each. Give the
same folder again to go on. accelerator_page.py makes a page of the results, every number beside `jaxspec plan`.
With --tpu-options every step runs twice on a TPU: as users run it, and with JAXSPEC_TPU_OPTIONS=1. Give it a folder of
its own, and twice the minutes. --quick uses tiny shapes, which a CPU computes; its numbers mean nothing.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # a plain checkout is enough

Setting = Mapping[str, str]  # environment variables of a step's process
Settings = dict[str, Setting]

LEVEL_0, NO_TRITON = "--xla_gpu_autotune_level=0", "--xla_gpu_enable_triton_gemm=false"
COMPILER: dict[str, Settings] = {
    "gpu": {
        "level 0, no Triton": {"XLA_FLAGS": f"{LEVEL_0} {NO_TRITON}"},
        "no Triton": {"XLA_FLAGS": NO_TRITON},
        "level 0": {"XLA_FLAGS": LEVEL_0},
    },
}
"""Settings that are compared with XLA's own, by platform. Tuning results of one setting must not be read under another:
XLA's key for them holds the device and the text of a fusion, and no flags. So each setting has caches of its own."""
TPU_OPTIONS: dict[str, Settings] = {"tpu": {"TPU options": {"JAXSPEC_TPU_OPTIONS": "1"}}}
GRAPH = "--xla_gpu_enable_command_buffer="
LOOPS: Setting = {"XLA_FLAGS": f"{GRAPH}+WHILE,+CONDITIONAL"}
GRAPHS: dict[str, Settings] = {"gpu": {"loops and branches too": LOOPS, "none": {"XLA_FLAGS": GRAPH}}}
OWN = "XLA's own"
NEAR = 0.95  # of the best speed; among settings this fast, the one that compiles in the least time is chosen
LEAST = 10.0  # seconds that must be left for a step to start
CACHES = "caches.tar.gz"
LARGEST = 16 * 10**6  # bytes of a file in the folder


@dataclasses.dataclass(frozen=True)
class Step:
    """A step. It is stopped after `seconds`, and runs with XLA's own settings and these, by platform."""

    number: int
    name: str
    seconds: float = 90.0
    settings: Mapping[str, Settings] = dataclasses.field(default_factory=dict)


STEPS = (
    Step(1, "compiler", settings=COMPILER),
    Step(1, "plain"),
    *(Step(i, name) for i, name in enumerate(("verification", "rounds", "transformers", "batches", "context"), 2)),
    Step(7, "int8"),
    Step(8, "graphs", settings=GRAPHS),
    Step(9, "builtin", 200.0),
)
NAMES = [step.name for step in STEPS]
FIRST = 4  # number of the last step of a run without --from


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.child:
        try:
            from benchmarks import accelerator_steps as steps
        except ModuleNotFoundError as error:
            sys.exit(f"this step needs the package {error.name}, which is not installed")
        sys.exit(steps.run(options.child, options.notes, steps.QUICK if options.quick else steps.FULL))
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if (options.out / CACHES).exists():
            shutil.unpack_archive(options.out / CACHES, folder, filter="data")
        unfinished = sequence(options, Path(folder))
    if unfinished:
        sys.exit(f"not finished: {', '.join(unfinished)}")


def sequence(options: argparse.Namespace, folder: Path) -> list[str]:
    """Runs the steps that are asked for; the names of those that did not finish."""
    file, end, unfinished = options.out / "results.json", time.monotonic() + 60 * options.minutes, []
    results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"steps": {}, "setting": {}}
    if options.start is None:
        steps = [step for step in STEPS if step.number <= FIRST]
    else:
        steps = STEPS[next(i for i, step in enumerate(STEPS) if options.start in (step.name, str(step.number))) :]
    for step in steps:
        if options.tpu_options:
            step = dataclasses.replace(step, seconds=2 * step.seconds, settings={**step.settings, **TPU_OPTIONS})
        record, left = results["steps"].get(step.name, {}), end - time.monotonic()
        if record.get("status") == "done":
            print(f"{step.name}: finished before")
        elif left < LEAST:
            print(f"{step.name}: not started, {options.minutes:g} minutes are over; go on with --from {step.name}")
            unfinished.append(step.name)
        else:
            print(f"{step.name}:", flush=True)
            seconds = min(left, options.seconds or step.seconds)
            record = run(step, seconds, record.get("found", {}), results["setting"], folder, options.quick)
            results["steps"][step.name] = record
            if step.name == "compiler":
                results |= choose(record["found"])
                print(results["why"])
            print(
                f"{step.name}: {record['status']} after {record['seconds']:.0f} s {record.get('why', '')}", flush=True
            )
            unfinished += [step.name] * (record["status"] != "done")
            write(file, json.dumps(results, indent=1))
            pack(folder, options.out)
    return unfinished


def run(step: Step, seconds: float, found: Any, chosen: Setting, folder: Path, quick: bool) -> dict[str, Any]:
    """Runs a step, one process for each setting, until its time is over.

    Args:
        found: the results of an earlier run that did not finish, by setting.
        chosen: the setting of steps without settings of their own.
        folder: of the caches.
    """
    began, why, status, notes = time.monotonic(), [], "done", folder / f"{step.name}.json"
    left: Settings = {OWN: {}} if step.settings else {"": chosen}
    while left:
        name = next(iter(left))
        setting = left.pop(name)
        write(notes, json.dumps(found.get(name, {})))
        failed = started(step.name, notes, setting, folder, seconds - (time.monotonic() - began), quick)
        found[name] = json.loads(notes.read_text(encoding="utf-8"))
        if failed:
            status = "cut" if failed.startswith("stopped") else "failed"
            why.append(f"{name}: {failed}" if name else failed)
        if name == OWN:
            left |= step.settings.get(found[name].get("about", {}).get("platform", ""), {})
    record = {"status": status, "seconds": time.monotonic() - began, "found": found}
    return {**record, "why": "; ".join(why)} if why else record


def started(name: str, notes: Path, setting: Setting, folder: Path, seconds: float, quick: bool) -> str | None:
    """Runs a step's process: None, or why it did not finish."""
    caches = folder / ("empty" if name == "compiler" else "caches")  # there compile seconds are of empty caches
    caches /= "".join(c if c.isalnum() else "_" for c in setting.get("XLA_FLAGS", "own"))
    (caches / "xla_gpu_per_fusion_autotune_cache_dir").mkdir(parents=True, exist_ok=True)  # XLA wants it to exist
    environment = {
        **os.environ,
        "JAXSPEC_TPU_OPTIONS": "0",
        **setting,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {setting.get('XLA_FLAGS', '')}".strip(),
        "JAX_COMPILATION_CACHE_DIR": str(caches),  # before JAX starts: XLA keeps its tuning results there too
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAXSPEC_CACHE": str(folder / "caches" / "jaxspec"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "caches" / "inductor"),
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92",  # one process at a time has the device
        "HF_HUB_OFFLINE": "1",
        **({"JAX_PLATFORMS": "cpu"} if name == "transformers" else {}),  # PyTorch has the device
    }
    command = [sys.executable, __file__, "--child", name, "--notes", str(notes), *["--quick"] * quick]
    with (folder / "errors").open("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(command, env=environment, stderr=errors, process_group=0)
        try:
            code = process.wait(max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            return f"stopped after {max(seconds, 0.1):.0f} s"
        finally:  # also after Ctrl-C, and with what the process has started itself
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        errors.seek(0)
        last = ([""] + errors.read().strip().splitlines())[-1]
    return None if code == 0 else last or f"it ended with exit code {code}"


def choose(found: Mapping[str, Any]) -> dict[str, Any]:
    """The setting of the compiler for the following steps, and the reason."""
    loops = {name: values["loop"] for name, values in found.items() if "loop" in values}
    if not loops:
        return {"setting": {}, "why": "No setting of the compiler was measured, so XLA's own is kept."}
    best = max(loop["tokens_per_second"] for loop in loops.values())
    near = [name for name, loop in loops.items() if loop["tokens_per_second"] >= NEAR * best]
    name = min(near, key=lambda name: loops[name]["compile_seconds"])
    show = lambda n: (
        f"{n}: {loops[n]['tokens_per_second']:.1f} tokens/s, compiled in {loops[n]['compile_seconds']:.1f} s"
    )
    settings = {name: setting for of in COMPILER.values() for name, setting in of.items()}
    return {"setting": settings.get(name, {}), "why": f"Chosen is {name}. Measured were {'; '.join(map(show, loops))}."}


def pack(folder: Path, out: Path) -> None:
    """Packs the caches, small files first, because tuning results are small, as far as they fit into one file."""
    files = sorted((f for f in (folder / "caches").rglob("*") if f.is_file()), key=lambda file: file.stat().st_size)
    new, taken = out / "caches.new", 0
    with tarfile.open(new, "w:gz", compresslevel=1) as tar:
        for file in files:
            taken += file.stat().st_size + 1024  # JAX compresses programs itself
            if taken > LARGEST:
                print(f"{CACHES} has no room for compiled programs of {file.stat().st_size:,} bytes and more")
                break
            tar.add(file, file.relative_to(folder))
    new.replace(out / CACHES)


def write(file: Path, text: str) -> None:
    """Replaces the file as a whole."""
    new = file.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(file)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    text = dict(zip(("description", "epilog"), (__doc__ or "").split("\n", 1), strict=True))
    parser = argparse.ArgumentParser(**text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, help="folder of the results (default: accelerator, or a temporary one with --quick)"
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="time for all steps together (default: 8)")
    parser.add_argument("--from", dest="start", metavar="STEP", help=f"a name or number: {', '.join(NAMES)}")
    parser.add_argument("--tpu-options", action="store_true", help="on a TPU: each step without and with these options")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to check that everything runs")
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)  # of every step, for the test
    parser.add_argument("--child", choices=NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--notes", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.start not in (None, *NAMES, *(str(step.number) for step in STEPS)):
        parser.error(f"--from {options.start}: there is no such step; there are {', '.join(NAMES)}, or their numbers")
    if options.out is None:
        options.out = Path(tempfile.mkdtemp()) if options.quick else Path("accelerator")
    return options


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by which the running step is killed too
    main()
