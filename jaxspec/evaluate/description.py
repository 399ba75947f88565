"""All that the numbers of a run depend on: device, dtype, versions, settings, and which weights were measured."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

from jaxspec.checkpoint.heads import find_head
from jaxspec.engine.engine import Engine
from jaxspec.evaluate import bandwidth, identity
from jaxspec.evaluate.runner import REFERENCE, Workload
from jaxspec.evaluate.settings import Bench
from jaxspec.host import environment

LEFT_OUT = ("json", "dtype", "devices", "report", "temperatures", "batch_sizes")
"""Options that are no settings of one run, or are there under other keys."""


def describe(settings: Bench, plan: Workload, engines: Mapping[str, Engine]) -> dict[str, Any]:
    """The first keys of bench's JSON, which its log begins with too; a log with others is another run's."""
    model = engines[REFERENCE].model
    shape = repr(model.config.model).encode() if settings.simulate else (model.path / "config.json").read_bytes()
    questions = repr([(question.examples, question.turns) for question in plan.questions]).encode()
    return {
        "device": environment.device(),
        "dtype": str(model.target.norm[...].dtype),
        "versions": environment.versions(),
        "weights": bandwidth.weights(model.target),
        "settings": {
            **_options(settings),
            "mesh": settings.devices.mesh,
            "target": str(settings.target if settings.target.name.strip(".") else settings.target.resolve()),
            "quantize": model.config.quantize,
            "target_sha256": hashlib.sha256(shape).hexdigest(),
            **({} if settings.simulate else weights_of(engines)),
            "methods": list(engines),
            "resolved": [str(engine.method) for engine in engines.values()],
            "prompts": str(settings.prompts),
            "suite": plan.questions[0].suite,
            "questions": len(plan.questions),
            "questions_sha256": hashlib.sha256(questions).hexdigest(),
        },
    }


def weights_of(engines: Mapping[str, Engine]) -> dict[str, Any]:
    """Which weights the engines run: the target's, and those of each head by its name as typed."""
    path = engines[REFERENCE].model.path
    heads = dict.fromkeys(engine.method.head for engine in engines.values() if engine.method.head is not None)
    return {
        "params_sha256": identity.of_params(path),
        "heads_sha256": {head: identity.of_head(find_head(path, head)) for head in heads},
    }


def _options(settings: Bench) -> dict[str, Any]:
    """The options by name, those of sampling among them, in the order of the command line."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        if field.name == "sampling":
            found |= dataclasses.asdict(settings.sampling)
        elif field.name not in LEFT_OUT:
            found[field.name] = getattr(settings, field.name)
    return found
