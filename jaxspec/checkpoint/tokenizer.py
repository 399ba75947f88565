"""Tokenizers: text to token ids and back, and conversations to text.

`tokenizer.json` decides the ids, through the `tokenizers` library. The special tokens and the chat template come from
the files beside it, as transformers 5 reads them in the original folder.
"""

import contextlib
import json
import reprlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from jaxspec.checkpoint import chat_template
from jaxspec.checkpoint.chat_template import Messages
from jaxspec.checkpoint.config_json import FORMAT, CheckpointError
from jaxspec.host.buckets import to_path
from jaxspec.host.terminal import say

GENERIC = "PreTrainedTokenizerFast"
_EXTRA = "extra_special_tokens"
_LLAMA = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_END_OF_TEXT = {"unk_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
# Special tokens that a class of transformers has where the config files name none.
_DEFAULTS = {
    "LlamaTokenizer": _LLAMA,
    "CodeLlamaTokenizer": _LLAMA,
    "Qwen2Tokenizer": {**_END_OF_TEXT, "pad_token": "<|endoftext|>"},
    "GPT2Tokenizer": {**_END_OF_TEXT, "bos_token": "<|endoftext|>"},
    "GPTNeoXTokenizer": {**_END_OF_TEXT, "bos_token": "<|endoftext|>", "pad_token": "<|padding|>"},
}
_ORDER = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
# Classes that replace the post-processor: whether they then add BOS. The others keep that of tokenizer.json.
_BOS = {"CodeLlamaTokenizer": True, "GPTNeoXTokenizer": False}
VOCABULARIES = ("tokenizer.model", "vocab.json", "tekken.json")  # other files that hold a whole vocabulary
# Every file that may belong to a tokenizer.
FILES = (
    "tokenizer.json", "tokenizer_config.json", *VOCABULARIES, "special_tokens_map.json", "added_tokens.json",
    "merges.txt", "chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja",
)  # fmt: skip
# How LLaMA 3 and Mistral split text before BPE, from their tokenizer.json.
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_encoding = threading.Lock()  # of all tokenizers, because a tokenizer with a lock could be neither pickled nor copied


class Tokenizer:
    """The tokenizer of a checkpoint; `load_tokenizer` makes it. It can be copied and pickled.

    Attributes:
        special_tokens_map: token by name: `bos_token`, `eos_token` and the like, and those that only this model has.
        special_ids: id by token of all special tokens, which `decode_after` leaves out; config files may list fewer.
        chat_template: the template of conversations; None: there is none.
    """

    def __init__(self, backend: Backend, named: dict[str, str], templates: dict[str, str]):
        self._backend, self._templates = backend, templates
        self._splits_special = backend.encode_special_tokens
        self.special_tokens_map = named
        added = backend.get_added_tokens_decoder()
        self.special_ids = {token.content: at for at, token in added.items() if token.special}
        self.chat_template = templates.get("default")
        self.bos_token_id, self.eos_token_id = (
            backend.token_to_id(named[name]) if name in named else None for name in ("bos_token", "eos_token")
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text with its special tokens. Raises ValueError for Code LLaMA's mark of text to fill in."""
        if (mark := self.special_tokens_map.get("fill_token")) is not None and mark in text:
            raise ValueError(
                f"the text {reprlib.repr(text)} holds {mark}, Code LLaMA's mark for infilling; give token ids instead"
            )
        with self._encoder() as encoder:
            return encoder.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_as_text(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Token ids of texts in which the name of a special token is ordinary text."""
        with self._encoder(as_text=True) as encoder:
            found = encoder.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        return [each.ids for each in found]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Token ids of texts that hold their special tokens, and the (start, end) in characters of each token."""
        with self._encoder() as encoder:
            found = encoder.encode_batch(list(texts), add_special_tokens=False)
        return [(each.ids, each.offsets) for each in found]

    def decode(self, tokens: Sequence[int] | np.ndarray, skip_special_tokens: bool = False) -> str:
        """The text of tokens. Bytes that are no whole character become U+FFFD."""
        return self._backend.decode([int(token) for token in tokens], skip_special_tokens=skip_special_tokens)

    def decode_after(self, before: Sequence[int], tokens: Sequence[int]) -> str:
        """The text that `tokens` add to the tokens before them, without special tokens."""
        # Decoded alone, the first token loses its space in vocabularies of sentencepiece. Only the end of `before` is
        # decoded, from where a character begins: half of one makes the bytes that follow it unreadable, too.
        read, near = lambda ids: self.decode(ids, skip_special_tokens=True), 1
        while "\ufffd" in (shown := read(before[-near:])) and near < len(before):
            near *= 2
        text = read([*before[-near:], *tokens])
        if text.startswith(shown):
            return text[len(shown) :]
        begun = shown.rstrip("\ufffd")  # the tokens end its last character, or their own bytes are unreadable
        return text[len(begun) :] if begun != shown and text.startswith(begun) else read(tokens)

    def apply_chat_template(
        self,
        messages: Messages,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **arguments: Any,
    ) -> str:
        """The text of a conversation.

        Args:
            add_generation_prompt: end with what comes before the assistant's next answer.
            continue_final_message: end with the last message, without what the template writes after it.
            arguments: further variables of the template, such as `enable_thinking`.

        Raises ValueError without template or messages, jinja2.TemplateError if the template refuses the conversation.
        """
        render = chat_template.render_to_last if continue_final_message else chat_template.render
        return render(*self._variables(messages, add_generation_prompt, arguments))

    def render_marked(self, messages: Messages, **arguments: Any) -> tuple[str, tuple[tuple[int, int], ...]]:
        """The text of a conversation, and the (start, end) in characters of its `{% generation %}` blocks."""
        return chat_template.render_marked(*self._variables(messages, False, arguments))

    def template_for(self, arguments: dict[str, Any]) -> str:
        """The chat template for these arguments: with `tools` the one named tool_use. ValueError if there is none."""
        use = "default" if arguments.get("tools") is None else "tool_use"
        found = self.chat_template if use == "default" else self._templates.get(use, self.chat_template)
        if found is None:
            raise ValueError("the tokenizer has no chat template")
        return found

    def get_vocab(self) -> dict[str, int]:
        """Token id by token, added tokens included."""
        return self._backend.get_vocab(with_added_tokens=True)

    @contextlib.contextmanager
    def _encoder(self, *, as_text: bool = False) -> Iterator[Backend]:
        """The backend, for this thread alone; `as_text`: names of special tokens are ordinary text."""
        with _encoding:
            # Set each time: threads share the setting, and pickles of the backend lack it.
            self._backend.encode_special_tokens = as_text or self._splits_special
            yield self._backend

    def _variables(self, messages: Messages, prompt: bool, arguments: dict[str, Any]) -> tuple[str, Messages, dict]:
        given = {**self.special_tokens_map, "add_generation_prompt": prompt, **arguments}
        return self.template_for(arguments), messages, given


def load_tokenizer(folder: str | Path) -> Tokenizer | None:
    """The tokenizer in a checkpoint or a Hugging Face folder, None if there is none. Code in it is never run.

    Raises CheckpointError if a file is damaged, or there is a tokenizer without a tokenizer.json.
    """
    folder = to_path(folder)
    file = folder / "tokenizer.json"
    if not file.is_file():
        if (other := next((name for name in VOCABULARIES if (folder / name).is_file()), None)) is None:
            return None
        raise CheckpointError(
            f"the tokenizer in {folder} is {other} without a tokenizer.json; write one with "
            f"`jaxspec-convert tokenizer SRC {folder}`, where SRC is the original model"
        )
    try:
        return _load(folder)
    except Exception as error:  # tokenizers raises plain Exception, and configs may hold anything
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"the tokenizer in {folder} cannot be read ({reason}); download it again, or name another by --tokenizer"
        ) from error


def class_of(folder: Path) -> str:
    """The tokenizer class that transformers uses for a folder with a tokenizer.json; for most models `GENERIC`."""
    config, own = (read_if_there(folder / name) for name in ("config.json", "tokenizer_config.json"))
    if config.get("format") == FORMAT:
        return str(config.get("tokenizer_class") or GENERIC)  # what conversion found in the original folder
    family, file = config.get("model_type"), folder / "tokenizer.json"
    named = str(own.get("tokenizer_class") or config.get("tokenizer_class") or "").removesuffix("Fast")
    if family == "qwen2" or (family == "qwen3" and not named):
        return "Qwen2Tokenizer"
    of_bytes = file.is_file() and '"ByteLevel"' in file.read_text(encoding="utf-8")
    if family in ("mistral", "mixtral") or (named == "LlamaTokenizer" and of_bytes):
        return GENERIC
    return named if named in _DEFAULTS else GENERIC


def _load(folder: Path) -> Tokenizer:
    backend = Backend.from_buffer((folder / "tokenizer.json").read_bytes())
    backend.no_truncation()
    backend.no_padding()
    config = read_if_there(folder / "tokenizer_config.json")
    later = {} if "added_tokens_decoder" in config else read_if_there(folder / "special_tokens_map.json")
    config, extra = _merged(config, later)
    kind = class_of(folder)
    id_of = backend.token_to_id
    defaults = {name: token for name, token in _DEFAULTS.get(kind, {}).items() if id_of(token) is not None}
    given = {name: token for name, token in config.items() if name.endswith("_token")} | extra
    named = {name: token for name, value in (defaults | given).items() if (token := _special(value)) is not None}
    named = {name: named[name] for name in sorted(named, key=lambda name: [*_ORDER, name].index(name))}
    unnamed = [token for value in config[_EXTRA] or [] if (token := _special(value)) is not None]
    _add_tokens(folder, backend, config, [*named.values(), *unnamed], {token.content for token in named.values()})
    backend.encode_special_tokens = config.get("split_special_tokens", False)
    if kind in _BOS:
        bos = [named["bos_token"].content] if _BOS[kind] and "bos_token" in named else []
        special = [(token, id_of(token)) for token in bos]
        backend.post_processor = processors.TemplateProcessing([*bos, "$A"], special_tokens=special)
    _check_split(folder, backend, config.get("fix_mistral_regex") is True)
    texts, templates = {name: token.content for name, token in named.items()}, _templates(folder, config)
    if kind == "CodeLlamaTokenizer" and "fill_token" not in config:  # the vocabulary does not have it
        texts["fill_token"] = "<FILL_ME>"
    if templates and "default" not in templates:
        others = ", ".join(sorted(templates))
        say(f"warning: the tokenizer in {folder} has no default chat template, only those for other uses: {others}")
    return Tokenizer(backend, texts, templates)


def _merged(config: dict[str, Any], later: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer_config.json with the values of special_tokens_map.json, and the special tokens that it names itself."""
    # `_EXTRA` is then the list of those without names. Transformers 5 reads the older key of one file only, too.
    old, config = "additional_special_tokens", dict(config)
    if old in config and not config.get(_EXTRA):
        config[_EXTRA] = config.pop(old)
    named = config.pop(_EXTRA) if isinstance(config.get(_EXTRA), dict) else {}
    before, more = config.get(_EXTRA) or [], later.get(_EXTRA)
    config |= later
    if isinstance(more, dict):
        named = {**named, **config.pop(_EXTRA)}
    elif isinstance(more, list):
        config[_EXTRA] = [*before, *(token for token in more if token not in before)]
    return {**config, _EXTRA: config.get(_EXTRA, config.get(old))}, named


def _add_tokens(
    folder: Path, backend: Backend, config: dict[str, Any], special: list[AddedToken], named: set[str]
) -> None:
    """Adds the tokens of the config files that tokenizer.json lacks or has with other flags, by their ids."""
    # Files older than tokenizer_config.json's list change none of tokenizer.json's tokens.
    there = {repr(token) for token in backend.get_added_tokens_decoder().values()}
    if "added_tokens_decoder" in config:
        listed = {int(at): AddedToken(**token) for at, token in config["added_tokens_decoder"].items()}
    else:
        texts = {token.content for token in special}
        flags = lambda text: {"special": text in texts, "normalized": text not in texts}
        listed = {
            at: AddedToken(text, **flags(text)) for text, at in read_if_there(folder / "added_tokens.json").items()
        }
        listed |= backend.get_added_tokens_decoder()
    for token in listed.values():
        token.special |= token.content in named
    new = [listed[at] for at in sorted(listed) if repr(listed[at]) not in there]
    known = {token.content for token in (*backend.get_added_tokens_decoder().values(), *new)}
    if new := new + [token for token in special if token.content not in known]:
        backend.add_tokens(new)


def _templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name; files take precedence over tokenizer_config.json."""
    files = {file.stem: file for file in (folder / "additional_chat_templates").glob("*.jinja")}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    if files:
        return {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    given = config.get("chat_template") or {}
    if isinstance(given, list):
        given = {each["name"]: each["template"] for each in given}
    return {"default": given} if isinstance(given, str) else given


def _check_split(folder: Path, backend: Backend, mend: bool) -> None:
    """Replaces, or warns of, LLaMA 3's pre-tokenizer in Mistral Small 3's tokenizer.json, where it is an error."""
    if backend.pre_tokenizer is None or backend.token_to_id("[INST]") is None:
        return
    state = json.loads(backend.pre_tokenizer.__getstate__())
    first = (state.get("pretokenizers") or [state])[0]
    if first.get("pattern") != {"Regex": LLAMA3_SPLIT}:
        return
    if mend:
        backend.pre_tokenizer[0] = pre_tokenizers.Split(Regex(_TEKKEN_SPLIT), behavior="isolated")
    else:
        say(
            f"warning: {folder / 'tokenizer.json'} splits text as LLaMA 3 does and not as Mistral does, so numbers and "
            'mixed case get other ids than the model was trained with; "fix_mistral_regex": true in '
            "tokenizer_config.json mends it"
        )


def _special(token: Any) -> AddedToken | None:
    """A special token of a config, where it is a text or an object with flags; None for other values."""
    flags = {"content": token} if isinstance(token, str) else token
    if not isinstance(flags, dict) or flags.get("content") is None:
        return None
    return AddedToken(**{name: flags[name] for name in flags if name not in ("__type", "special")}, special=True)


def read_if_there(file: Path) -> dict[str, Any]:
    """A JSON object from a file of a tokenizer; empty if there is no such file."""
    return json.loads(file.read_text(encoding="utf-8-sig")) if file.is_file() else {}
