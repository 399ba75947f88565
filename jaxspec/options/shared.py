"""Options that several commands share. This module does not import JAX, so `--help` is fast."""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from jaxspec.engine.chat_format import ChatFormat

if TYPE_CHECKING:
    from jax.sharding import Mesh

_PYTHON_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """How a field of options looks on the command line, where its name, type and docstring do not decide it."""

    help: str | None = None  # its help text, unless the field has a docstring
    name: str | None = None  # empty, for nested options: they stand in the same box of --help as those around them
    aliases: tuple[str, ...] = ()  # further names, with their dashes
    metavar: str | None = None  # placeholder of its value in --help
    positional: bool = False  # given without a name
    repeated: bool = False  # given once for each value of a tuple


Target = Annotated[
    Path,
    Option(
        help="Checkpoint made by `jaxspec-convert llama`, hub id ORG/NAME, `builtin`, or `smollm2` (see `jaxspec get`)."
    ),
]
Method = Annotated[
    str | None,
    Option(
        help="DRAFTER[@HEAD][+BUILDER][+CONTROLLER]; each part can have settings, as in ngram+chain,length=6. `jaxspec "
        "methods` lists all parts. Default: the fastest by `jaxspec calibrate --all` if that was run for this "
        "checkpoint and device, otherwise its preferred head, or ngram."
    ),
]
Prompts = Annotated[
    Path | None,
    Option(
        help='JSONL file of prompts, or a name as in `bench`, such as `builtin`. Each line is {"prompt": ...} or '
        '{"turns": [...]}, whose first turn is used.'
    ),
]
Questions = Annotated[
    Path,
    Option(
        help="File of questions, or one of the package's own: builtin, mt-bench, gsm8k, humaneval, summaries, "
        'translations. A file is JSONL with {"turns": [...]} or {"prompt": ...} per line; or '
        "MT-bench, Spec-Bench, SPEED-Bench, GSM8K, MATH-500, HumanEval, MBPP, XSum, CNN/DM or Alpaca as published, as "
        "a path or as a hub id OWNER/NAME[/FILE]."
    ),
]
Limit = Annotated[int | None, Option(help="Use only this many prompts from the start of the file.")]
Chat = Annotated[bool, Option(help="Format the prompts with the tokenizer's chat template.")]
KeepState = Annotated[
    bool,
    Option(help="Let a controller keep what it has learnt from the previous prompt in the same row of the batch."),
]
ShowDrafts = Annotated[
    bool,
    Option(help="Mark which tokens were drafted and accepted, drafted and rejected, and added by the target."),
]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    Option(
        help="Dtype of weights, caches and the inputs of products; sums, norms, softmax and logits are always float32. "
        "Default: float32 on a CPU, float16 on GPUs before compute capability 8.0 (such as T4), bfloat16 elsewhere."
    ),
]
Quantize = Annotated[
    Literal["int8", "int4"] | None,
    Option(
        help="Quantise the target's weights while loading, to half or a quarter of bfloat16's size. This changes the "
        "target a little; decoding stays lossless with respect to it. Weights of drafters are not quantised."
    ),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hosts:
    """How this process finds the other processes of the same command."""

    coordinator: str | None = None
    """On several hosts: HOST:PORT of the first process, or `auto` to read it from the environment. Under SLURM and on a
    TPU pod, `auto` is the default."""
    processes: int | None = None
    """With --coordinator HOST:PORT: the number of processes."""
    process_id: int | None = None
    """With --coordinator HOST:PORT: the number of this process, counted from 0."""

    def join(self, *, several: bool = True) -> None:
        """Connects to the other processes, if there are any. From then on only the first process prints.

        Raises ValueError for options that contradict each other, and if the command cannot run as `several` processes.
        """
        from jaxspec.host import processes

        processes.join(self.coordinator, self.processes, self.process_id, allowed=several)
        if not processes.is_first():
            sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115

    def place(self) -> tuple[int, int]:
        """The number of this process, from 0, and that of all, without connecting to them. Raises as `join`."""
        from jaxspec.host import processes

        return processes.place(self.coordinator, self.processes, self.process_id, os.environ)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """Devices that hold the model."""

    mesh: str | None = None
    """Shard over several devices, as in data=2,model=4: `model` shards the weights, `data` the batch. `rows` shards the
    weights too, and the rows of the KV cache, where there are more devices than KV heads. Default: one device. On
    several hosts, run the same command on each; the first one writes."""
    hosts: Annotated[Hosts, Option(name="")] = Hosts()

    def open(self, *, several: bool = False) -> "Mesh | None":
        """Connects to the other processes, if there are any, and makes the mesh; None for a single device.

        Raises ValueError as `Hosts.join`, and for a mesh that does not fit the devices.
        """
        from jaxspec.host import processes

        if self.mesh is None:
            if self.hosts != Hosts():
                raise ValueError("--coordinator, --processes and --process-id need --mesh, such as --mesh data=2")
            processes.check_alone(os.environ, sys.argv)
            return None
        from jaxspec.model.sharding import parse_mesh

        self.hosts.join(several=several)
        return parse_mesh(self.mesh)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """How the tokenizer's chat template formats conversations."""

    chat_arg: Annotated[tuple[str, ...], Option(metavar="NAME=VALUE", repeated=True)] = ()
    """Argument of the chat template, such as enable_thinking=false; the value is JSON or text. Can be repeated."""
    system: str | None = None
    """System prompt before each conversation. Conversations that have one of their own are refused."""

    def __post_init__(self) -> None:
        parse_chat_args(self.chat_arg)

    @property
    def format(self) -> ChatFormat:
        """The options' meaning."""
        return ChatFormat(parse_chat_args(self.chat_arg), self.system)


def parse_chat_args(typed: tuple[str, ...]) -> dict[str, Any]:
    """Values of NAME=VALUE by name. Raises ValueError for other text, a name given twice, or a Python constant."""
    found = dict[str, Any]()
    for each in typed:
        name, equals, text = each.partition("=")
        if not (name and equals):
            raise ValueError(f"--chat-arg must be NAME=VALUE, such as enable_thinking=false, not {each!r}")
        if name in found:
            raise ValueError(f"--chat-arg {name} is given twice")
        if text in _PYTHON_CONSTANTS:
            raise ValueError(f"--chat-arg {each}: values are JSON, so write {name}={_PYTHON_CONSTANTS[text]}")
        try:
            found[name] = json.loads(text)
        except (ValueError, RecursionError):
            found[name] = text
    return found
