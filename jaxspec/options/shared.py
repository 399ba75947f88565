"""Options that several commands share. This module does not import JAX, so `--help` is fast."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from jaxspec.engine.chat_format import ChatFormat
from jaxspec.host.hosts import Hosts, check_alone

if TYPE_CHECKING:
    from jax.sharding import Mesh

_PYTHON_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """How a field of options looks on the command line, where its name, type and docstring do not decide it; written
    in `Annotated`, as is the help text of a field without a docstring."""

    name: str | None = None  # empty, for nested options: they stand in the same box of --help as those around them
    metavar: str | None = None  # placeholder of its value in --help
    positional: bool = False  # given without a name
    repeated: bool = False  # given once for each value of a tuple


Target = Annotated[
    Path, "Checkpoint made by `jaxspec-convert llama`, hub id ORG/NAME, `builtin`, or `smollm2` (see `jaxspec get`)."
]
Method = Annotated[
    str | None,
    "DRAFTER[@HEAD][+BUILDER][+CONTROLLER]; each part can have settings, as in ngram+chain,length=6. `jaxspec methods` "
    "lists all parts. Default: the fastest by `jaxspec calibrate --all` if that was run for this checkpoint and "
    "device, otherwise its preferred head, or ngram.",
]
Prompts = Annotated[
    Path | None,
    'JSONL file of prompts, or a name as in `bench`, such as `builtin`. Each line is {"prompt": ...} or '
    '{"turns": [...]}, whose first turn is used.',
]
Questions = Annotated[
    Path,
    "File of questions, or one of the package's own: builtin, mt-bench, gsm8k, humaneval, summaries, translations. A "
    'file is JSONL with {"turns": [...]} or {"prompt": ...} per line; or MT-bench, Spec-Bench, SPEED-Bench, GSM8K, '
    "MATH-500, HumanEval, MBPP, XSum, CNN/DM or Alpaca as published, as a path or as a hub id OWNER/NAME[/FILE].",
]
Limit = Annotated[int | None, "Use only this many prompts from the start of the file."]
Chat = Annotated[bool, "Format the prompts with the tokenizer's chat template."]
KeepState = Annotated[
    bool, "Let a controller keep what it has learnt from the previous prompt in the same row of the batch."
]
ShowDrafts = Annotated[
    bool, "Mark which tokens were drafted and accepted, drafted and rejected, and added by the target."
]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    "Dtype of weights, caches and the inputs of products; sums, norms, softmax and logits are always float32. Default: "
    "float32 on a CPU, float16 on GPUs before compute capability 8.0 (such as T4), bfloat16 elsewhere.",
]
Quantize = Annotated[
    Literal["int8", "int4"] | None,
    "Quantise the target's weights while loading, to half or a quarter of bfloat16's size. This changes the target a "
    "little; decoding stays lossless with respect to it. Weights of drafters are not quantised.",
]


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
        if self.mesh is None:
            if self.hosts != Hosts():
                raise ValueError("--coordinator, --processes and --process-id need --mesh, such as --mesh data=2")
            check_alone(sys.argv)
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
