"""The steps of accelerator.py. Each runs in a process of its own, which accelerator.py starts and may kill.

A step consists of parts. A part's result is written as soon as it is measured, so a step that is cut off keeps the
parts that it finished, and does not repeat them when it runs again. JAX's cache keeps the compiled programs.
"""

import contextlib
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.replay import PLAIN, counting_target, layers_that_fit, replayed
from jaxspec.checkpoint.config_json import CheckpointConfig
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.convert.hf_config import from_checkpoint
from jaxspec.costs.timed_loops import half_way, target_job
from jaxspec.costs.timing import seconds_per_iteration
from jaxspec.decoding.decode_state import DecodeState
from jaxspec.decoding.drafter import Committed, Models
from jaxspec.decoding.loop import draft, one_round
from jaxspec.decoding.prefill_buckets import shapes
from jaxspec.decoding.request import Request, SamplingParams
from jaxspec.decoding.speculation import Speculation
from jaxspec.engine.program import LOOP, Program
from jaxspec.evaluate.simulate import random_head
from jaxspec.host.atomic import write_whole
from jaxspec.methods.method import parse_method
from jaxspec.model.attention import Keys, attend, attend_in_cudnn, causal_mask
from jaxspec.model.config import LlamaConfig
from jaxspec.model.kv_cache import KV
from jaxspec.model.llama import Llama
from jaxspec.planning.shapes import MODELS

PACKAGES = ("jax", "jaxlib", "flax", "torch", "transformers")
CHAIN = "eagle3+chain,length=4"
TREE, BLOCK = "eagle3+eagle2,total=60,depth=8,width=8", "dflash,block=16"
ACCEPTANCE = {"eagle3": (0.76,), "dflash": (0.785,)}
"""Chance of the likeliest draft at every position. `eagle3`: with it TREE has tau 5.39, which SGLang's pull request
4247 measured on MT-bench at this depth. `dflash`: with it a chain of nine has tau 4.32, which SGLang publishes for
LLaMA-3.1-8B on GSM8K."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """Shapes of all steps.

    Attributes:
        rows: length of the cache, which is half full when rounds begin.
        tokens: tokens of each timed text, of which there are `repeats`.
        copied: bytes of the array that is copied.
        methods: the nodes that each method verifies.
        batches, contexts: batch sizes and prompt lengths of the steps `batches` and `context`.
        trial: layers of the target with which settings of the compiler are compared.
        minutes: of `jaxspec verify`.
    """

    shape: LlamaConfig = MODELS["llama-3.1-8b"]
    dtype: str = "bfloat16"
    rows: int = 2048
    tokens: int = 256
    repeats: int = 3
    copied: int = 2**30
    methods: Mapping[str, int] = dataclasses.field(default_factory=lambda: {PLAIN: 1, CHAIN: 5, TREE: 60, BLOCK: 16})
    batches: tuple[int, ...] = (4, 16, 64)
    contexts: tuple[int, ...] = (8192, 32768)
    trial: int = 8
    minutes: float = 2.0


FULL = Scale()
TINY = LlamaConfig(128, 64, 64, 2, 2, 1, 16, max_length=1024)
QUICK = Scale(TINY, "float32", 128, 12, 1, 2**16, {PLAIN: 1, CHAIN: 5, BLOCK: 16}, (2,), (64,), 1, 0.0)


class Notes:
    """The results of a step's parts, kept in a file."""

    def __init__(self, path: Path):
        self.path = path
        self.found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def part(self, name: str, measured: Callable[..., Any], *given: Any) -> Any:
        """The result of a part, `measured(*given)`, or what an earlier run found."""
        if name not in self.found:
            self.write(name, measured(*given))
        return self.found[name]

    def write(self, name: str, value: Any) -> None:
        self.found[name] = value
        print(f"  {name}: {json.dumps(value)}", flush=True)
        write_whole(self.path, json.dumps(self.found))


