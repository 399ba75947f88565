"""Arguments of chat templates and system prompts: what they do to prompts, what is refused, and what heads remember."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from jaxspec import Engine, load
from jaxspec.checkpoint import heads
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.commands import main, train
from jaxspec.engine.chat_format import ChatFormat
from jaxspec.engine.requests import encode, requests_of
from jaxspec.options.by_command import Chat
from jaxspec.options.shared import ChatOptions
from tests import chat_templates, checkpoints

TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return load(checkpoints.make(tmp_path_factory.mktemp("format"), layers=1))


def with_template(model: Checkpoint, template: str) -> Checkpoint:
    changed = dataclasses.replace(model, tokenizer=copy.copy(model.tokenizer))
    changed.tokenizer.chat_template = template
    return changed


def prompts(model: Checkpoint, prompts: Any, chat: bool = False, **format_: Any) -> list[str]:
    return [model.tokenizer.decode(tokens) for tokens in encode(prompts, model, chat, ChatFormat(**format_))]


def test_prompts_are_those_of_the_template_with_its_arguments(model: Checkpoint):
    thinking = with_template(model, chat_templates.QWEN3)
    (open_,) = prompts(thinking, "hi", chat=True)
    (closed,) = prompts(thinking, "hi", chat=True, arguments={"enable_thinking": False})
    assert closed == open_ + "<think>\n\n</think>\n\n"
    theirs: Any = PreTrainedTokenizerFast.from_pretrained(model.path)
    for name, template in chat_templates.ALL.items():
        changed = with_template(model, template)
        given = {"tools": [{"name": "f"}], "date_string": "now"} if name == "llama31" else {}
        messages = TALK if name == "gemma" else [{"role": "system", "content": "be brief"}, *TALK]
        system = None if name == "gemma" else "be brief"
        expected = theirs.apply_chat_template(
            messages, chat_template=template, tokenize=False, add_generation_prompt=True, **given
        )
        assert prompts(changed, [TALK], chat=True, arguments=given, system=system) == [expected]
        assert prompts(changed, [TALK], arguments=given, system=system) == [expected], "messages need no chat=True"


def test_an_empty_system_prompt_replaces_the_templates_own(model: Checkpoint):
    default = "{% if messages[0].role != 'system' %}You are kind.{% endif %}" + chat_templates.CHATML
    assert prompts(with_template(model, default), "a", chat=True)[0].startswith("You are kind.")
    (found,) = prompts(with_template(model, default), "a", chat=True, system="")
    assert found.startswith("<|im_start|>system\n<|im_end|>\n<|im_start|>user")


@pytest.mark.parametrize(
    ("template", "prompt", "settings", "says"),
    [
        ("qwen3", "a", {"chat_args": {"think": 0}}, "no argument 'think'; names that it reads: enable_thinking, "),
        ("chatml", "a", {"chat_args": {"messages": []}}, "reads no argument 'messages'; names that it reads: none$"),
        ("gemma", "a", {"system": "s"}, "does not take prompt 0: System role not supported"),
        ("deaf", "a", {"system": "s"}, "does not take prompt 0: it ignores system messages; leave out the system"),
        ("chatml", [{"role": "system", "content": "x"}, *TALK], {"system": "s"}, "the conversation has a system mess"),
        ("chatml", "a", {"system": "s", "chat": False}, "prompt 0 is not a conversation, so a system prompt and arg"),
        ("qwen3", [5], {"chat_args": {"enable_thinking": False}}, "prompt 0 is a list of token ids"),
        (None, "a", {"system": "s"}, "has no chat template"),
        ("{% if %}", "a", {"chat_args": {"x": 1}}, "the chat template cannot be read: "),
    ],
)
def test_what_a_template_does_not_take_is_refused(
    model: Checkpoint, template: str | None, prompt: Any, settings: dict[str, Any], says: str
):
    known = {**chat_templates.ALL, "deaf": chat_templates.DEAF}
    changed = with_template(model, known.get(template or "", template))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=says):
        requests_of(changed, [prompt], **{"chat": True, **settings})


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (("a=false", "b=1.5", 'c={"d": [null]}'), {"a": False, "b": 1.5, "c": {"d": [None]}}),
        (("a=x=y", "b=26 Jul 2024", "c=", 'd="False"'), {"a": "x=y", "b": "26 Jul 2024", "c": "", "d": "False"}),
        (("a",), "--chat-arg must be NAME=VALUE, such as enable_thinking=false, not 'a'"),
        (("=1",), "--chat-arg must be NAME=VALUE"),
        (("a=1", "a=2"), "--chat-arg a is given twice"),
        (("a=False",), "--chat-arg a=False: values are JSON, so write a=false"),
    ],
)
def test_values_are_json_or_text(typed: tuple[str, ...], found: dict[str, Any] | str):
    if isinstance(found, dict):
        assert ChatOptions(chat_arg=typed).format.arguments == found
        return
    with pytest.raises(ValueError, match=f"^{found}"):
        ChatOptions(chat_arg=typed)


def options(kind: Any) -> set[str]:
    """Names of a command's options."""
    found = set[str]()
    for field in dataclasses.fields(kind):
        inner = field.default if dataclasses.is_dataclass(field.default) else field.type
        found |= options(inner) if dataclasses.is_dataclass(inner) else {field.name}
    return found


@pytest.mark.parametrize("commands", [main.COMMANDS, train.COMMANDS], ids=["jaxspec", "jaxspec-train"])
def test_wherever_chat_is_the_options_are(commands: dict[str, tuple[type, str]]):
    for name, (kind, _) in commands.items():
        if {"chat", "data"} & options(kind) or kind is Chat:
            assert {"chat_arg", "system"} <= options(kind), name


def remember(model: Checkpoint, arguments: Any) -> Engine:
    """An engine whose draft model was trained with these arguments of the chat template."""
    file = model.path / "heads/draft-model/config.json"
    values = {**json.loads(file.read_text()), "chat_args": arguments}
    file.write_text(json.dumps(values))
    return Engine(with_template(model, chat_templates.QWEN3), "draft-model+chain")


@pytest.mark.parametrize(
    ("trained", "given", "differ"),
    [
        ({"enable_thinking": False}, None, "arguments enable_thinking=false and this run has none: fewer drafts"),
        ({}, {"enable_thinking": True}, "arguments none and this run has enable_thinking=true: fewer drafts"),
        ({"enable_thinking": False}, {"enable_thinking": False}, ""),
        (None, {"enable_thinking": False}, ""),
    ],
)
def test_a_run_with_other_arguments_than_in_training_says_so_once(
    model: Checkpoint, trained: Any, given: dict[str, Any] | None, differ: str, capsys: pytest.CaptureFixture
):
    engine = remember(model, trained)
    engine.requests(["plain text"])
    assert capsys.readouterr().err == ""
    for _ in range(2):
        engine.requests([TALK], chat_args=given, max_new_tokens=1)
        engine.requests(["hi"], chat=True, chat_args=given, max_new_tokens=1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (1 if differ else 0)
    assert all(line.startswith("warning: ") and differ in line for line in lines)


def test_configs_with_other_values_are_refused(model: Checkpoint, tmp_path: Path):
    config = heads.HeadConfig("medusa", model.config.model, "float32", "float32", {"heads": 1}, {"a": [1]})
    heads.write_config(tmp_path, config)
    assert heads.read_config(tmp_path) == config
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_args": "a=1"}))
    with pytest.raises(CheckpointError, match="key 'chat_args' must be an object or null"):
        heads.read_config(tmp_path)
