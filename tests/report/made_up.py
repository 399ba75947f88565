"""Logs of simulated runs: random answers, trees and times, in the format of a real run."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.costs.timing import PieceCosts
from jaxspec.evaluate.reliability import tally
from jaxspec.evaluate.results import Form, Measured
from jaxspec.evaluate.runlog import Answer, Turn
from jaxspec.methods.method import parse_method

NASTY = "</script><img src=x onerror=alert(1)>&amp; ⏎"
"""What a model may write, or a user may ask."""
METHODS = (
    *("plain", "eagle+chain,length=5", "eagle+chain,length=2", "edd+chain,length=5", "early-exit+chain,length=5"),
    *("eagle+static", "eagle+eagle2", "eagle+chain+adaptive", "early-exit+chain+beta-ts", "layer-skip+chain+adaptive"),
    "early-exit+uniform+beta-ts",
)
LENGTH = 40
WORDS = ("def ", "class ", "self", ".", "x", " = ", "(", ")", ":\n    ", "return ", "None", NASTY, "é", "\t")
CATEGORIES = ("writing", "math", NASTY)


def write(
    out: Path, methods: tuple[str, ...] = METHODS, questions: int = 3, length: int = LENGTH, **settings: Any
) -> Path:
    """Writes OUT.jsonl of a run, and returns OUT.

    Args:
        length: tokens of an answer.
        settings: of the run; `device` and `dtype` too.
    """
    rng = np.random.default_rng(len(methods) + settings.get("batch_size", 1))
    answers = [answer(rng, number, name, length, settings) for number in range(questions) for name in methods]
    left = {"prompt": 0, "turn": 0, "position": 3, "gap": 1e-6}
    diverged = [{**left, "behind": 1e-6, "explained": True}, {**left, "behind": 0.5, "explained": False}]
    verify = {size: 0.01 * (1 + 0.02 * size) for size in range(1, 65)}
    costs = lambda: {piece: rng.uniform(0, 0.0001) for piece in ("control_level", "control_round")}
    pieces = {
        name: PieceCosts(verify[1], verify, rng.uniform(0.0005, 0.002), 0.0005, 0.0005, **costs()) for name in methods
    }
    measured = Measured(
        noise=1e-5,
        pieces={**pieces, "plain": PieceCosts(verify[1], verify, rest=0.0005, plain_rest=0.0005)},
        divergences={name: diverged if name == methods[-1] else [] for name in methods},
        forms={name: form(name) for name in methods},
    )
    about = {
        "device": settings.pop("device", "NVIDIA Imaginary"),
        "dtype": settings.pop("dtype", "bfloat16"),
        "versions": {"jax": "1.2.3"},
        "settings": {
            "target": "models/made-up",
            "prompts": "questions.jsonl",
            "suite": None,
            "temperature": 0.0,
            "batch_size": 1,
            "keep_state": False,
            "simulate": None,
            "methods": list(methods),
            **settings,
        },
    }
    lines = [{"settings": about}, *map(dataclasses.asdict, answers), {"measured": dataclasses.asdict(measured)}]
    Path(f"{out}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return out


def form(name: str) -> Form:
    """A form whose method can be read again: its builder has no costs to measure."""
    method = parse_method(name)
    return Form(str(method), (method.builder.verified,), method.builder.is_chain, 1000, 300, 200)


def answer(rng: np.random.Generator, question: int, name: str, length: int, settings: dict[str, Any]) -> Answer:
    """One question's answer, of one turn, or two for the first question."""
    batch = question // settings.get("batch_size", 1)
    times = [np.random.default_rng([batch, i, len(name)]) for i in range(2 if question == 0 else 1)]
    turns = [turn(rng, name, length, of_batch) for of_batch in times]
    quality = {"exact_match": float(question % 2)} if settings.get("suite") == "gsm8k" else {}
    return Answer(question, 81 + question, CATEGORIES[question % 3], name, batch, turns, quality)


def turn(rng: np.random.Generator, name: str, length: int, times: np.random.Generator) -> Turn:
    """An answer in rounds, the last cut by the budget; `times` draws the seconds, which rows of a batch share."""
    method, tokens, rounds, trees = parse_method(name), [3], [], []
    while len(tokens) < length:
        tree = drafted(rng, method)
        depth = depths(tree["parent"])
        path = [tree["token"][node] for node, on in enumerate(tree["accepted"]) if on][1:]
        tree["committed"] = [*path, int(rng.integers(len(WORDS)))][: length - len(tokens)]
        kept, uncut = len(tree["committed"]), len(path) + 1
        tree["accepted"] = [int(on and level <= kept) for on, level in zip(tree["accepted"], depth, strict=True)]
        tokens += tree["committed"]
        rounds.append([kept, sum(tree["accepted"]) - 1, max(depth), len(depth) - 1, len(depth) - 1, uncut])
        trees.append(tree)
    seconds = times.uniform(0.15, 0.2, 2) * (2.2 if name == "plain" else 1.0)
    return Turn(
        prompt=[1, 2], tokens=tokens, text="".join(WORDS[token] for token in tokens), rounds=rounds, trees=trees,
        prefill_seconds=[0.02, 0.03], decode_seconds=seconds.tolist(), calibration=tally(trees),
        asked=f"Say something. {NASTY}", pieces=[WORDS[token] for token in tokens],
        words={str(token): word for token, word in enumerate(WORDS)},
    )  # fmt: skip


def drafted(rng: np.random.Generator, method: Any) -> dict[str, list]:
    """A tree of the method's size, at random, and an accepted path in it."""
    nodes = method.builder.verified if not method.controller.stops else int(rng.integers(2, 8))
    chain = method.builder.is_chain
    parent = [-1, *(i - 1 if chain else int(rng.integers(max(0, i - 4), i)) for i in range(1, nodes))]
    log = [0.0]
    for i in range(1, nodes):
        log.append(round(log[parent[i]] + float(np.log(rng.uniform(0.2, 1))), 4))
    node, accepted = 0, [1] + [0] * (nodes - 1)
    while (children := [i for i in range(1, nodes) if parent[i] == node]) and rng.random() < 0.75:
        node = int(rng.choice(children))
        accepted[node] = 1
    return {
        "token": rng.integers(len(WORDS), size=nodes).tolist(),
        "parent": parent,
        "log_confidence": log,
        "accepted": accepted,
        "committed": [],
    }


def depths(parent: list[int]) -> list[int]:
    """The depth of every node."""
    found = [0]
    for above in parent[1:]:
        found.append(found[above] + 1)
    return found
