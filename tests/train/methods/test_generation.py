"""`jaxspec-train generate`: its output, resuming a killed run with the same bytes, and refusals."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jaxspec
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.decoding.request import SamplingParams
from jaxspec.decoding.strategy import CostTable
from jaxspec.engine.chat_format import ChatFormat
from jaxspec.train.data import dataset, encoding, records, self_prompts
from jaxspec.train.data.prompts import Prompt, cut_prompts, load_prompts
from jaxspec.train.data.text import Document
from jaxspec.train.decoding_options import Generate
from jaxspec.train.methods import generation
from jaxspec.train.options import Data
from tests.evaluate.tiny import MODEL, checkpoint
from tests.train.command import command

FEW = ("--method", "plain", "--batch-size", 4, "--max-new-tokens", 20)
ASKED = (*FEW, "--samples", 12)
QUICK = (*ASKED, "--prompt-tokens", 12)
ROOM = MODEL.max_length
UNSEEN = lambda texts: None  # the progress of texts


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint over bytes, of which eight control characters end a text."""
    path = checkpoint(tmp_path_factory.mktemp("target") / "ckpt")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"eos": list(range(200, 208))}))
    return path


@pytest.fixture(scope="module")
def model(target: Path) -> Checkpoint:
    return jaxspec.load(target)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text; `shutil.py` is held out by its name."""
    path = tmp_path_factory.mktemp("data")
    (path / "a.py").write_text("".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(60)))
    (path / "shutil.py").write_text("held out\n" * 3)
    return path


@pytest.fixture(scope="module")
def generate(target: Path, data: Path) -> Callable[..., tuple[int, str]]:
    """Exit code and stderr of the command, with small settings."""
    return lambda out, *more: command("generate", "--target", target, "--data", data, "--out", out, *QUICK, *more)


@pytest.fixture(scope="module")
def whole(generate: Callable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of an undisturbed run."""
    out = tmp_path_factory.mktemp("whole") / "out.jsonl"
    code, err = generate(out)
    assert code == 0, err
    assert err.splitlines()[-1].startswith(f"wrote {out}: 12 texts by plain")
    return out


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def settings(greedy_tokens: int = 5, temperature: float = 1.0) -> Generate:
    sampling = SamplingParams(max_new_tokens=30, temperature=temperature, seed=3)
    return Generate(target=Path(), out=Path(), sampling=sampling, greedy_tokens=greedy_tokens)


def test_it_writes_what_the_trainers_read(whole: Path, data: Path):
    written = lines(whole)
    assert len(written) == 12
    open_text = (data / "a.py").read_text()
    for line in written:
        assert list(line) == ["text", "prompt", "complete"]
        assert line["text"].startswith(line["prompt"])
        assert line["prompt"] in open_text
    assert {line["complete"] for line in written} == {True, False}
    found = records.read(whole)
    assert found == [
        Document(f"out.jsonl:{i}", line["text"], line["complete"]) for i, line in enumerate(written, 1)
    ]  # fmt: skip
    assert [path.name for path in whole.parent.iterdir()] == ["out.jsonl"]


def test_the_batch_size_does_not_change_the_text(whole: Path, generate: Callable, tmp_path: Path):
    assert generate(tmp_path / "out", "--batch-size", 3)[0] == 0
    assert (tmp_path / "out").read_bytes() == whole.read_bytes()
    assert generate(tmp_path / "other", "--seed", 1)[0] == 0
    assert (tmp_path / "other").read_bytes() != whole.read_bytes()


