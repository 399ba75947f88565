"""`config.json` of a checkpoint, and the names of the heads beside it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from jaxspec.host.arguments import integer
from jaxspec.host.buckets import to_path
from jaxspec.model.config import LlamaConfig
from jaxspec.model.quantization import KINDS

FORMAT = "jaxspec"
FORMAT_VERSION = 1  # of checkpoints and of heads
DTYPES = ("float32", "bfloat16", "float16")


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: one sentence with what is wrong, where, and what to do."""


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """The `config.json` of a checkpoint."""

    family: str  # what Hugging Face calls `model_type`: llama, mistral, mixtral, qwen2, qwen3
    model: LlamaConfig
    dtype: str  # of the parameters on disk
    source_dtype: str  # before conversion, and on export
    source_format: str  # `huggingface`, `meta`, `gguf`, or `jaxspec` where a model was made here
    bos: int | None = None
    eos: tuple[int, ...] = ()  # every id that ends a sequence
    pad: int | None = None
    quantize: str | None = None  # `int8` or `int4` kernels; None: all parameters are floats
    tokenizer_class: str | None = None  # the one that transformers takes in the original folder; None: no tokenizer
    chat_args: dict[str, Any] | None = None  # of a draft model, as in the config of a head

    def __post_init__(self) -> None:
        check_dtypes(self.dtype, self.source_dtype)
        if self.quantize not in (None, *KINDS):
            raise ValueError(f"quantize must be null, {' or '.join(KINDS)}, not {self.quantize!r}")
        size = self.model.vocab_size
        for name, token in (*(("eos", token) for token in self.eos), *[("bos", self.bos)] * (self.bos is not None)):
            if not 0 <= integer(name, token) < size:
                raise ValueError(f"{name} {token} is outside the vocabulary of {size}")

    def to_json(self) -> str:
        """Text of `config.json`, read back by `from_json`."""
        return to_text(self, FORMAT)

    @classmethod
    def from_json(cls, text: str) -> "CheckpointConfig":
        """Inverse of `to_json`. Raises ValueError naming a missing, unknown or wrong key."""
        values = fields_of(text, cls, FORMAT, "; convert the model with `jaxspec-convert llama`")
        return cls(**{**values, "eos": tuple(values.get("eos", ()))})


def to_text(config: Any, format_name: str) -> str:
    """A config dataclass as JSON, whose fields `fields_of` reads back."""
    values = {"format": format_name, "version": FORMAT_VERSION, **dataclasses.asdict(config)}
    return json.dumps(values, indent=2) + "\n"


def fields_of(text: str, kind: type, format_name: str, advice: str = "") -> dict[str, Any]:
    """Fields of a config from its JSON; ValueError names a wrong key. `advice` is on files of another format."""
    values = parse_json(text)
    if not isinstance(values, dict) or values.pop("format", None) != format_name:
        raise ValueError(f'it has no "format": "{format_name}"{advice}')
    if (found := values.pop("version", None)) != FORMAT_VERSION:
        raise ValueError(f"its version is {found}, this jaxspec reads version {FORMAT_VERSION}")
    fields = {field.name: field.default is dataclasses.MISSING for field in dataclasses.fields(kind)}
    if wrong := sorted({name for name in values.keys() ^ fields.keys() if fields.get(name, True)}):
        raise ValueError(f"key {wrong[0]!r} is {'unknown' if wrong[0] in values else 'missing'}")
    if not isinstance(values["model"], dict):
        raise ValueError("key 'model' must be an object")
    if not isinstance(values.get("chat_args"), dict | None):
        raise ValueError("key 'chat_args' must be an object or null")
    return {**values, "model": LlamaConfig.from_dict(values["model"])}


def parse_json(text: str) -> Any:
    """Values of a JSON text. Raises ValueError for what is none, is nested too deeply, or gives a key twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
            raise ValueError(f"key {twice!r} is there twice")
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_dtypes(dtype: str, source_dtype: str) -> None:
    """Raises ValueError if one is not a dtype that checkpoints may have."""
    for name, value in (("dtype", dtype), ("source_dtype", source_dtype)):
        if value not in DTYPES:
            raise ValueError(f"{name} must be one of {', '.join(DTYPES)}, not {value!r}")


def read_config(path: Path | str) -> CheckpointConfig:
    """Reads CKPT/config.json. Raises CheckpointError if it is missing or not one of ours."""
    file = to_path(path) / "config.json"
    try:
        return CheckpointConfig.from_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        absent = isinstance(error, FileNotFoundError | NotADirectoryError)
        advice = "; name a folder that `jaxspec-convert llama` wrote" if absent else ""
        raise CheckpointError(
            f"there is no readable jaxspec checkpoint at {path}: {file}: {error.strerror}{advice}"
        ) from error
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{file} is not the config of a jaxspec checkpoint: {error}") from error


def write_config(path: Path | str, config: CheckpointConfig) -> None:
    """Writes CKPT/config.json."""
    (to_path(path) / "config.json").write_text(config.to_json(), encoding="utf-8")


def head_names(path: Path | str) -> tuple[str, ...]:
    """Sorted names of the heads found under CKPT/heads: the folders that hold a config.json and are not hidden."""
    return tuple(sorted(file.parent.name for file in (to_path(path) / "heads").glob("[!.]*/config.json")))