def run(name: str, path: Path, scale: Scale) -> str | None:
    """Runs a step, whose notes are in the file `path`; one sentence if it failed, or None."""
    notes = Notes(path)
    try:
        if (here := about(name)) != notes.found.get("about"):
            notes.found.clear()  # numbers of another card or day do not go together
        notes.write("about", here)
        STEPS[name](scale, notes)
    except ModuleNotFoundError as error:
        return f"this step needs the package {error.name}, which is not installed"
    except Exception as error:  # mostly out of memory, for which each library has its own type of error
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return None


def about(step: str) -> dict[str, Any]:
    """Card, driver, versions and date, which belong to every number."""
    if step == "transformers":  # JAX must not take the device
        torch = importlib.import_module("torch")
        here = torch.cuda.is_available()
        kind, card = ("gpu", torch.cuda.get_device_name()) if here else ("cpu", "cpu")
    else:
        kind, card = jax.default_backend(), jax.devices()[0].device_kind
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        driver = None
    installed = [name for name in PACKAGES if importlib.util.find_spec(name)]
    versions = {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in installed}}
    return {"platform": kind, "card": card, "driver": driver, "versions": versions, "date": date.today().isoformat()}


@dataclasses.dataclass(frozen=True)
class Loop:
    """The loop of a method, compiled for caches of `rows` rows; `run` is the executable of `loop.decode`."""

    spec: Speculation
    models: Models
    rows: int
    batch: int
    run: Any = None
    compile_seconds: float = 0.0

    def begin(self, tokens: int) -> DecodeState:
        """A state in the middle of a text, with `tokens` tokens to go."""
        request = Request([0], SamplingParams(max_new_tokens=1))
        state = half_way(self.spec, self.models, [request] * self.batch, self.rows)
        return jax.block_until_ready(dataclasses.replace(state, limit=state.length + tokens))

    def text(self, scale: Scale) -> tuple[dict[str, Any], DecodeState]:
        """Times of a text of `scale.tokens` tokens, and the last state."""
        end, seconds = (np.int32(2**30), np.int32(self.batch)), []
        state = jax.block_until_ready(self.run(self.models, self.begin(2 * self.spec.builder.depth + 2), *end))
        for _ in range(scale.repeats):
            del state  # before memory for the next is taken
            state = self.begin(scale.tokens)
            began = time.perf_counter()
            state = jax.block_until_ready(self.run(self.models, state, *end))
            seconds.append(time.perf_counter() - began)
        took, rounds = statistics.median(seconds), int(state.round)
        found = {
            "compile_seconds": self.compile_seconds,
            "tokens_per_second": self.batch * scale.tokens / took,
            "tau": scale.tokens / rounds,
            "round_seconds": took / rounds,
        }
        return found, state


def compiled_loop(scale: Scale, model: Llama, name: str = PLAIN, head: Any = None, batch: int = 1) -> Loop:
    """Compiles a method's loop, and nothing beside it: two programs at a time would both tune what they share."""
    spec = replayed(name, head, ACCEPTANCE)
    loop = Loop(spec, Models(target=model, draft=head), scale.rows, batch)
    state = loop.begin(scale.tokens)
    began = time.perf_counter()
    run = LOOP.lower(spec, loop.models, state, np.int32(0), np.int32(0)).compile()
    return dataclasses.replace(loop, run=run, compile_seconds=time.perf_counter() - began)


def target(scale: Scale, layers: int | None = None, quantize: str | None = None) -> Llama:
    """The target with random weights, with as many layers as the device holds."""
    fits = layers_that_fit(scale.shape, scale.dtype)
    shape = dataclasses.replace(scale.shape, num_layers=min(fits, layers or fits))
    return counting_target(shape, scale.dtype, quantize)


def head_for(scale: Scale, model: Llama, name: str) -> Any:
    """A head with random weights for a method; None for plain decoding."""
    return None if name == PLAIN else random_head(parse_method(name).drafter, model.config, scale.dtype)


