"""Compares jaxspec with transformers on the same checkpoint, prompts and device: time per token, and equal tokens.

python benchmarks/transformers_baseline.py HF_FOLDER CHECKPOINT PROMPTS.jsonl [--methods ngram+chain ...] [--json]

All runs are greedy, in float32, at batch size 1, in one process, and take turns; times are medians. They exclude
prefill: jaxspec times it separately, and for transformers the time of a call with `max_new_tokens=1` is subtracted.
"""

import argparse
import datetime
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from jaxspec.checkpoint.loading import load
from jaxspec.engine.engine import Engine
from jaxspec.evaluate.divergence import first_difference, next_logits
from jaxspec.evaluate.questions import read_questions
from jaxspec.host import environment

GREEDY, LOOKUP = "transformers", "transformers prompt lookup"
Run = Callable[[list[int]], tuple[list[int], float]]  # prompt -> new tokens, seconds of decoding without prefill


def main() -> None:
    options = arguments()
    torch.set_num_threads(torch.get_num_threads() if options.threads is None else options.threads)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(options.hf, dtype=torch.float32).eval()
    model = load(options.checkpoint, "float32")
    prompts = [model.tokenizer.encode(q.turns[0]) for q in read_questions(options.prompts, options.limit)]

    runs: dict[str, Run] = {
        GREEDY: with_transformers(oracle, options.max_new_tokens, {}),
        LOOKUP: with_transformers(oracle, options.max_new_tokens, {"prompt_lookup_num_tokens": options.lookup}),
    }
    for method in ("plain", *options.methods):
        runs[method] = with_jaxspec(Engine.calibrated(model, method), options.max_new_tokens)

    seconds: dict[str, float] = dict.fromkeys(runs, 0.0)
    tokens: dict[str, int] = dict.fromkeys(runs, 0)
    apart: list[dict[str, Any]] = []
    for number, prompt in enumerate(prompts):
        for run in runs.values():
            run(prompt)  # compiles, and fills caches
        passes = [{name: run(prompt) for name, run in runs.items()} for _ in range(options.repeats)]
        for name in runs:
            seconds[name] += statistics.median(one[name][1] for one in passes)
            tokens[name] += len(passes[0][name][0]) - 1
            expected, found = passes[0][GREEDY][0], passes[0][name][0]
            position = first_difference(expected, found)
            if position is not None:
                where = compare(oracle, model.target, [*prompt, *expected[:position]])
                apart.append({"method": name, "prompt": number, "position": position, **where})
        print(f"prompt {number + 1} of {len(prompts)}", flush=True)

    per_token = {name: 1000 * seconds[name] / tokens[name] for name in runs}
    for name, ms in per_token.items():
        ratios = f"{per_token[GREEDY] / ms:5.2f} × transformers  {per_token['plain'] / ms:5.2f} × plain"
        print(f"{name:<28} {ms:7.3f} ms a token  {ratios}")
    for place in apart:
        print("parts from transformers: " + ", ".join(f"{key} {value}" for key, value in place.items()))
    print(f"{len(apart)} of {len(prompts) * (len(runs) - 1)} texts part from transformers' greedy text")
    if options.json:
        save(options, {"ms_per_token": per_token, "tokens": tokens, "seconds": seconds, "divergences": apart})


def with_transformers(oracle: Any, new: int, settings: dict[str, Any]) -> Run:
    """Times `generate` of transformers; `settings` can turn on prompt lookup."""
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


@torch.inference_mode()
def compare(oracle: Any, target: Any, prefix: list[int]) -> dict[str, float]:
    """The gap between the two largest logits after a prefix, and the largest difference between the two libraries."""
    theirs = oracle(torch.tensor([prefix])).logits[0, -1].numpy()
    second, best = np.sort(theirs)[-2:].tolist()
    return {"gap": best - second, "difference": float(np.abs(theirs - next_logits(target, prefix)).max())}


def save(options: argparse.Namespace, found: dict[str, Any]) -> None:
    about = {
        "device": environment.device(),
        "versions": {**environment.versions(), "torch": torch.__version__, "transformers": transformers.__version__},
        "date": datetime.date.today().isoformat(),
        "torch_threads": torch.get_num_threads(),
        "settings": {
            "model": Path(options.hf).name,
            "prompts": Path(options.prompts).name,
            "limit": options.limit,
            "max_new_tokens": options.max_new_tokens,
            "repeats": options.repeats,
            "lookup": options.lookup,
        },
    }
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    out = folder / f"transformers_baseline_{Path(options.hf).name}.json"
    out.write_text(json.dumps({**about, **found}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {out}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("hf", help="checkpoint in Hugging Face's format")
    parser.add_argument("checkpoint", help="the same, converted by jaxspec-convert")
    parser.add_argument("prompts", help="JSONL file of questions; only first turns are used")
    parser.add_argument("--methods", nargs="+", default=["ngram+chain"], help="methods besides plain")
    parser.add_argument("--limit", type=int, help="take only the first questions")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lookup", type=int, default=10, help="tokens that transformers' prompt lookup proposes")
    parser.add_argument("--threads", type=int, help="threads of PyTorch (default: all cores)")
    parser.add_argument("--json", action="store_true", help="write the numbers to benchmarks/results/")
    return parser.parse_args()


if __name__ == "__main__":
    main()
