"""Sentences of the pages whose numbers are those of committed results; tables.py checks that each page has its own."""

import html
import itertools
import re
from typing import Any

import jax

from benchmarks.plan_tables import RESULTS, result
from benchmarks.verify_tables import runs_in
from jaxspec.checkpoint.parameters import abstract
from jaxspec.convert.transfer import group_bytes
from jaxspec.planning.shapes import find_model

WORDS = {3: "three", 4: "four", 6: "sixth", 7: "seven", 20: "twenty"}


def missing(page: str, text: str) -> list[str]:
    """The sentences that a page should have and has not, however its lines are broken."""
    return [each for each in SENTENCES.get(page, list)() if each not in " ".join(text.split())]


def readme() -> list[str]:
    exact, rounded = (
        [*runs.values()] for runs in ({i: result(f"verify_builtin_{i}") for i in range(4)}, runs_in("bfloat16"))
    )
    million = sum(run["greedy_tokens"] for run in exact) / 1e6
    assert not any(run["divergences"] for run in exact) and not any(run["unexplained_divergences"] for run in rounded)
    assert sum(run["greedy_tokens"] for run in rounded) >= 1e6
    drawn = html.unescape(re.sub(r"<.*?>", "", (RESULTS / "generation.svg").read_text(encoding="utf-8")))
    plain, drafted = re.findall(r"(\d+)\sforwards", drawn)
    tried = {name for run in ("bfloat16", "head_alone") for name in result(f"smollm2_{run}")["methods"]} - {"plain"}
    compared, on_h100 = (len(result(f"builtin_{run}")["methods"]) - 1 for run in ("methods", "h100"))
    light, wheel, _ = result("downloads").values()
    return [
        f"a network (some {round(light / 1e7)}0 MB;",
        f"downloads SmolLM2-135M-Instruct ({wheel / 1e6:.0f} MB from PyPI)",
        f"none of {million:.1f} million greedy tokens differed in float32, and in bfloat16 every difference in a "
        "million was at a near-tie",
        f"in {drafted} forward passes instead of {plain}",
        f"among [{WORDS[len(tried)]} methods]",
        f"compares {WORDS[compared]} methods on it, {WORDS[on_h100]} of them also on an H100",
    ]


def makefile() -> list[str]:
    light, *_ = result("downloads").values()
    return [f"the first time: some {round(light / 1e7)}0 MB to download"]


def help_of_commands() -> list[str]:
    _, wheel, kept = result("downloads").values()
    return [f"{wheel / 1e6:.0f} MB to download, {round(kept / 1e7)}0 MB afterwards in the user's cache"]


def benchmarks() -> list[str]:
    dflash, methods = result("builtin_h100")["methods"]["dflash"], result("builtin_methods")["methods"]
    errors = {name: each["modelled_speedup"] / each["speedup"] - 1 for name, each in methods.items()}
    high, low = max(errors, key=lambda name: errors[name]), min(errors, key=lambda name: errors[name])
    return [
        f"a round of `dflash` takes {1000 * dflash['tau'] / dflash['tokens_per_second']:.2f} ms",
        f"up to {100 * errors[high]:.0f} % too high (`{high}`) and {-100 * errors[low]:.0f} % too low (`{low}`)",
    ]


def methods() -> list[str]:
    return [f"one {WORDS[round(1 / exit_share())]} of EAGLE's operations at 13B"]


def training() -> list[str]:
    heads = result("block_heads")["methods"]
    mean = lambda head: sum(heads[f"dflash@{head}-{seed}+chain,length=5"]["tau"] for seed in range(3)) / 3
    return [
        f"takes {exit_share():.2f} of EAGLE's operations",
        f"the Markov term gained {mean('markov') - mean('dflash'):.1f} tau",
    ]


def exit_share() -> float:
    """Operations of a step of training an early exit, in units of EAGLE's."""
    (costs,) = (run["methods"] for run in result("papers").values() if "early-exit" in run["methods"])
    return costs["early-exit"]["tera_operations"] / costs["eagle"]["tera_operations"]


def papers() -> list[str]:
    alike = [
        run["methods"]
        for name, run in result("papers").items()
        if "--prompts builtin --limit 20" in run["command"] and "--quantize" not in run["command"] and "." not in name
    ]
    plain = [run["plain"]["tokens_per_second"] for run in alike]
    before = result("builtin_methods")["methods"]
    between, above = 0.0, 0.0
    for one, other in itertools.permutations(alike, 2):
        between = max([between, *(one[name]["speedup"] - other[name]["speedup"] for name in one.keys() & other.keys())])
    for run in alike:
        above = max([above, *(before[name]["speedup"] - run[name]["speedup"] for name in run.keys() & before.keys())])
    return [
        f"Between runs, plain decoding's speed differs by up to {max(plain) / min(plain):.1f} times, and a method's "
        f"speedup by up to {between:.2f}. In the run of [benchmarks/](../benchmarks/README.md#methods-on-the-builtin-"
        f"model), speedups were up to {above:.2f} higher.",
        f"predicts {plan('layer-skip+chain+adaptive')['speedup']:.2f}×",
    ]


def large_models() -> list[str]:
    found = plan("eagle+eagle2")
    floor = found["seconds_per_round"]["verify"]
    messages = floor - found["floor_seconds"]["verify"]
    return [f"takes at least {1000 * floor:.1f} ms, of which messages take {1000 * messages:.1f} ms"]


def devices() -> list[str]:
    model = find_model("llama-3.1-70b").config
    embedding = model.vocab_size * model.hidden_size
    step = next(each["floor_seconds"]["prefill"] for each in result("plans") if each["settings"]["prompt"])
    of_chip = next(each for each in result("training_memory") if each["topology"] == "v5p:2x2x1")["bytes_per_chip"]
    saved = 4 * (of_chip["head"] + of_chip["optimizer"])
    waiting = group_bytes(2 * sum(leaf.size for leaf in jax.tree.leaves(abstract(model))))  # bfloat16
    return [  # a step reads as many tokens as the prompts of the plan have: 8 windows of 2,048 are 16 of 1,024
        f"take at least {WORDS[round(20_000 * step / 3600)]} hours at the v5e-16's peak",
        f"{(4 * embedding + waiting) / 1e9:.1f} GB of RAM (the embedding of {2 * embedding / 1e9:.1f} GB twice, and "
        f"{waiting / 1e9:.1f} GB that wait to be written)",
        f"for training and evaluation: {4 * embedding / 1e9:.1f} GB (the largest tensor in float32)",
        f"saves the head and its two moments, {saved / 1e9:.1f} GB in float32",
    ]


def verify() -> list[str]:
    needed = [result(f"verify_builtin_{seed}")["tokens_needed"] for seed in range(4)]
    tokens = result("flips_by_change")["greedy_tokens"]
    return [
        f"a distance of 0.01 takes {min(needed):,} to {max(needed):,} tokens per method",
        f"over {tokens:,} tokens each",
    ]


def plan(method: str) -> dict[str, Any]:
    """The plan of llama-2-70b on v5e:4x4."""
    wanted = {"model": "llama-2-70b", "method": method, "topology": "v5e:4x4", "tpu_options": False}
    return next(each for each in result("plans") if wanted.items() <= each["settings"].items())


SENTENCES = {
    "Makefile": makefile,
    "README.md": readme,
    "benchmarks/README.md": benchmarks,
    "jaxspec/options/by_command.py": help_of_commands,
    "docs/devices.md": devices,
    "docs/large-models.md": large_models,
    "docs/methods.md": methods,
    "docs/papers.md": papers,
    "docs/training.md": training,
    "docs/verify.md": verify,
}
