"""Times jaxspec beside transformers and llama.cpp on one model, in one run, one prompt at a time.

    python benchmarks/beside_others.py CHECKPOINT MODEL.gguf --prompts mt-bench --chat --limit 8 --json OUT.json

Greedy, at batch size 1, all in one process on all cores, taking turns; times are medians and exclude prefill.
CHECKPOINT is the GGUF file, converted; jaxspec and transformers compute in float32 from its weights, dequantised.
llama.cpp runs the file as it is, and copies of it in float32 and float16. transformers and llama.cpp also decode with
their own prompt lookup. Needs PyTorch, and llama-cpp-python, which no extra of jaxspec installs.
"""

import argparse
import datetime
import importlib
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
import transformers

from jaxspec.checkpoint.loading import Checkpoint, load
from jaxspec.convert.llama import export
from jaxspec.engine.chat_format import ChatFormat
from jaxspec.engine.engine import Engine
from jaxspec.engine.requests import encode
from jaxspec.evaluate.divergence import first_difference, next_logits
from jaxspec.evaluate.questions import next_prompt, read_questions
from jaxspec.host import environment
from jaxspec.host.atomic import write_whole

llama_cpp: Any = importlib.import_module("llama_cpp")
llama_lookup: Any = importlib.import_module("llama_cpp.llama_speculative")
Run = Callable[[list[int]], tuple[list[int], float]]  # prompt -> new tokens, seconds from the first of them to the last
REFERENCE = "transformers float32"
COPIES = {"float32": llama_cpp.LLAMA_FTYPE_ALL_F32, "float16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16}


def main() -> None:
    options = arguments()
    model = load(options.checkpoint, "float32")
    questions = read_questions(options.prompts, options.limit)
    prompts = encode([next_prompt(each, (), options.chat) for each in questions], model, options.chat, ChatFormat())
    with tempfile.TemporaryDirectory() as folder:
        runs = every_run(options, model, max(map(len, prompts)), Path(folder))
        answers: dict[str, list[tuple[list[int], float]]] = {name: [] for name in runs}
        for number, prompt in enumerate(prompts, 1):
            for run in runs.values():
                run(prompt)  # compiles, and fills caches
            passes = [{name: run(prompt) for name, run in runs.items()} for _ in range(options.repeats)]
            for name, found in answers.items():
                found.append((passes[0][name][0], statistics.median(one[name][1] for one in passes)))
            print(f"prompt {number} of {len(prompts)}", flush=True)

    measured = {}
    for name, found in answers.items():
        differ = [
            {"prompt": number, **difference(model, prompt, expected, tokens)}
            for number, (prompt, (expected, _), (tokens, _)) in enumerate(
                zip(prompts, answers[REFERENCE], found, strict=True)
            )
            if expected != tokens
        ]
        tokens = sum(len(one) - 1 for one, _ in found)
        ms = 1000 * sum(seconds for _, seconds in found) / tokens
        measured[name] = {"ms_per_token": ms, "tokens": tokens, "divergences": differ}
        print(f"{name:<32} {ms:7.2f} ms a token, {len(differ)} of {len(found)} texts differ from {REFERENCE}'s")
    if options.json:
        write_whole(options.json, json.dumps({**about(options), "runs": measured}, indent=1) + "\n")


def every_run(options: argparse.Namespace, model: Checkpoint, longest: int, folder: Path) -> dict[str, Run]:
    """All runs by name, the libraries' plain decoding before their prompt lookup."""
    new, length = options.max_new_tokens, longest + options.max_new_tokens + 16
    gguf = Path(options.gguf)
    export(model.path, folder / "hf")
    oracle = transformers.AutoModelForCausalLM.from_pretrained(folder / "hf", dtype=torch.float32)
    runs: dict[str, Run] = {}
    for label, lookup in (("", {}), (" prompt lookup", {"prompt_lookup_num_tokens": options.lookup})):
        runs[f"transformers{label} float32"] = with_transformers(oracle.eval(), new, lookup)
    for method in ("plain", *options.methods):
        runs[f"jaxspec {method} float32"] = with_jaxspec(Engine.calibrated(model, method), new)
    files = {name: in_precision(gguf, kind, folder / f"{name}.gguf") for name, kind in COPIES.items()}
    for name, file in {**files, "as published": gguf}.items():
        for label, lookup in (("", 0), (" prompt lookup", options.lookup)):
            runs[f"llama.cpp{label} {name}"] = with_llama_cpp(file, new, length, lookup, model.config.eos)
    return runs


def with_transformers(oracle: Any, new: int, settings: dict[str, Any]) -> Run:
    """`generate` of transformers. The time of a call for one token is subtracted: it is that of prefill."""
    settings = {"do_sample": False, "pad_token_id": 0, **settings}

    @torch.inference_mode()
    def timed(prompt: list[int], count: int) -> tuple[list[int], float]:
        ids = torch.tensor([prompt], device=oracle.device)
        began = time.perf_counter()
        found = oracle.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **settings)
        return found[0, len(prompt) :].tolist(), time.perf_counter() - began

    def run(prompt: list[int]) -> tuple[list[int], float]:
        _, prefill = timed(prompt, 1)
        tokens, whole = timed(prompt, new)
        return tokens, whole - prefill

    return run


