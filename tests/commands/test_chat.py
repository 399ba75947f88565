"""`jaxspec chat` through a pipe, and Ctrl-C."""

import io
import os
import re
import shutil
import signal

import pytest

import jaxspec
from jaxspec.commands import chat
from tests.evaluate import tiny
from tests.programs import run

NEW, METHOD = 12, "ngram+chain,length=2"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny.checkpoint(tmp_path_factory.mktemp("chat") / "ckpt")


@pytest.fixture
def talk(monkeypatch, path):
    """Runs the command on these lines."""

    def command(*lines, options=()):
        piped = "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(piped), encoding="utf-8"))
        return run("jaxspec", "chat", "--target", path, "--method", METHOD, "--max-new-tokens", NEW, *options)

    return command


def answers(path, questions, **settings):
    """The answers of `Engine.generate` to each message, given the messages before it."""
    engine, messages, found = jaxspec.Engine(path, METHOD), [], []
    for question in questions:
        messages = [*messages, {"role": "user", "content": question}]
        found.append(engine.generate([messages], chat=True, max_new_tokens=NEW, **settings)[0].text)
        messages = [*messages, {"role": "assistant", "content": found[-1]}]
    return found


def test_it_answers_as_the_engine_does_and_keeps_what_it_read(talk, path):
    questions = ["abc " * 29, "def"]  # more than a chunk of 128 tokens
    code, out, remarks = talk(*questions, "/stats", "/quit", "never read")
    assert code == 0
    assert out == "".join(f"{answer}\n" for answer in answers(path, questions))
    assert "Traceback" not in remarks
    of_answer, of_all = remarks.splitlines()[-2:]
    assert of_answer.startswith(f"answer: {NEW} tokens, ")
    assert "128 of them from the cache" in of_answer
    assert of_all.startswith(f"conversation: {2 * NEW} tokens, ")


def test_a_template_that_rewrites_earlier_text(talk, path, tmp_path):
    """Here the number of turns, at the very beginning: nothing that was read before is used again."""
    changed = shutil.copytree(path, tmp_path / "ckpt")
    (changed / "chat_template.jinja").write_text("{{ style }} {{ messages | length }}" + tiny.TEMPLATE)
    questions, options = ["abc " * 29, "def"], ("--system", "be brief", "--chat-arg", "style=[1]")
    code, out, remarks = talk(*questions, "/stats", options=("--target", str(changed), *options))
    assert code == 0
    expected = answers(changed, questions, system="be brief", chat_args={"style": [1]})
    assert out == "".join(f"{answer}\n" for answer in expected)
    assert ", 0 of them from the cache" in remarks.splitlines()[-2]


def test_generate_has_the_same_options(path, tmp_path):
    changed = shutil.copytree(path, tmp_path / "ckpt")
    (changed / "chat_template.jinja").write_text("{{ style }}" + tiny.TEMPLATE)
    options = ("--chat", "--prompt", "ab", "--chat-arg", "style=1", "--system", "be brief", "--max-new-tokens", NEW)
    found = run("jaxspec", "generate", "--target", changed, "--method", METHOD, *options)
    expected = answers(changed, ["ab"], chat_args={"style": 1}, system="be brief")
    assert (found.code, found.out) == (0, f"{expected[0]}\n")


def test_options_that_cannot_be_met_end_the_command(talk, path, tmp_path):
    bare = shutil.copytree(path, tmp_path / "ckpt")
    (bare / "chat_template.jinja").unlink()
    for options, said in (
        (("--chat-arg", "style=1"), "error: the chat template reads no argument 'style'; names"),
        (("--target", str(bare), "--system", "x"), f"error: {bare} has no chat template, so leave out --system and"),
        (("--max-new-tokens", "0"), "error: max_new_tokens must be at least 1, not 0"),
    ):
        code, _, remarks = talk("ab", options=options)
        assert code == 2 and remarks.splitlines()[-1].startswith(said)


def test_reset_help_and_unknown_commands(talk, path):
    code, out, remarks = talk("/stats", "ab", "/reset", "ab", "/help", "/fly", "")
    (answer,) = answers(path, ["ab"])
    assert (code, out) == (0, f"{answer}\n{answer}\n")
    assert "there is no answer yet" in remarks
    assert "/reset   start a new conversation" in remarks
    assert "there is no command /fly" in remarks


def test_drafts_are_marked_on_request(talk, path):
    _, out, remarks = talk("/drafts", "abcabcabc")
    _, same, _ = talk("abcabcabc", options=("--show-drafts",))
    assert out == same
    assert "[-in brackets-]: drafted and rejected" in remarks
    assert "drafts are shown" in remarks
    assert "[-" in out  # of a random model most drafts are rejected


def test_what_does_not_fit_is_said_and_the_chat_goes_on(talk, path):
    (answer,) = answers(path, ["ab"])
    code, out, remarks = talk("x" * 300, "ab")
    assert (code, out) == (0, f"{answer}\n")
    assert "leaves no room for an answer: the model has 256 positions" in remarks
    assert "/reset starts a new conversation" in remarks


def test_bytes_that_are_no_text_do_not_end_the_chat(talk, path):
    (answer,) = answers(path, ["ab"])
    code, out, remarks = talk("caf\udce9", "ab")
    assert (code, out) == (0, f"{answer}\n")
    assert "holds U+DCE9 at " in remarks and "which is no character" in remarks
    assert "new conversation" not in remarks


def test_a_long_answer_leaves_room_for_the_next(talk):
    """It takes half of the 256 positions that the prompt leaves."""
    code, _, remarks = talk("ab", "/stats", options=("--max-new-tokens", "1000"))
    assert code == 0
    line = next(line for line in remarks.splitlines() if line.startswith("answer: "))
    tokens, prompt = (int(re.findall(rf"(\d+) {words}", line)[0]) for words in ("tokens,", "prompt tokens"))
    assert tokens == (256 - prompt) // 2


def test_ctrl_c_stops_the_answer_and_keeps_the_chat(talk, path, monkeypatch):
    def pieces(*arguments):
        for number, piece in enumerate(real(*arguments)):
            if number == 0 and not pressed:
                pressed.append(os.kill(os.getpid(), signal.SIGINT))
            yield piece

    real, pressed = chat.snapshots, []
    monkeypatch.setattr(chat, "snapshots", pieces)
    monkeypatch.setattr(chat, "ROUNDS", 1)
    code, out, remarks = talk("abcabc", "/reset", "abcabc")
    (answer,) = answers(path, ["abcabc"])
    assert code == 0
    assert "stopped" in remarks.splitlines()
    assert out.endswith(f"{answer}\n")
    assert not out.startswith(answer)
