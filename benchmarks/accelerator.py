"""Measures one TPU or GPU, and checks `jaxspec plan` against it, in nine minutes.

python benchmarks/accelerator.py [--model NAME] [--quantize int8] [--parts NAME ...] [--minutes 9] [--out FILE.json]
    [--quick]

1. memory: finds how many layers of a LLaMA-2-7B (or of --model) in bfloat16 fit: all 32 in 24 GB, fewer on a TPU v5e
   with 16 GB. Prints the number and the reason. Parts 3 to 5 use this model with random weights.
2. bandwidth: measures copying within the device's memory. This bandwidth bounds plain decoding.
3. plan: compiles plain decoding, EAGLE, DFlash and prefill for this device. Gives each phase the floor by the data
   sheet and the compiler's interval, as `jaxspec plan` does. The compiler estimates no times for GPUs: there the plan
   consists of floors and faults. Without a data sheet, floors are computed from the bandwidth of part 2.
4. profile: runs the programs of part 3 under the profiler and adds up the times by the scopes of the compiled text.
   Prints floor, estimate and measured time of each phase side by side, and whether the plan holds.
5. shapes: times a forward alone and plain decoding end to end, each as a share of the bandwidth; verification of 8 to
   64 nodes; and whole rounds of EAGLE and DFlash, with random heads whose acceptance is set to published numbers. The
   engine's overhead is the time of a round minus the times of its pieces, each timed alone.
6. trained: trains a LLaMA of about 100M on Python's standard library, and its EAGLE head; measures tau and speedup.
7. transformers: times transformers on the model and prompts of part 6, if PyTorch is installed and sees the device.

The JSON also holds device and versions. It is written after each part. A part is left out if too few minutes remain;
the JSON then gives the reason. If a part fails, the JSON holds its error, the other parts still run, and the exit code
is 1. `--quick` uses tiny shapes, which a CPU computes in seconds, to check that everything runs; its numbers mean
nothing.
"""

import argparse
import dataclasses
import datetime
import functools
import gc
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs room on the device too
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")  # but little; 0.75 of 24 GB is too little for a 7B

import falsifier
import jax
import jax.numpy as jnp
from random_target import fitting, random_target

from jaxspec.checkpoint import config_json, memory
from jaxspec.checkpoint.loading import Checkpoint, load
from jaxspec.costs import timing
from jaxspec.costs.round_pieces import target_job
from jaxspec.decoding.drafter import Drafter
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.engine.engine import Engine
from jaxspec.engine.statistics import statistics_of
from jaxspec.evaluate import bench, piece_times, runner, simulate
from jaxspec.evaluate.description import weight_bytes
from jaxspec.evaluate.settings import Bench
from jaxspec.evaluate.suites import read_questions
from jaxspec.host import environment
from jaxspec.host.atomic import write_whole
from jaxspec.methods.method import parse_method
from jaxspec.model.config import LlamaConfig
from jaxspec.model.quantization import KINDS
from jaxspec.planning.chips import chip_of
from jaxspec.planning.shapes import MODELS
from jaxspec.train.methods import eagle, lm
from jaxspec.train.settings.data import Data, DataMixture
from jaxspec.train.settings.heads import Eagle, Where
from jaxspec.train.settings.lm import Lm
from jaxspec.train.settings.recipe import Recipe