def test_a_killed_run_goes_on(whole: Path, generate: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked, killed_at, go_on = [], [4], generation.go_on

    def killed(engine, settings, prompts, first, report):
        if first == killed_at[0]:
            raise KeyboardInterrupt
        asked.append(first)
        return go_on(engine, settings, prompts, first, report)

    monkeypatch.setattr(generation, "go_on", killed)
    monkeypatch.setattr(generation, "BATCHES", 1)  # other groups than those of `whole`
    out, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    assert generate(out)[0] == 130
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl.part"]
    code, err = generate(out, "--seed", 1)
    assert code == 2
    assert "out.jsonl.part belongs to a run with other settings (--seed is 0 there and 1 here)" in err
    assert "another OUT" in err

    settings = part.read_bytes().splitlines(keepends=True)[0]
    texts, killed_at[0] = whole.read_bytes().splitlines(keepends=True), -1
    assert part.read_bytes() == settings + b"".join(texts[:4])
    torn = lambda count: settings + b"".join(texts[:count]) + texts[count][:-7]
    for content, goes_on in (
        (part.read_bytes(), [4, 8]),
        (b"", [0, 4, 8]),
        (settings[:30], [0, 4, 8]),
        (settings, [0, 4, 8]),
        (torn(3), [0, 4, 8]),
        (torn(4), [4, 8]),
        (settings + b"".join(texts[:5]), [4, 8]),
        (settings + b"".join(texts[:8]), [8]),
    ):
        asked.clear()
        part.write_bytes(content)
        code, err = generate(out)
        assert code == 0, err
        assert asked == goes_on
        assert out.read_bytes() == whole.read_bytes()
        assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
        out.unlink()

    part.write_bytes(b"something else\n")
    code, err = generate(out)
    assert code == 2
    assert "out.jsonl.part is not what a killed `generate` left" in err
    assert part.read_bytes() == b"something else\n"


def test_another_machine_measures_other_costs_and_goes_on(
    generate: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(generation, "go_on", killed)
    for seconds in (0.1, 0.2):
        table = CostTable(plain=1.0, verify=((1, 1.0),), level=((1, seconds),))
        monkeypatch.setattr("jaxspec.engine.engine.costs_of", lambda *_, table=table: table)
        code, err = generate(tmp_path / "out", "--method", "ngram+pruned")
        assert code == 130, err
    code, err = generate(tmp_path / "out", "--method", "ngram+pruned,cost=0.1")
    assert code == 2 and "cost=measured,total=64" in err, "costs that were typed belong to the run"


@pytest.mark.soak
def test_a_method_that_needs_costs_gets_them(
    whole: Path, generate: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    table = CostTable(plain=1.0, verify=((1, 1.0), (64, 2.0)), level=((1, 0.1), (16, 0.2)))
    monkeypatch.setattr("jaxspec.engine.engine.costs_of", lambda *_: table)
    code, err = generate(tmp_path / "out", "--method", "ngram+pruned,depth=2,total=4", "--samples", 2)
    assert code == 0, err
    assert "measured" not in err.splitlines()[-1], "the method that wrote is named with its costs"
    assert lines(tmp_path / "out") == lines(whole)[:2], "no method changes a text"


def test_the_first_tokens_are_greedy(model: Checkpoint):
    engine, prompts = jaxspec.Engine(model, "plain"), [[1, 2, 3], [7] * 9, [4, 5], [1, 2, 3]]
    greedy = [each.tokens for each in engine.generate(prompts, max_new_tokens=30)]
    texts = generation.go_on(engine, settings(), prompts, 0, UNSEEN)
    assert [text[:5] for text in texts] == [text[:5] for text in greedy]
    assert texts[0] != texts[3]  # each draws by its own number
    assert texts[0] != greedy[0]
    assert generation.go_on(engine, settings(greedy_tokens=99), prompts, 0, UNSEEN) == greedy
    assert generation.go_on(engine, settings(), prompts[1:], 1, UNSEEN) == texts[1:]
    lengths: list[int] = []
    sampled = generation.go_on(engine, settings(greedy_tokens=0), prompts, 0, lambda texts: lengths.append(len(texts)))
    assert lengths == [4] * 4, "progress is shown whenever a text is finished"
    assert sampled == [
        each.tokens for each in engine.generate(prompts, max_new_tokens=30, temperature=1.0, seed=3)
    ]  # fmt: skip


def test_texts_end_with_the_context(model: Checkpoint):
    engine = jaxspec.Engine(model, "plain")
    prompts = [[0] * (ROOM - 3), [0] * (ROOM - 12), [0, 1], [1]]  # for the last three, greedy tokens are not all
    texts = generation.go_on(engine, settings(temperature=0.0), prompts, 0, UNSEEN)
    for text, most in zip(texts, (3, 12, 30, 30), strict=True):
        ended = [token in engine.model.config.eos for token in text]
        assert not any(ended[:-1])
        assert len(text) == most or ended[-1]


def test_a_line_has_whole_characters_and_no_end_token(model: Checkpoint):
    engine, encode = jaxspec.Engine(model, "plain"), model.tokenizer.encode
    prompt, accented, end = Prompt(encode("ab")), encode("é"), model.config.eos[0]
    assert generation.record(engine, prompt, accented) == {"text": "abé", "prompt": "ab", "complete": False}
    assert generation.record(engine, prompt, accented[:1])["text"] == "ab"
    assert generation.record(engine, prompt, [*accented, end]) == {"text": "abé", "prompt": "ab", "complete": True}


def test_prompts_are_of_lines_and_of_what_is_not_held_out(model: Checkpoint):
    found = [Document("a", "ééé first\né second\n" * 9), Document("shutil.py", "held\n" * 999), Document("b", "third")]
    cut = cut_prompts(found, model.tokenizer, 200, 5, seed=0)
    texts = {model.tokenizer.decode(tokens) for tokens in cut}
    assert texts == {"éé", "é se", "third"}  # of five bytes, without half a character
    assert cut_prompts(found, model.tokenizer, 20, 5, seed=0) == cut[:20]
    assert cut_prompts(found, model.tokenizer, 200, 5, seed=1) != cut


def test_with_chat_it_answers_first_turns(target: Path, model: Checkpoint, tmp_path: Path):
    """A line is a conversation, whose answer continues what the template writes before it; training reads the same."""
    talk = tmp_path / "talk.jsonl"
    turns = lambda *contents: [{"role": r, "content": c} for r, c in zip(("user", "assistant") * 2, contents)]  # noqa: B905
    given = [turns(f"question {i}", "an answer", "and then?", "another") for i in range(3)]
    given += [turns("x" * ROOM, "no room for this question")]
    talk.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in given))
    out = tmp_path / "out.jsonl"
    code, err = command("generate", "--target", target, "--data", talk, "--chat", "--out", out, *ASKED)
    assert code == 0, err
    written = lines(out)
    assert sorted(line["messages"][0]["content"] for line in written) == [f"question {i}" for i in range(3)]
    engine = jaxspec.Engine(model, "plain")
    for line, each in zip(written, encoding.encode(model.tokenizer, records.read(out)), strict=True):
        question, answer = (message["content"] for message in line["messages"])
        (greedy,) = engine.generate(f"<user>{question}<assistant>", max_new_tokens=8)
        assert answer.startswith(greedy.text.rstrip("\ufffd"))
        ends = f"{answer}<assistant>" if line["complete"] else answer.rstrip()
        assert model.tokenizer.decode(each.tokens) == f"<user>{question}<assistant>{ends}"
    begun, *_ = load_prompts(None, Data(talk, system="be brief"), model, 3, 0, seed=0, chat=True)
    assert [message.role for message in begun.messages] == ["system", "user"]  # the output keeps it, for training
    assert model.tokenizer.decode(begun.tokens).startswith("<system>be brief<user>question")
    again = load_prompts(None, Data(talk), model, 3, 0, seed=0, chat=True)
    assert [model.tokenizer.decode(each.tokens) for each in again] == [
        f"<user>{line['messages'][0]['content']}<assistant>" for line in written
    ]


def test_conversations_that_the_template_refuses_are_bad_records(model: Checkpoint, tmp_path: Path, capsys):
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    given = [{"messages": talk}, {"messages": talk, "system": "be long"}]
    (tmp_path / "talk.jsonl").write_text("\n".join(map(json.dumps, given)))
    data = Data(tmp_path / "talk.jsonl", system="be brief")  # a conversation may have no system prompt of its own, too
    (found,) = load_prompts(None, data, model, 2, 0, seed=0, chat=True)
    assert model.tokenizer.decode(found.tokens) == "<system>be brief<user>hi<assistant>"
    assert "skipped 1 of 2 records: talk.jsonl:2: the chat template does not take it" in capsys.readouterr().err
    with pytest.raises(ValueError, match="jsonl:2: the chat template does not take it"):
        load_prompts(None, dataclasses.replace(data, strict=True), model, 2, 0, seed=0, chat=True)
    with pytest.raises(ValueError, match="the chat template reads no argument 'other'"):
        load_prompts(None, dataclasses.replace(data, chat_arg=("other=1",)), model, 2, 0, seed=0, chat=True)


def test_prompts_of_a_file(target: Path, tmp_path: Path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"turns": [f"prompt {i}", "and then"]}) + "\n" for i in range(3)))
    code, err = command("generate", "--target", target, "--prompts", prompts, "--out", tmp_path / "out", *ASKED)
    assert code == 0, err
    assert [line["prompt"] for line in lines(tmp_path / "out")] == ["prompt 0", "prompt 1", "prompt 2"]


