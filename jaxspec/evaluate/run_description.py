"""Describes a run by all that its numbers depend on: device, dtype, versions, settings and weights."""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxspec.checkpoint.heads import find_head
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.checkpoint.tokenizer import FILES
from jaxspec.costs.calibration import weights_sha256
from jaxspec.engine.engine import Engine
from jaxspec.evaluate.runner import REFERENCE, Workload
from jaxspec.host import environment
from jaxspec.model.llama import Llama
from jaxspec.model.quantization import leaf_bytes
from jaxspec.options.by_command import Bench, Eval

LEFT_OUT = ("json", "dtype", "devices", "report", "temperatures", "batch_sizes")
"""Options that are not settings of a run, or that have another key there."""
NOT_OF_ANSWERS = ("out", "batch_size")  # options of `eval` that do not change answers


def describe(settings: Bench, plan: Workload, engines: Mapping[str, Engine]) -> dict[str, Any]:
    """The first keys of bench's JSON. The log begins with them too, so that a log of another run is recognised."""
    model, heads = engines[REFERENCE].model, [engine.method.head for engine in engines.values()]
    shape = repr(model.config.model).encode() if settings.simulate else (model.path / "config.json").read_bytes()
    return {
        **where(model),
        "weights": weight_bytes(model.target),
        "settings": {
            **_shared_settings(settings, plan, model),
            "mesh": settings.devices.mesh,
            "target_sha256": hashlib.sha256(shape).hexdigest(),
            **({} if settings.simulate else weights_of(model.path, heads)),
            "methods": list(engines),
            "resolved": [str(engine.method) for engine in engines.values()],
        },
    }


def where(model: Checkpoint) -> dict[str, Any]:
    """Device, dtype and versions."""
    versions = environment.versions()
    return {"device": environment.device(), "dtype": str(model.target.dtype), "versions": versions}


def describe_eval(settings: Eval, plan: Workload, engine: Engine) -> dict[str, Any]:
    """The settings of `eval`, without the device and costs measured on it: any device may resume a run, because answers
    differ between devices by rounding only."""
    shared = _shared_settings(settings, plan, engine.model)
    return {
        "settings": {
            "dtype": str(engine.model.target.dtype),
            **{name: value for name, value in shared.items() if name not in NOT_OF_ANSWERS},
            **weights_of(engine.model.path, [engine.method.head]),
            "method": str(engine.named),
        },
    }


def _shared_settings(settings: Bench | Eval, plan: Workload, model: Checkpoint) -> dict[str, Any]:
    """The options, with those of sampling and of the chat template, and a hash of the questions."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        if field.name in ("sampling", "template"):
            found |= dataclasses.asdict(getattr(settings, field.name))
        elif field.name not in LEFT_OUT:
            found[field.name] = getattr(settings, field.name)
    content = repr(plan.questions).encode()
    return {
        **found,
        "target": str(settings.target if settings.target.name.strip(".") else settings.target.resolve()),
        "quantize": model.config.quantize,
        "prompts": str(settings.prompts),
        "suite": plan.suite,
        "questions": len(plan.questions),
        "questions_sha256": hashlib.sha256(content).hexdigest(),
    }


def weight_bytes(target: Llama) -> dict[str, int]:
    """Bytes of the weights: `bytes` of all, `read_bytes` of those that each forward reads, `expert_bytes` of experts.

    `read_bytes` include all experts, although a forward over few tokens reads only some, but no embedding that is not
    also the LM head, because a token reads one row of it.
    """
    sizes = {name: leaf_bytes(array.shape, array.dtype) for name, array in module_to_dict(target).items()}
    total = sum(sizes.values())
    unread = 0 if target.lm_head is None else sizes["embedding"]
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    return {"bytes": total, "read_bytes": total - unread, "expert_bytes": experts}


def weights_of(target: Path, heads: Iterable[str | None]) -> dict[str, Any]:
    """Hashes of weights and tokenizer: a path alone does not identify them. Each head's is by its name as typed."""
    found = {head: weights_sha256(find_head(target, head)) for head in dict.fromkeys(filter(None, heads))}
    files = sorted(file for name in FILES for file in target.glob(name))
    text = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    return {"params_sha256": weights_sha256(target), "heads_sha256": found, "tokenizer_sha256": text}