RESULTS = Path(__file__).parent / "results"
ACCEPTANCE = {"eagle": (0.76, 0.69, 0.67, 0.68, 0.68), "dflash": (0.785,)}
"""Acceptance by position of each drafter. `eagle`: n-α of LLaMA2-Chat 7B on MT-bench at temperature 0 (EAGLE,
arXiv:2401.15077, Table 2), measured on chains, which makes trees look worse here than they are. `dflash`: the constant
at which a chain of nine has tau 4.32, which SGLang publishes for LLaMA-3.1-8B on GSM8K at temperature 0."""
BENCHED = ("plain", "eagle+chain", "eagle+static", "eagle+eagle2")
COPIES = 20  # that one program makes
NEEDS = {
    "plan": ("memory", "bandwidth"),
    "profile": ("plan",),
    "shapes": ("memory", "bandwidth"),
    "transformers": ("trained",),
}
"""Parts that use the results of other parts, and the names of those."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """Shapes, datasets and time limits of all parts.

    Attributes:
        copied: size in bytes of the array that is copied.
        shape: shape of the target with random weights.
        dtype: dtype of the target with random weights.
        tokens: length of its prompt, and number of tokens that it generates.
        rows, prompt, rounds: see `falsifier.Question`.
        profiled: methods that are planned and profiled.
        nodes: numbers of nodes whose verification is timed.
        replayed: methods with simulated acceptance.
        small: options of `jaxspec-train lm` other than text and recipe.
        lm, eagle: training recipes of the small model and of its head.
        data: training text of both.
        methods: methods that the small model is measured with.
        questions: number of prompts that the small model is measured on.
        new_tokens: number of tokens that it generates for each prompt.
        minutes: time that must remain for a part to start, by its name.
    """

    copied: int
    shape: LlamaConfig
    dtype: str
    tokens: int
    rows: int
    prompt: int
    rounds: int
    profiled: tuple[str, ...]
    nodes: tuple[int, ...]
    replayed: tuple[str, ...]
    small: dict[str, Any]
    lm: Recipe
    eagle: Recipe
    data: Path
    methods: tuple[str, ...]
    questions: int
    new_tokens: int
    minutes: dict[str, float]


FULL = Scale(
    copied=2**30,
    shape=MODELS["llama-2-7b"],
    dtype="bfloat16",
    tokens=256,
    rows=2048,
    prompt=1024,
    rounds=16,
    profiled=("plain", "eagle+chain,length=5", "dflash,block=10"),
    nodes=(8, 16, 32, 64),
    replayed=(
        "eagle+chain,length=5",
        "eagle+static",
        "dflash,block=10",
        "dflash,block=10+eagle2,total=32,depth=9,width=8",
        "dflash,block=10+eagle2,total=64,depth=9,width=8",
    ),
    small={"layers": 12, "hidden_size": 768, "head_dim": 64, "vocab_size": 8192, "context": 512},
    lm=Recipe(steps=500, batch_size=32, learning_rate=1e-3, evaluate_every=500, save_every=500),
    eagle=Recipe(steps=300, batch_size=16, learning_rate=1e-3, evaluate_every=300, save_every=300),
    data=Data.data,
    methods=BENCHED,
    questions=16,
    new_tokens=128,
    minutes={"memory": 0, "bandwidth": 0.2, "plan": 3, "profile": 1, "shapes": 3, "trained": 4, "transformers": 1},
)
QUICK = Scale(
    copied=2**16,
    shape=LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16
    ),
    dtype="float32",
    tokens=16,
    rows=128,
    prompt=64,
    rounds=2,
    profiled=("plain", "eagle+chain,length=5", "dflash,block=4"),
    nodes=(8,),
    replayed=("eagle+chain,length=5", "dflash,block=4"),
    small={"layers": 1, "hidden_size": 32, "head_dim": 16, "vocab_size": 300, "context": 512},
    lm=Recipe(steps=2, batch_size=2, learning_rate=1e-3),
    eagle=Recipe(steps=2, batch_size=2, learning_rate=1e-3),
    data=Path(json.__file__).parent,
    methods=("plain", "eagle+chain"),
    questions=1,
    new_tokens=8,
    minutes=dict.fromkeys(FULL.minutes, 0.0),
)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    scale = QUICK if options.quick else dataclasses.replace(FULL, shape=MODELS[options.model])
    began, found = time.perf_counter(), about(options)
    with tempfile.TemporaryDirectory() as folder:
        planned = functools.cache(lambda: falsifier.plans(asked()))

        def model_shape() -> LlamaConfig:
            return dataclasses.replace(scale.shape, num_layers=found["memory"]["layers"])

        def asked() -> falsifier.Question:
            return question(scale, model_shape(), options.quantize, found["bandwidth"]["gigabytes_per_second"])

        def weights() -> Checkpoint:
            gc.collect()  # frees the weights of the previous part
            return random_target(model_shape(), scale.dtype, options.quantize)

        parts = {
            "memory": lambda: fits(scale, options.quantize),
            "bandwidth": lambda: copying(scale.copied),
            "plan": lambda: falsifier.describe(asked(), planned()),
            "profile": lambda: falsifier.profiled(asked(), planned(), weights()),
            "shapes": lambda: shapes(scale, weights(), found["bandwidth"]["gigabytes_per_second"]),
            "trained": lambda: trained(scale, Path(folder)),
            "transformers": lambda: transformers(scale, Path(folder), found["trained"]),
        }
        for name, part in parts.items():
            left = options.minutes - (time.perf_counter() - began) / 60
            if name not in options.parts:
                found[name] = {"left_out": "--parts does not name it"}
            elif left < scale.minutes[name]:
                found[name] = {"left_out": f"{left:.1f} minutes were left of {options.minutes}"}
            elif missing := [of for of in NEEDS.get(name, ()) if {"left_out", "failed"} & found[of].keys()]:
                found[name] = {"left_out": f"it needs the results of {' and '.join(missing)}"}
            else:
                found[name] = attempt(part)
            print(f"{name}: {json.dumps(found[name])}", flush=True)
            write_whole(options.out, json.dumps(found, indent=2) + "\n")
    print(f"written to {options.out}")
    if failed := [name for name in parts if "failed" in found[name]]:
        sys.exit(f"failed: {', '.join(failed)}")


def attempt(part: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Results of a part with its seconds, or the error it failed with; the other parts then still run."""
    started = time.perf_counter()
    try:
        return part() | {"seconds": time.perf_counter() - started}
    except Exception as error:  # mostly out of memory, for which each library has its own type of error
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def about(options: argparse.Namespace) -> dict[str, Any]:
    """Device, versions, date and options."""
    return {
        "device": environment.device(),
        "versions": environment.versions(),
        "date": datetime.date.today().isoformat(),
        "quick": options.quick,
        "quantize": options.quantize,
    }