def with_jaxspec(engine: Engine, new: int) -> Run:
    def run(prompt: list[int]) -> tuple[list[int], float]:
        (found,) = engine.generate([prompt], max_new_tokens=new)
        return found.tokens, found.decode_seconds

    return run


def with_llama_cpp(file: Path, new: int, length: int, lookup: int, eos: Collection[int]) -> Run:
    """llama-cpp-python's greedy `generate`, with a cache of `length` tokens."""
    draft = llama_lookup.LlamaPromptLookupDecoding(num_pred_tokens=lookup) if lookup else None
    threads = torch.get_num_threads()
    sizes: dict[str, Any] = {"n_ctx": length, "n_threads": threads, "n_threads_batch": threads}
    model = llama_cpp.Llama(str(file), draft_model=draft, logits_all=bool(lookup), verbose=False, **sizes)

    def run(prompt: list[int]) -> tuple[list[int], float]:
        model.reset()  # so that no prompt is read from an earlier call's cache
        generated = model.generate(prompt, top_k=1, temp=0.0, repeat_penalty=1.0)
        found = [next(generated)]
        began = time.perf_counter()
        for token in itertools.islice(generated, new - 1):
            found.append(token)
            if token in eos:
                break
        return found, time.perf_counter() - began

    return run


def in_precision(gguf: Path, kind: int, out: Path) -> Path:
    """A copy of the file in another precision, made by llama.cpp."""
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype, settings.allow_requantize = kind, True
    if llama_cpp.llama_model_quantize(str(gguf).encode(), str(out).encode(), settings):
        raise RuntimeError(f"llama.cpp could not convert {gguf}")
    return out


def difference(model: Checkpoint, prompt: list[int], expected: list[int], found: list[int]) -> dict[str, Any]:
    """The first token in which two texts differ, and the gap of the target's logits there between the two tokens."""
    position = first_difference(expected, found)
    if position is None or position >= min(len(expected), len(found)):
        return {"position": min(len(expected), len(found)), "gap": None}
    logits = next_logits(model.target, [*prompt, *expected[:position]])
    return {"position": position, "gap": float(abs(logits[expected[position]] - logits[found[position]]))}


def about(options: argparse.Namespace) -> dict[str, Any]:
    """The machine, versions and settings of the run."""
    others = {each.__name__: each.__version__ for each in (torch, transformers, llama_cpp)}
    settings = {key: vars(options)[key] for key in ("prompts", "chat", "limit", "max_new_tokens", "repeats", "lookup")}
    return {
        "device": environment.device(),
        "versions": {**environment.versions(), **others},
        "date": datetime.date.today().isoformat(),
        "settings": {"model": Path(options.gguf).name, **settings},
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkpoint", help="the GGUF file, converted by jaxspec-convert; or a name, such as smollm2")
    parser.add_argument("gguf", help="the GGUF file")
    parser.add_argument("--prompts", required=True, help="as in `jaxspec bench`; only first turns are used")
    parser.add_argument("--chat", action="store_true", help="format the prompts with the chat template")
    parser.add_argument("--methods", nargs="+", default=["ngram+chain"], help="methods besides plain")
    parser.add_argument("--limit", type=int, help="take only the first questions")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lookup", type=int, default=2, help="drafts of the other libraries' prompt lookup")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