def test_texts_near_an_excluded_question_are_left_out(target: Path, tmp_path: Path):
    prompts, held = tmp_path / "prompts.jsonl", tmp_path / "held.jsonl"
    turns = [" ".join(f"{word}{i}" for i in range(14)) for word in "abc"]
    prompts.write_text("".join(json.dumps({"prompt": turn}) + "\n" for turn in turns))
    held.write_text(json.dumps({"prompt": turns[1].upper()}))
    options = ("--target", target, "--prompts", prompts, "--exclude", held, *ASKED)
    code, err = command("generate", "--out", tmp_path / "out", *options)
    assert code == 0, err
    assert [line["prompt"] for line in lines(tmp_path / "out")] == [turns[0], turns[2]]
    assert err.splitlines()[-1].endswith("; left out: 1 near an excluded question")
    held.write_text(prompts.read_text())
    code, err = command("generate", "--out", tmp_path / "none", *options)
    assert code == 2 and "no text is left to write" in err.splitlines()[-1]


SELF = ("--self-prompts", 10, "--temperature", 0.7, *FEW)


def test_a_target_writes_the_users_turns_itself(
    target: Path, model: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Every other turn has no end. Answers begin as the target answers such a turn, without the topic."""
    out, with_turns, killed_at = tmp_path / "out.jsonl", generation.with_turns, [4]

    def some_turns(engine, settings, headers, first):
        if first == killed_at[0]:
            raise KeyboardInterrupt
        found = with_turns(engine, settings, headers, first)
        assert [model.tokenizer.decode(header.tokens) for header in headers] == [
            f"<system>You are a helpful assistant. The user asks about {topic}.<user>"
            for topic in self_prompts.TOPICS[first : first + len(headers)]
        ]
        return [None if (first + row) % 2 else prompt for row, prompt in enumerate(found)]

    monkeypatch.setattr(generation, "with_turns", some_turns)
    monkeypatch.setattr(generation, "BATCHES", 1)
    assert command("generate", "--target", target, "--out", out, *SELF)[0] == 130
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl.part"]
    killed_at[0] = -1
    code, err = command("generate", "--target", target, "--out", out, *SELF)
    assert code == 0, err
    whole = tmp_path / "whole.jsonl"
    assert command("generate", "--target", target, "--out", whole, *SELF)[0] == 0
    assert out.read_bytes() == whole.read_bytes()
    written, engine = lines(out), jaxspec.Engine(model, "plain")
    assert 3 <= len(written) <= 5 and f"wrote {out}: {len(written)} texts by plain" in err
    assert f"left out: {10 - len(written)} unusable turns" in err and "4-grams are distinct" in err
    assert len({line["messages"][0]["content"] for line in written}) == len(written)
    for line in written:
        asked, answered = line["messages"]
        assert (asked["role"], answered["role"]) == ("user", "assistant")
        (greedy,) = engine.generate(f"<user>{asked['content']}<assistant>", max_new_tokens=8)
        assert answered["content"].startswith(greedy.text.rstrip("\ufffd"))


def test_where_a_turn_ends(target: Path, tmp_path: Path):
    """By EOS, or by the text that the template writes after it; this template takes no system message."""
    shutil.copytree(target, tmp_path / "ckpt")
    (tmp_path / "ckpt" / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "[INST] {{ m.content }} [/INST]{% endfor %}"
    )
    model = jaxspec.load(tmp_path / "ckpt")
    (header,) = self_prompts.headers(model, ChatFormat(), 1)
    assert model.tokenizer.decode(header.tokens) == "[INST]"

    def turn(text: str, ended: bool) -> str | None:
        found = self_prompts.prompt_after(header, model.tokenizer.encode(text), ended, model, ChatFormat())
        return None if found is None else model.tokenizer.decode(found.tokens)

    assert turn(" Hi there [/INST] yes", False) == turn(" Hi there ", True) == "[INST] Hi there [/INST]"
    assert turn(" Hi there", False) is turn("  ", True) is turn(" [/INST]", False) is None
    assert turn("x" * ROOM, True) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--out", "HERE/exists"), "exists exists already; name another output or remove it first"),
        (("--out", "HERE/no/out"), "the folder that is to hold the output, does not exist; make it first"),
        (("--out", "HERE/out", "--prompts", "HERE/exists"), "holds no questions"),
        (("--out", "HERE/out", "--prompts", "HERE/nowhere"), "nowhere cannot be read"),
        (("--out", "HERE/out", "--prompt-tokens", ROOM), f"tokens and the model has {ROOM} positions"),
        (("--out", "HERE/out", "--data", "HERE/talk.jsonl"), "the data holds conversations; --chat takes"),
        (("--out", "HERE/out", "--chat"), "--chat takes the first turns of conversations"),
        (("--out", "HERE/out", "--target", "HERE/mute"), "mute has no tokenizer, so it cannot generate text"),
        (("--out", "HERE/out", "--method", "nonsense"), "there is no drafter 'nonsense'"),
        (("--out", "HERE/out", "--temperature", -1), "temperature must be 0 or above"),
        (("--out", "HERE/out", "--self-prompts", 0), "--self-prompts must be at least 1, not 0"),
        (("--out", "HERE/out", "--self-prompts", 2, "--max-loops", 2), "--max-loops must be from 0 to 1, not 2"),
        (("--out", "HERE/out", "--self-prompts", 2, "--prompts", "builtin"), "--prompts has no effect with --self-pro"),
        (("--out", "HERE/out", "--self-prompts", 2), "--samples has no effect with --self-prompts: leave out one of"),
        (("--out", "HERE/out", "--prompts", "builtin", "--data", "HERE"), "--data has no effect with --prompts: leave"),
        (("--out", "HERE/out", "--chat", "--prompt-tokens", 9), "--prompt-tokens has no effect with --chat: leave"),
        (("--out", "HERE/out", "--max-loops", 0.2), "--max-loops has an effect only with --self-prompts"),
        (("--out", "HERE/out", "--exclude", "HERE/nowhere"), "nowhere cannot be read"),
        (("--out", "HERE/out", "--samples", 0), "--samples must be at least 1, not 0"),
        (("--out", "HERE/out", "--greedy-tokens", -1), "--greedy-tokens must not be below 0, not -1"),
    ],
)
def test_bad_input_ends_in_one_sentence(arguments: tuple, words: str, target: Path, data: Path, tmp_path: Path):
    (tmp_path / "exists").touch()
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    (tmp_path / "talk.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    shutil.copytree(target, tmp_path / "mute", ignore=shutil.ignore_patterns("tokenizer*"))
    before = sorted(tmp_path.rglob("*"))
    filled = [str(argument).replace("HERE", str(tmp_path)) for argument in arguments]
    given = [] if "--prompts" in filled or "--data" in filled else ["--data", data]
    given += [] if "--target" in filled else ["--target", target]
    code, err = command("generate", "--samples", 2, *given, *filled)
    assert code == 2, err
    assert words in err.splitlines()[-1]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_head_learns_from_both(whole: Path, target: Path, data: Path, tmp_path: Path):
    code, err = command(
        *("draft-model", "--target", target, "--out", tmp_path / "head", "--data", whole, "--open-data", data),
        *("--steps", 2, "--batch-size", 4, "--context", 8, "--generated-share", 0.25),
    )
    assert code == 0, err
    assert "chain tau" in err.splitlines()[-1]
    settings = json.loads((tmp_path / "head.run/settings.json").read_text())
    assert (settings["--open-data"], settings["--generated-share"]) == (str(data), 0.25)
    train = dataset.read(tmp_path / "head.run/data/train")
    assert train.tokens.shape == (8, 8)
    first = encoding.encode(jaxspec.load(target).tokenizer, records.read(whole))
    assert any(train.tokens[0].tolist() == each.tokens[:8].tolist() for each in first)