def fits(scale: Scale, quantize: str | None) -> dict[str, Any]:
    """The number of layers of the target that fit into the device's memory."""
    free = memory.available_bytes(jax.devices()[0])
    return fitting(scale.shape, scale.dtype, quantize, 4 * scale.tokens, free, scale.replayed)


def question(scale: Scale, shape: LlamaConfig, quantize: str | None, copied: float) -> falsifier.Question:
    """The falsifier's question for this device.

    Args:
        copied: measured bandwidth of copying, in GB/s.
    """
    return falsifier.Question(
        shape=shape,
        dtype=scale.dtype,
        quantize=quantize,
        methods=scale.profiled,
        acceptance=ACCEPTANCE,
        rows=scale.rows,
        prompt=scale.prompt,
        rounds=scale.rounds,
        where=chip_of(jax.devices()[0].device_kind),
        copied=1e9 * copied,
    )


def copying(size: int) -> dict[str, float]:
    """Bandwidth in GB/s of copying `size` bytes repeatedly; bytes read and bytes written both count."""

    @jax.jit
    def many(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, COPIES, lambda i, x: x + 1, x)

    x = many(jnp.zeros(size // 4, jnp.int32)).block_until_ready()
    samples = []
    for _ in range(5):
        started = time.perf_counter()
        x = many(x).block_until_ready()
        samples.append(time.perf_counter() - started)
    return {"gigabytes_per_second": 2 * size * COPIES / statistics.median(samples) / 1e9}


def shapes(scale: Scale, model: Checkpoint, copied: float) -> dict[str, Any]:
    """Times with random weights: the pieces of a round, whole rounds, and the engine's overhead.

    Args:
        copied: measured bandwidth of the device's memory, in GB/s.
    """
    shape = model.config.model
    prompt = Request([1] * scale.tokens, SamplingParams(max_new_tokens=scale.tokens))
    engines = {"plain": Engine(model, "plain")}
    heads: dict[Drafter, Any] = {}  # each shared by the methods that use it, to save memory
    for name in scale.replayed:
        method = parse_method(name)
        if method.drafter not in heads:
            heads[method.drafter] = simulate.random_head(method.drafter, shape, scale.dtype)
        accepted = ACCEPTANCE[method.drafter.name]
        engines[name] = simulate.engine(model, method, accepted, heads[method.drafter])
    rows = 4 * scale.tokens
    with model.context():
        jobs = [target_job(model.target, 1, size, rows) for size in (1, *scale.nodes)]
        one, *verified = timing.seconds_per_unit(jobs)
    pieces = piece_times.measure(engines, [prompt])
    # A forward reads its weights and all rows of the cache. For the whole loop only the weights are counted.
    weights = weight_bytes(model.target)["read_bytes"]
    read = weights + memory.kv_bytes(shape, 1, rows, scale.dtype)
    methods = {name: rounds(name, engine, prompt, pieces) for name, engine in engines.items()}
    for values in methods.values():
        values["speedup"] = values["tokens_per_second"] / methods["plain"]["tokens_per_second"]
    plain = weights * methods["plain"]["tokens_per_second"] / 1e9
    return {
        "parameters": memory.parameter_count(shape),
        "read_bytes": read,
        "forward_seconds": one,
        "gigabytes_per_second": read / one / 1e9,
        "share_of_bandwidth": read / one / 1e9 / copied,
        "plain_gigabytes_per_second": plain,
        "plain_share_of_bandwidth": plain / copied,
        "verification_seconds": dict(zip(map(str, scale.nodes), verified, strict=True)),
        "acceptance": ACCEPTANCE,
        "methods": methods,
    }


def rounds(name: str, engine: Engine, prompt: Request, pieces: piece_times.PieceTimes) -> dict[str, float]:
    """Times of a method's whole rounds, and the engine's overhead: their time without drafting and verification."""
    runs = [runner.warm(engine, [prompt], [None])[0] for _ in range(3)]
    seconds, counts = statistics.median(run.decode_seconds for run in runs), statistics_of([runs[0].history])
    size = max(engine.method.speculation(True, tree_sizes=engine.tree_sizes).verify_sizes)
    a_round = seconds / counts.rounds
    accounted = counts.depth_per_round * pieces.level[name] + pieces.target[size]
    return {
        "tokens_per_second": counts.tokens / seconds,
        "tau": counts.tau,
        "round_seconds": a_round,
        "level_seconds": pieces.level[name],
        "verify_seconds": pieces.target[size],
        "overhead_seconds": a_round - accounted,
    }


def trained(scale: Scale, folder: Path) -> dict[str, Any]:
    """Trains a model and its EAGLE head, and measures them on prompts that neither was trained on."""
    target = folder / "lm"
    lm.train(Lm(target, data=Data(scale.data), save_dtype="bfloat16", recipe=scale.lm, **scale.small))
    eagle.train(Eagle(where=Where(target), data=DataMixture(scale.data), recipe=scale.eagle))
    settings = Bench(
        target=target,
        prompts=Path("builtin"),
        limit=scale.questions,
        methods=scale.methods,
        sampling=SamplingParams(max_new_tokens=scale.new_tokens),
        repeats=2,
    )
    found = bench.compare(settings)
    kept = ("tokens_per_second", "speedup", "tau", "modelled_speedup", "acceptance_by_position", "gigabytes_per_second")
    kept = (*kept, "unexplained_divergences")
    methods = {name: {key: values[key] for key in kept} for name, values in found["methods"].items()}
    shape = config_json.read_config(target).model
    return {"parameters": memory.parameter_count(shape), "dtype": found["dtype"], "methods": methods}


def transformers(scale: Scale, folder: Path, ours: dict[str, Any]) -> dict[str, Any]:
    """Times the greedy `generate` of transformers on the trained model, on the same prompts and device."""
    try:
        import torch
        import transformers
        from transformers_baseline import with_transformers
    except ImportError as error:
        return {"left_out": str(error)}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if (jax.default_backend() == "cpu") != (device == "cpu"):
        return {"left_out": f"PyTorch runs on {device}, but JAX on {jax.default_backend()}"}
    from jaxspec.convert import export

    export.export(folder / "lm", folder / "hf")
    tokenizer = load(folder / "lm").tokenizer
    dtype = getattr(torch, ours["dtype"])
    oracle = transformers.AutoModelForCausalLM.from_pretrained(folder / "hf", dtype=dtype).eval().to(device)
    run = with_transformers(oracle, scale.new_tokens, {})
    tokens = seconds = 0.0
    for question in read_questions("builtin", scale.questions):
        prompt = tokenizer.encode(question.turns[0])
        run(prompt)  # warms up
        text, taken = run(prompt)
        tokens, seconds = tokens + len(text) - 1, seconds + taken
    speed = tokens / seconds
    ratios = {name: values["tokens_per_second"] / speed for name, values in ours["methods"].items()}
    return {"version": transformers.__version__, "tokens_per_second": speed, "times_as_fast": ratios}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    text = dict(zip(("description", "epilog"), (__doc__ or "").split("\n", 1), strict=True))
    parser = argparse.ArgumentParser(**text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="tiny shapes, only to check that everything runs; writes to the temporary folder unless --out is given",
    )
    parser.add_argument(
        "--model",
        choices=MODELS,
        default="llama-2-7b",
        help="shape of the target with random weights (default: llama-2-7b)",
    )
    parser.add_argument("--quantize", choices=KINDS, help="quantize the kernels of that target")
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=FULL.minutes,
        default=list(FULL.minutes),
        help="run only these parts; name those that they need too: memory and bandwidth, and plan for profile",
    )
    parser.add_argument("--minutes", type=float, default=9, help="time for all parts together (default: 9)")
    parser.add_argument(
        "--out", type=Path, help="default: benchmarks/results/accelerator_DEVICE.json, or a temporary file with --quick"
    )
    options = parser.parse_args(arguments)
    if options.out is None:
        name = "".join(c if c.isalnum() else "_" for c in jax.devices()[0].device_kind.lower())
        options.out = (Path(tempfile.gettempdir()) if options.quick else RESULTS) / f"accelerator_{name}.json"
    return options


if __name__ == "__main__":
    main()
