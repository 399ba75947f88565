"""What a run's numbers depend on: device, dtype, versions, settings and weights."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxspec.checkpoint.heads import find_head
from jaxspec.checkpoint.parameters import module_to_dict
from jaxspec.controllers.acceptance_predictor import FOLDER
from jaxspec.engine.engine import Engine
from jaxspec.evaluate.runner import REFERENCE, Workload
from jaxspec.evaluate.settings import Bench, Eval
from jaxspec.host import environment
from jaxspec.model.llama import Llama
from jaxspec.model.quantization import leaf_bytes

LEFT_OUT = ("json", "dtype", "devices", "report", "temperatures", "batch_sizes")
"""Options that are no settings of one run, or are there under other keys."""
NOT_OF_ANSWERS = ("out", "batch_size")
"""Options of `eval` by which no answer differs."""
HEAD = ("config.json", "params", FOLDER)
"""What is read of a head to tell it from another; beside it may lie logs, or heads of its own."""


def describe(settings: Bench, plan: Workload, engines: Mapping[str, Engine]) -> dict[str, Any]:
    """The first keys of bench's JSON, which its log begins with too; a log with others is another run's."""
    model = engines[REFERENCE].model
    shape = repr(model.config.model).encode() if settings.simulate else (model.path / "config.json").read_bytes()
    return {
        "device": environment.device(),
        "dtype": str(model.target.norm[...].dtype),
        "versions": environment.versions(),
        "weights": weight_bytes(model.target),
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
            **_questions(plan),
        },
    }


def describe_eval(settings: Eval, plan: Workload, engine: Engine) -> dict[str, Any]:
    """The same for `eval`. Its answers do not depend on the device, but for rounding, so that another may resume."""
    options = {name: value for name, value in _options(settings).items() if name not in NOT_OF_ANSWERS}
    return {
        "settings": {
            "dtype": str(engine.model.target.norm[...].dtype),
            **options,
            "target": str(settings.target),
            "prompts": str(settings.prompts),
            "quantize": engine.model.config.quantize,
            **weights_of({REFERENCE: engine}),
            "method": str(engine.method),
            "suite": plan.questions[0].suite,
            **_questions(plan),
        },
    }


def _questions(plan: Workload) -> dict[str, Any]:
    content = repr([(question.examples, question.turns) for question in plan.questions]).encode()
    return {"questions": len(plan.questions), "questions_sha256": hashlib.sha256(content).hexdigest()}


def weight_bytes(target: Llama) -> dict[str, int]:
    """`bytes` of all parameters, and `read_bytes` of those that a forward reads, whatever the number of tokens.

    What is read bounds decoding on an accelerator. Of an embedding that is not the LM head too, a token reads one row,
    which is not counted. Experts are all counted, though a forward over few tokens reads fewer: `expert_bytes` are
    theirs.
    """
    sizes = {name: leaf_bytes(array.shape, array.dtype) for name, array in module_to_dict(target).items()}
    total = sum(sizes.values())
    unread = 0 if target.head is None else sizes["embedding"]
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    return {"bytes": total, "read_bytes": total - unread, "expert_bytes": experts}


def weights_of(engines: Mapping[str, Engine]) -> dict[str, Any]:
    """Which weights the engines run, in a few letters, for those of a path may have been trained again since: the
    target's, and those of each head by its name as typed."""
    path = engines[REFERENCE].model.path
    heads = dict.fromkeys(engine.method.head for engine in engines.values() if engine.method.head is not None)
    return {
        "params_sha256": params_sha256(path),
        "heads_sha256": {head: head_sha256(find_head(path, head)) for head in heads},
    }


def head_sha256(folder: Path) -> str:
    """Of the names and bytes of a head's files."""
    found = hashlib.sha256()
    for file in _files(folder, HEAD):
        with file.open("rb") as opened:
            content = hashlib.file_digest(opened, "sha256").hexdigest()
        found.update(f"{file.relative_to(folder).as_posix()} {content}\n".encode())
    return found.hexdigest()


def params_sha256(folder: Path) -> str:
    """Of the names and sizes of a target's files of parameters: their bytes may be hundreds of gigabytes.

    Every save draws new names for the files of arrays, so that it tells one from another.
    """
    lines = (f"{file.relative_to(folder).as_posix()} {file.stat().st_size}\n" for file in _files(folder, ("params",)))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _files(folder: Path, names: tuple[str, ...]) -> Iterator[Path]:
    for name in names:
        yield from sorted(file for file in [folder / name, *(folder / name).rglob("*")] if file.is_file())


def _options(settings: Bench | Eval) -> dict[str, Any]:
    """The options by name, those of sampling among them, in the order of the command line."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        if field.name == "sampling":
            found |= dataclasses.asdict(settings.sampling)
        elif field.name not in LEFT_OUT:
            found[field.name] = getattr(settings, field.name)
    return found