def measure(scale: Scale, model: Llama, name: str, batch: int = 1) -> dict[str, Any]:
    """Times of a method's text."""
    return compiled_loop(scale, model, name, head_for(scale, model, name), batch).text(scale)[0]


def copying(size: int) -> float:
    """Bandwidth in GB/s of copying `size` bytes; bytes read and bytes written both count."""
    array = jnp.zeros(size // 4, jnp.int32)
    copies = jax.jit(lambda array: jax.lax.fori_loop(0, 20, lambda i, x: x + 1, array))

    def job(iterations: int) -> None:
        for _ in range(iterations):
            jax.block_until_ready(copies(array))

    return 20 * 2 * size / seconds_per_iteration([job])[0] / 1e9


def with_share(found: dict[str, Any], model: Llama, copied: float) -> dict[str, Any]:
    """The results of plain decoding with its share of the bandwidth of copying: each round reads the weights once."""
    read = sum(array.nbytes for name, array in module_to_dict(model).items() if name != "embedding")
    speed = read / found["round_seconds"] / 1e9
    about = {"layers": model.config.num_layers, "gigabytes_per_second": speed, "share_of_bandwidth": speed / copied}
    return found | about


one_plain_round = jax.jit(one_round, static_argnums=0, donate_argnums=2)


def compiler(scale: Scale, notes: Notes) -> None:
    """Plain decoding of a few layers, by the loop and by a program of one round. Run for each setting."""
    model = target(scale, scale.trial)
    copied = notes.part("copy_gigabytes_per_second", copying, scale.copied)
    loop = compiled_loop(scale, model)
    notes.part("loop", lambda: with_share(loop.text(scale)[0], model, copied))
    notes.part("one program per shape", one_at_a_time, scale, loop)


def one_at_a_time(scale: Scale, loop: Loop) -> dict[str, float]:
    """Plain decoding by a program of one round, called for each token, which other methods could share with it."""
    state = loop.begin(scale.tokens)
    began = time.perf_counter()
    run = one_plain_round.lower(loop.spec, loop.models, state).compile()
    compiled = time.perf_counter()
    state = jax.block_until_ready(run(loop.models, state))
    first = time.perf_counter()
    for _ in range(scale.tokens - 1):
        state = run(loop.models, state)
    jax.block_until_ready(state)
    per_second = (scale.tokens - 1) / (time.perf_counter() - first)
    return {"compile_seconds": compiled - began, "tokens_per_second": per_second}


def plain(scale: Scale, notes: Notes) -> None:
    """Plain decoding at batch 1: tokens a second, and share of the bandwidth of copying."""
    model = target(scale)
    copied = notes.part("copy_gigabytes_per_second", copying, scale.copied)
    notes.part(PLAIN, lambda: with_share(measure(scale, model, PLAIN), model, copied))


def verification(scale: Scale, notes: Notes) -> None:
    """One forward of the target over n nodes, for each n."""
    model = target(scale)

    def forward(nodes: int) -> dict[str, float]:
        job, began = target_job(model, 1, nodes, scale.rows), time.perf_counter()
        jax.block_until_ready(job(0))
        return {"compile_seconds": time.perf_counter() - began, "seconds": seconds_per_iteration([job])[0]}

    for nodes in scale.methods.values():
        notes.part(f"forward of {nodes}", forward, nodes)


def rounds(scale: Scale, notes: Notes) -> None:
    """Whole rounds with replayed acceptance; their texts must equal plain decoding's. Drafting is timed alone too."""
    model, text = target(scale), slice(scale.rows // 2, scale.rows // 2 + scale.tokens)
    found, state = compiled_loop(scale, model).text(scale)
    expected = np.asarray(state.tokens[0, text])
    per_second = notes.part(PLAIN, lambda: found)["tokens_per_second"]

    def compared(name: str) -> dict[str, Any]:
        loop = compiled_loop(scale, model, name, head_for(scale, model, name))
        times, after = loop.text(scale)
        equal = np.array_equal(after.tokens[0, text], expected)
        speedup = times["tokens_per_second"] / per_second
        return {**times, "speedup": speedup, "text_equals_plain": equal, "draft_seconds": draft_seconds(loop)}

    for name in scale.methods:
        if name != PLAIN:
            notes.part(name, compared, name)


def draft_seconds(loop: Loop) -> float:
    """Seconds of drafting in a round."""
    state = loop.begin(1)
    return seconds_per_iteration([partial(drafting, loop.spec, loop.models, state)])[0]


@partial(jax.jit, static_argnums=0)
def drafting(spec: Speculation, models: Models, state: DecodeState, iterations: jax.Array) -> jax.Array:
    """`iterations` times what a round's scope `draft` holds: a tree grows, and the head reads a path of it."""
    batch, path = len(state.length), spec.builder.depth + 1
    features = jnp.zeros((batch, path, models.target.config.hidden_size), models.target.dtype)

    def once(_: jax.Array, before: DecodeState) -> DecodeState:
        tree, grown = draft(spec, models, before, before.keys)
        read = Committed(
            start=before.length - 1,
            count=jnp.ones_like(before.length),
            token=tree.token[:, :path],
            next_token=tree.token[:, -path:],
            hidden=features,
            taps=tuple(features for _ in spec.drafter.taps(models)),
        )
        # The next root is a token of this tree, so that no iteration's drafting can be left out.
        tokens = jnp.where(jnp.arange(before.tokens.shape[1]) == before.length - 1, tree.token[:, -1:], before.tokens)
        return dataclasses.replace(before, tokens=tokens, drafter=spec.drafter.observe(models, grown.drafter, read))

    return jax.lax.fori_loop(0, iterations, once, state).tokens


def transformers(scale: Scale, notes: Notes) -> None:
    """`generate` of transformers on the same shape: eager, then a static cache, with `torch.compile` on a GPU."""
    torch, library = importlib.import_module("torch"), importlib.import_module("transformers")
    if scale.shape != TINY and not torch.cuda.is_available():
        raise ValueError("PyTorch sees no GPU")
    like = CheckpointConfig("llama", scale.shape, scale.dtype, scale.dtype, "jaxspec")
    config = library.LlamaConfig.from_dict(from_checkpoint(like))
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = library.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, scale.dtype)).eval()
        prompt = torch.ones((1, scale.rows // 2), dtype=torch.int64)
    settings = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "pad_token_id": 0}

    @torch.inference_mode()
    def seconds(new: int, cache: Any) -> float:
        if cache is not None:
            cache.reset()
        began = time.perf_counter()
        model.generate(prompt, max_new_tokens=new, past_key_values=cache, **settings)[0, -1].item()
        return time.perf_counter() - began

    def generate(cache: Any = None) -> dict[str, float]:
        first = seconds(scale.tokens, cache)
        samples = [seconds(scale.tokens, cache) - seconds(1, cache) for _ in range(scale.repeats)]
        took = statistics.median(samples) / (scale.tokens - 1)
        return {"first_call_seconds": first, "round_seconds": took, "tokens_per_second": 1 / took}

    notes.part("eager", generate)
    notes.part("static cache", generate, library.StaticCache(config=config, max_cache_len=scale.rows))


def batches(scale: Scale, notes: Notes) -> None:
    """Plain decoding and DFlash at larger batches."""
    model = target(scale)
    for batch in scale.batches:
        for name in (PLAIN, BLOCK):
            notes.part(f"{name}, batch {batch}", measure, scale, model, name, batch)


def context(scale: Scale, notes: Notes) -> None:
    """Long texts: plain decoding after them, and prefill with both forms of attention."""
    model = target(scale)
    for length in scale.contexts:
        notes.part(f"plain after {length}", measure, dataclasses.replace(scale, rows=2 * length), model, PLAIN)
    for kind in ("dense", "cudnn") if jax.default_backend() == "gpu" else ("dense",):
        os.environ["JAXSPEC_ATTENTION"] = kind
        jax.clear_caches()
        for length in scale.contexts:
            notes.part(f"prefill of {length}, {kind}", reading, scale, model, length)
        notes.part("parity of cuDNN's attention", parity, scale)


def parity(scale: Scale) -> dict[str, float]:
    """Largest difference between the two forms of attention, for a chunk of a prompt on a cache that is half full."""
    shape, width, rows = scale.shape, scale.rows // 4, scale.rows
    dim, group = shape.head_dim, shape.num_heads // shape.num_kv_heads
    sizes = (group, width, dim), (dim, rows), (rows, dim), (dim, width), (width, dim)
    keys = jax.random.split(jax.random.key(0), len(sizes))
    draw = lambda key, size: jax.random.normal(key, (1, shape.num_kv_heads, *size), scale.dtype)
    query, k, v, new_k, new_v = map(draw, keys, sizes)
    live = jnp.arange(rows)[None, None] < rows // 2
    given = query, (Keys(kv=KV(k=k, v=v), mask=live), Keys(kv=KV(k=new_k, v=new_v), mask=causal_mask(1, width)))
    dense, _ = jax.jit(attend)(*given)
    how = "cudnn" if jax.default_backend() == "gpu" else "xla"
    fused = jax.jit(partial(attend_in_cudnn, implementation=how))(*given)
    return {"largest_difference": float(jnp.abs(dense - fused).max()), "largest_value": float(jnp.abs(dense).max())}


def reading(scale: Scale, model: Llama, length: int) -> dict[str, float]:
    """Seconds of prefill of one prompt."""
    request = Request([1] * length, SamplingParams(max_new_tokens=1))
    program = Program(parse_method(PLAIN).speculation(greedy=True), Models(target=model, draft=None))
    chunk, rows = shapes(program.spec, [request])
    seconds = []
    for _ in range(1 + scale.repeats):
        state = jax.block_until_ready(program.start([request], (), rows))
        began = time.perf_counter()
        jax.block_until_ready(program.read(state, chunk, 0, length).length)
        seconds.append(time.perf_counter() - began)
    return {"compile_seconds": seconds[0], "seconds": statistics.median(seconds[1:]), "chunk": chunk, "rows": rows}


def int8(scale: Scale, notes: Notes) -> None:
    """Plain decoding with int8 kernels."""
    notes.part("plain, int8", measure, scale, target(scale, quantize="int8"), PLAIN)


def graphs(scale: Scale, notes: Notes) -> None:
    """Plain decoding and DFlash. Run for each setting of CUDA graphs."""
    model = target(scale)
    for name in (PLAIN, BLOCK):
        notes.part(name, measure, scale, model, name)


def builtin(scale: Scale, notes: Notes) -> None:
    """`jaxspec verify` of the builtin model in bfloat16."""
    options, verify = (importlib.import_module(f"jaxspec.{name}") for name in ("options.by_command", "verify.run"))
    out, asked = notes.path.with_name("verify.json"), {"dtype": "bfloat16", "methods": ("dflash", "eagle+eagle2")}
    with contextlib.suppress(SystemExit):  # the verdict says why
        verify.run(options.Verify(target=Path("builtin"), minutes=scale.minutes, json=out, **asked))
    found = json.loads(out.read_text(encoding="utf-8"))
    notes.write("verify", {key: found[key] for key in ("passed", "methods", "failures")})


STEPS: Mapping[str, Callable[[Scale, Notes], None]] = {
    step.__name__: step
    for step in (compiler, plain, verification, rounds, transformers, batches, context, int8, graphs, builtin)
}
