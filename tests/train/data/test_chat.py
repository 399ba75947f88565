"""Conversations as training texts: each answer verbatim after its own generation prompt, whatever the template does."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxspec.checkpoint.tokenizer import load_tokenizer
from jaxspec.engine.chat_format import ChatFormat
from jaxspec.train.data import chat, encoding
from jaxspec.train.data.records import BadRecord, Conversation, Message
from tests import chat_templates
from tests.checkpoints import byte_tokenizer

DEEP, SHALLOW = "<think>\nhm\n</think>\n\nyes", "<think>\noh\n</think>\n\nno"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer().save_pretrained(folder)
    return load_tokenizer(folder)


def talk(*contents: str, system: str | None = None) -> Conversation:
    spoken = [Message("assistant" if i % 2 else "user", content) for i, content in enumerate(contents)]
    return Conversation("a:1", (*([] if system is None else [Message("system", system)]), *spoken))


def rendered(tokenizer: Any, template: str, conversation: Conversation, **arguments: Any) -> list[chat.Rendered]:
    tokenizer.chat_template = template
    found = chat.render(tokenizer, conversation, ChatFormat(arguments))
    assert not isinstance(found, BadRecord), found.reason
    return found


def answers(found: list[chat.Rendered]) -> list[list[str]]:
    """The answers in each text."""
    return [[each.text[start:end] for start, end in each.spans] for each in found]


def test_reasoning_of_earlier_turns_is_kept_where_it_was_generated(tokenizer: Any):
    first, second = rendered(tokenizer, chat_templates.QWEN3, talk("a", DEEP, "b", SHALLOW))
    turn = "<|im_start|>{}\n{}<|im_end|>\n".format
    assert first.text == turn("user", "a") + turn("assistant", DEEP)[:-1]
    assert second.text == turn("user", "a") + turn("assistant", "yes") + turn("user", "b") + turn("assistant", SHALLOW)
    assert answers([first, second]) == [[f"{DEEP}<|im_end|>"], [f"{SHALLOW}<|im_end|>"]]


def test_turns_without_reasoning_stay_one_text(tokenizer: Any):
    """The empty reasoning, which the template writes before the last answer alone, is nothing that was generated."""
    found = rendered(tokenizer, chat_templates.QWEN3, talk("a", "yes", "b", "no", "c", DEEP))
    assert answers(found) == [["yes<|im_end|>", "no<|im_end|>", f"{DEEP}<|im_end|>"]]
    found = rendered(tokenizer, chat_templates.QWEN3, talk("a", "yes", "b", DEEP, "c", "no", "d", "so"))
    assert answers(found) == [["yes<|im_end|>", f"{DEEP}<|im_end|>"], ["no<|im_end|>", "so<|im_end|>"]]


def test_arguments_change_the_generation_prompt(tokenizer: Any):
    first, second = rendered(tokenizer, chat_templates.QWEN3, talk("a", "yes", "b", "no"), enable_thinking=False)
    assert first.text.endswith("assistant\n<think>\n\n</think>\n\nyes<|im_end|>")
    assert "assistant\nyes<|im_end|>\n<|im_start|>user\nb" in second.text
    assert answers([first, second]) == [["yes<|im_end|>"], ["no<|im_end|>"]]
    (same,) = rendered(tokenizer, chat_templates.QWEN3, talk("a", "<think>\n\n</think>\n\nyes"), enable_thinking=False)
    assert same.text == first.text + "\n"


@pytest.mark.parametrize("answer", [DEEP, DEEP.replace("<think>\n", "<think>"), DEEP.removeprefix("<think>\n")])
def test_tags_of_the_generation_prompt_are_not_doubled(tokenizer: Any, answer: str):
    first, second = rendered(tokenizer, chat_templates.R1, talk("a", answer, "b", SHALLOW))
    assert first.text == "<s><|User|>a<|Assistant|><think>\nhm\n</think>\n\nyes</s>"
    assert second.text == "<s><|User|>a<|Assistant|>\n\nyes</s><|User|>b<|Assistant|><think>\noh\n</think>\n\nno</s>"
    assert answers([first, second]) == [["hm\n</think>\n\nyes</s>"], ["oh\n</think>\n\nno</s>"]]


def test_only_what_the_generation_prompt_wrote_counts_as_doubled(tokenizer: Any):
    for template in (
        chat_templates.CHATML,
        chat_templates.MISTRAL,
        "{% for m in messages %}{{ m.content }}{% endfor %}",
    ):
        (found,) = rendered(tokenizer, template, talk("begin with <b>", "<b>bold</b>"))
        assert answers([found])[0][0].lstrip().startswith("<b>bold</b>")


def test_stripped_answers_are_verbatim(tokenizer: Any):
    first, second = rendered(tokenizer, chat_templates.GEMMA, talk("a", "  x = 1\n", "b", "y"))
    assert first.text == "<s><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\n  x = 1\n<end_of_turn>"
    assert "model\nx = 1<end_of_turn>" in second.text
    assert answers([first, second]) == [["  x = 1\n<end_of_turn>"], ["y<end_of_turn>"]]
    (found,) = rendered(tokenizer, chat_templates.GEMMA, talk("a", "x", "b", "y"))
    assert answers([found]) == [["x<end_of_turn>", "y<end_of_turn>"]]


def test_what_the_template_writes_before_an_answer_is_generated_where_there_is_no_prompt_for_it(tokenizer: Any):
    (found,) = rendered(tokenizer, chat_templates.MISTRAL, talk("a", "x", "b", "y", system="be brief"))
    assert found.text == "<s>[INST] be brief\n\na [/INST] x</s>[INST] b [/INST] y</s>"
    assert answers([found]) == [[" x</s>", " y</s>"]]


@pytest.mark.parametrize(
    ("template", "prompt", "lead"),
    [
        (chat_templates.MISTRAL, "<s>[INST] a [/INST]", " "),
        (chat_templates.CHATML.replace("{{ m.content }}", " {{ m.content }}"), None, " "),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}", "user: a</s>", "assistant: "),
    ],
    ids=["no prompt", "space after the prompt", "words"],
)
def test_what_a_generated_answer_begins_with_already_is_not_doubled(
    tokenizer: Any, template: str, prompt: str | None, lead: str
):
    """`generate --chat` writes all that the target generated after the prompt, such as a space."""
    ((typed,), (generated,)) = (rendered(tokenizer, template, talk("a", content)) for content in ("x", f"{lead}x"))
    assert typed.spans == generated.spans
    (start, end) = generated.spans[0]
    assert generated.text[:end] == typed.text[:end]
    assert generated.text[start:].startswith(f"{lead}x<")
    assert prompt is None or generated.text[:start] == prompt


def test_a_system_message_that_moves_to_the_last_turn(tokenizer: Any):
    system = "be brief"
    first, second = found = rendered(tokenizer, chat_templates.MISTRAL3, talk("a", "x", "b", "y", system=system))
    assert first.text == "<s>[INST] be brief\n\na [/INST] x</s>"
    assert second.text == "<s>[INST] a [/INST] x</s>[INST] be brief\n\nb [/INST] y</s>"
    assert answers(found) == [[" x</s>"], [" y</s>"]]
    assert chat.render(tokenizer, talk("a", "x", "b", "y"), ChatFormat(system=system)) == found


def test_marks_give_the_end_and_no_rewritten_text(tokenizer: Any):
    marked = chat_templates.R1.replace(
        "{{ m.content.split('</think>')[-1] }}{{ eos_token }}",
        "{% generation %}{{ m.content.split('</think>')[-1] }}{{ eos_token }}{% endgeneration %}",
    )
    conversation = talk("a", DEEP, "b", SHALLOW)
    assert rendered(tokenizer, marked, conversation) == rendered(tokenizer, chat_templates.R1, conversation)


def test_an_answer_that_was_broken_off_has_no_end(tokenizer: Any):
    conversation = dataclasses.replace(talk("a", DEEP, "b", "<think>\noh "), complete=False)
    for template in (chat_templates.QWEN3, chat_templates.R1):
        assert rendered(tokenizer, template, conversation)[-1].text.endswith("<think>\noh")


text = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8).filter(str.strip)
answer = st.one_of(text, st.builds("<think>\n{}\n</think>\n\n{}".format, text, text))


@given(st.lists(st.tuples(text, answer), min_size=1, max_size=3), st.sampled_from(sorted(chat_templates.ALL)))
def test_each_answer_follows_its_own_prompt(tokenizer: Any, turns: list[tuple[str, str]], name: str):
    conversation = talk(*(content for turn in turns for content in turn))
    found = rendered(tokenizer, chat_templates.ALL[name], conversation)
    spans = [(each.text, *span) for each in found for span in each.spans]
    messages = [dataclasses.asdict(message) for message in conversation.messages]
    assert len(spans) == len(turns)
    for number, (whole, start, end) in enumerate(spans):
        prompt = tokenizer.apply_chat_template(messages[: 2 * number + 1], add_generation_prompt=True)
        own, said = turns[number][1], whole[start:end]
        assert whole[:start] == prompt
        assert own in said or (own.startswith("<think>") and prompt.endswith("<think>\n") and own[8:] in said)
        assert not said.endswith("\n")


@pytest.mark.parametrize(
    ("template", "conversation", "chat_format", "reason"),
    [
        (
            "gemma",
            talk("a", "x", system="be brief"),
            ChatFormat(),
            "a:1: the chat template cannot be used: System role not supported",
        ),
        (
            "gemma",
            talk("a", "x"),
            ChatFormat(system="be brief"),
            "a:1: the chat template cannot be used: System role not supported",
        ),
        (
            "chatml",
            talk("a", "x", system="be brief"),
            ChatFormat(system="be long"),
            "a:1: the conversation has a system message, and a",
        ),
        (
            "deaf",
            talk("a", "x"),
            ChatFormat(system="be brief"),
            "a:1: the chat template cannot be used: it ignores system messages; leave out",
        ),
    ],
)
def test_conversations_that_a_template_does_not_take(
    tokenizer: Any, template: str, conversation: Conversation, chat_format: ChatFormat, reason: str
):
    tokenizer.chat_template = {**chat_templates.ALL, "deaf": chat_templates.DEAF}[template]
    with pytest.raises(ValueError, match=f"^{reason}"):
        encoding.encode(tokenizer, [conversation], strict=True, chat_format=chat_format)


def test_a_system_prompt_and_arguments_reach_the_text(tokenizer: Any, capsys: pytest.CaptureFixture):
    tokenizer.chat_template = chat_templates.LLAMA31
    chat_format = ChatFormat({"date_string": "1 May 2031"}, "be brief")
    (found,) = encoding.encode(tokenizer, [talk("a", "x", "b", "y")], chat_format=chat_format)
    written = tokenizer.decode(found.tokens)
    assert "Today: 1 May 2031\nbe brief<|eot_id|>" in written and "26 Jul" not in written
    with pytest.raises(
        ValueError, match=r"reads no argument 'date'; names that it reads: bos_token, date_string, tools$"
    ):
        encoding.encode(tokenizer, [talk("a", "x")], chat_format=ChatFormat({"date": "today"}))
    assert capsys.readouterr().err == ""


def test_rewritten_conversations_are_counted(tokenizer: Any, capsys: pytest.CaptureFixture):
    tokenizer.chat_template = chat_templates.QWEN3
    found = encoding.encode(tokenizer, [talk("a", DEEP, "b", SHALLOW), talk("a", "x", "b", "y")])
    counted = [tokenizer.decode(each.tokens[each.counted]) for each in found]
    assert counted == [f"{DEEP}<|im_end|>", f"{SHALLOW}<|im_end|>", "x<|im_end|>y<|im_end|>"]
    err = capsys.readouterr().err
    assert err == "1 conversations became 2 texts, because the chat template rewrites earlier turns\n"
