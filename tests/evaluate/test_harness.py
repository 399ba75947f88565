"""jaxspec as a model of lm-evaluation-harness, by the harness's own command on tasks in local files.

Only where the extra `eval` is installed, which `dev` does not bring: it is large, and what it calls is tested in
`tests/engine/`.
"""

import json
import shutil
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from jaxspec import Engine, load
from jaxspec.decoding.strategy import CostTable
from jaxspec.engine.scoring import scores
from tests import checkpoints
from tests.chat_templates import GEMMA
from tests.checkpoints import TEMPLATE

lm_eval = pytest.importorskip("lm_eval", reason="needs the extra `eval`")
from jaxspec.evaluate import harness  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # the harness has its own
METHOD = "draft-model+chain,length=3"
STOPS = "abcdefghijklm"
DOCUMENTS = [
    {"context": "abcabc", "choices": [" x", " yy", " abc"], "whole": "again and again " * 30},
    {"context": "the first of", "choices": [" the two", " no", " z"], "whole": "x"},
    {"context": "", "choices": [" a", " b", " c"], "whole": "abc"},
    {"context": "far too long, " * 30 + "!", "choices": [" q", " r", " s"], "whole": "zz top"},
]
TASKS = {
    "choose": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{context}}",
        "doc_to_choice": "choices",
        "doc_to_target": 0,
        "target_delimiter": "",
    },
    "roll": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{whole}}",
        "metric_list": [{"metric": "byte_perplexity"}],
    },
    "write": {
        "output_type": "generate_until",
        "doc_to_text": "{{context}}",
        "doc_to_target": "x",
        "generation_kwargs": {"until": list(STOPS), "max_gen_toks": 24},
        "metric_list": [{"metric": "exact_match"}],
    },
    "draw": {
        "output_type": "generate_until",
        "doc_to_text": "{{context}}",
        "doc_to_target": "x",
        "generation_kwargs": {"until": [], "max_gen_toks": 9, "do_sample": True, "temperature": 0.9, "top_p": 0.9},
        "metric_list": [{"metric": "exact_match"}],
        "repeats": 2,
    },
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return checkpoints.make(tmp_path_factory.mktemp("harness"))


@pytest.fixture(scope="module")
def model(path):
    return load(path, dtype="float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder of tasks."""
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "documents.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    files = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
    for name, task in TASKS.items():
        (folder / f"{name}.yaml").write_text(json.dumps({"task": name, **files, **task}))
    return folder


@pytest.fixture(scope="module")
def answers(path, folder):
    """The model's answer to each document, by task, from the files that `lm_eval` wrote."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
        command = ["--model", "jaxspec", "--model_args", f"target={path},dtype=float32,batch_size=2"]
        command += [f"method='{METHOD}'", "--include_path", str(folder), "--tasks", ",".join(TASKS)]
        patch.setattr(sys, "argv", ["lm_eval", *command, "--output_path", str(folder / "out"), "--log_samples"])
        harness.main()
    return {name: said(folder / "out", name) for name in TASKS}


def said(folder: Path, task: str) -> list[list[Any]]:
    (file,) = folder.glob(f"*/samples_{task}_*.jsonl")
    found = sorted((json.loads(line) for line in file.read_text().splitlines()), key=lambda line: line["doc_id"])
    return [line["resps"] for line in found]


def test_choices_are_scored(answers, model):
    encode = lambda text: model.tokenizer.encode(text)[1:]
    for document, found in zip(DOCUMENTS, answers["choose"], strict=True):
        asked = [([1, *encode(document["context"])], encode(choice)) for choice in document["choices"]]
        expected = dict(scores(model, asked, 1))
        for place, ((log_prob, greedy),) in enumerate(found):
            assert float(log_prob) == pytest.approx(expected[place].log_prob, abs=1e-3)
            assert greedy in (expected[place].greedy, str(expected[place].greedy))


def test_whole_texts_are_scored_in_windows(answers, model):
    """Each token once: of 481 tokens the last 225 after 31 of the window before."""
    for document, ((found,),) in zip(DOCUMENTS, answers["roll"], strict=True):
        tokens = [1, *model.tokenizer.encode(document["whole"])]
        asked = [(tokens[:1], tokens[1:257])] + [(tokens[-257:257], tokens[257:])] * (len(tokens) > 257)
        expected = sum(score.log_prob for _, score in scores(model, asked, 1))
        assert float(found) == pytest.approx(expected, abs=1e-2)


def test_texts_are_those_of_generate(answers, model):
    prompts = [model.tokenizer.encode(document["context"])[-(256 - 24) :] for document in DOCUMENTS]
    expected = Engine(model, "plain").generate(prompts, max_new_tokens=24, stop=list(STOPS))
    assert [[[each.text]] for each in expected] == answers["write"]
    assert any(each.finish_reason == "stop" for each in expected)
    assert [len(found[0]) for found in answers["draw"]] == [2] * 4
    assert any(found[0][0] != found[0][1] for found in answers["draw"]), "two draws of a text were one"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"until": "x"}, {"max_new_tokens": harness.NEW_TOKENS}),
        ({"temperature": 0.7, "do_sample": False, "num_beams": 1}, {"temperature": 0.0}),
        ({"temperature": 0.7, "max_new_tokens": 5}, {"temperature": 0.7, "max_new_tokens": 5}),
        ({"do_sample": True, "temperature": 1, "top_k": 4.0, "top_p": 1}, {"temperature": 1.0, "top_k": 4}),
    ],
)
def test_settings_of_a_task(settings, expected):
    stops, sampling = harness.sampling_of(settings, seed=3)
    assert stops == (("x",) if "until" in settings else ())
    assert {name: getattr(sampling, name) for name in expected} == expected and sampling.seed == 3


def test_settings_that_are_refused(path):
    with pytest.raises(ValueError, match="repetition_penalty is not supported"):
        harness.sampling_of({"repetition_penalty": 1.2}, 0)
    with pytest.raises(ValueError, match="num_beams is not supported"):
        harness.sampling_of({"num_beams": 10}, 0)
    with pytest.raises(ValueError, match="`auto` is not supported"):
        harness.Jaxspec(str(path), batch_size="auto")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"target": "nowhere"}, "there is no readable jaxspec checkpoint at nowhere"),
        ({"target": "CKPT", "methd": "plain"}, "--model_args has no methd; it has target, method, "),
        ({"target": "CKPT", "method": "plain", "max_length": 0}, "max_length must be at least 1, not 0"),
        ({"method": "plain"}, "--model_args needs target=CKPT"),
    ],
)
def test_wrong_arguments(given: dict[str, Any], said: str, path):
    given = {name: str(path) if value == "CKPT" else value for name, value in given.items()}
    with pytest.raises(ValueError, match=said):
        harness.Jaxspec.create_from_arg_obj(given, {"batch_size": 1, "device": None})


def test_errors_of_the_command_are_one_sentence(path, folder, monkeypatch):
    asked = ["--model_args", f"target={path},method=ngramm", "--tasks", "write", "--include_path", str(folder)]
    monkeypatch.setattr(sys, "argv", ["lm_eval", "--model", "jaxspec", *asked])
    with pytest.raises(SystemExit, match=r"^error: method 'ngramm': there is no drafter 'ngramm'; "):
        harness.main()


def test_one_of_several_processes_needs_a_mesh(path, monkeypatch):
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    monkeypatch.setattr(sys, "argv", [harness.__file__, "--model", "jaxspec", "--model_args", f"target={path}"])
    typed = f"python -m jaxspec.evaluate.harness --model jaxspec --model_args target={path}"
    with pytest.raises(ValueError, match="one of 2 processes") as refused:
        harness.Jaxspec(str(path))
    assert f"run on all of them: {typed} --model_args mesh=model=N, where" in str(refused.value)
    with pytest.raises(ValueError, match="need a mesh, such as mesh='data=2'"):
        harness.Jaxspec(str(path), coordinator="auto")


def test_conversations(path):
    asked = harness.Jaxspec(str(path), "plain")
    text = asked.apply_chat_template([{"role": "user", "content": "hi"}])
    assert text == "<s>[user] hi\n[assistant]"
    assert asked.tok_encode(text)[:2] != [1, 1], "the template wrote the BOS"
    assert asked.tok_encode("hi")[0] == 1


def test_system_messages_that_a_template_refuses_are_left_out(path, tmp_path, capsys):
    """As by the harness's class for transformers."""
    changed = shutil.copytree(path, tmp_path / "ckpt")
    (changed / "chat_template.jinja").write_text(GEMMA)
    asked, user = harness.Jaxspec(str(changed), "plain"), {"role": "user", "content": "hi"}
    history = [{"role": "system", "content": "be brief"}, user]
    assert asked.apply_chat_template(history) == asked.apply_chat_template([user])
    asked.apply_chat_template(history)
    assert capsys.readouterr().err.count("does not take them: System role not supported") == 1
    with pytest.raises(ValueError, match=r"not take a conversation \(Roles must alternate\); leave out"):
        asked.apply_chat_template([user, user])
    with pytest.raises(ValueError, match=r"\(System role not supported\); leave out system or --apply_chat_template"):
        harness.Jaxspec(str(changed), "plain", system="be brief").apply_chat_template([user])


def test_costs_are_those_of_the_batch_size(path, monkeypatch):
    sizes = []
    table = CostTable(plain=1.0, verify=((1, 1.0),), level=((1, 0.5),))
    monkeypatch.setattr("jaxspec.engine.engine.costs_of", lambda *given: sizes.append(given[3]) or table)
    for size in (4, "8"):
        harness.Jaxspec(str(path), "ngram+pruned", batch_size=size)
    assert sizes == [4, 8]


def with_tokens(path: Path, folder: Path, **tokens: str | None) -> str:
    """The checkpoint with a tokenizer of other special tokens; config.json keeps BOS 1 and EOS 2."""
    shutil.copytree(path, folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **tokens}))
    return str(folder)


@pytest.mark.parametrize(
    ("tokens", "settings", "prefix"),
    [
        ({}, {}, 1),
        ({"bos_token": None}, {}, 2),  # as Qwen2.5: config.json names a BOS, the tokenizer none
        ({"bos_token": None, "eos_token": "A"}, {}, 35),
        ({"bos_token": "A"}, {}, 35),
        ({"bos_token": "A"}, {"add_bos_token": False}, 35),
        ({}, {"prefix_token_id": 7}, 7),
        ({}, {"add_bos_token": True}, 1),
    ],
)
def test_an_empty_context_has_the_prefix_of_transformers(tokens, settings, prefix, path, tmp_path):
    """The ids of the harness's own class for transformers, `HFLM` of version 0.4.13, with the same tokenizer."""
    asked = harness.Jaxspec(with_tokens(path, tmp_path / "ckpt", **tokens), "plain", **settings)
    assert (asked.prefix_token_id, asked.eot_token_id) == (prefix, {"A": 35}.get(tokens.get("eos_token"), 2))
    (a,) = asked.tokenizer.encode("a", add_special_tokens=False)
    special = [] if settings.get("add_bos_token") is False else [1]
    assert asked.tok_encode("a") == [*special, a] and asked.tok_encode("a", add_special_tokens=False) == [a]
    begun = asked.tokenizer.decode([prefix]) + "a"
    assert asked.tok_encode(begun) == [prefix, a], "the text begins with the prefix already"
    bos = asked.tokenizer.bos_token_id
    assert asked._encode_after(bos, begun) == ([] if bos == prefix else special) + [prefix, a]


@pytest.mark.parametrize(
    ("tokens", "settings", "said"),
    [
        ({"bos_token": None, "eos_token": None}, {}, "has no BOS and no EOS token: give prefix_token_id=ID"),
        ({"bos_token": None}, {"add_bos_token": True}, "adds no BOS token to texts"),
        ({}, {"prefix_token_id": 259}, "prefix_token_id must be at most 258, not 259"),
    ],
)
def test_prefixes_that_are_refused(tokens, settings, said, path, tmp_path):
    with pytest.raises(ValueError, match=said):
        harness.Jaxspec(with_tokens(path, tmp_path / "ckpt", **tokens), "plain", **settings)


def test_arguments_of_the_chat_template_and_a_system_prompt(path, tmp_path, capsys):
    changed = shutil.copytree(path, tmp_path / "ckpt")
    (changed / "chat_template.jinja").write_text("{{ style }}" + TEMPLATE)
    asked = harness.Jaxspec(str(changed), "plain", chat_args="style=x=1", system="be brief")
    history = [{"role": "user", "content": "hi"}]
    asked._scores([])
    assert asked.apply_chat_template(history) == "x=1<s>[system] be brief\n[user] hi\n[assistant]"
    asked._scores([])
    assert capsys.readouterr().err.count("no effect without --apply_chat_template") == 1
    assert asked.tokenizer_name != harness.Jaxspec(str(changed), "plain", chat_args={"style": "y"}).tokenizer_name
    with pytest.raises(ValueError, match="reads no argument 'other'"):
        harness.Jaxspec(str(changed), "plain", chat_args="other=1")


def test_the_entry_point_names_the_model():
    (group,) = tomllib.loads(Path("pyproject.toml").read_text())["project"]["entry-points"].values()
    assert EntryPoint("jaxspec", group["jaxspec"], "lm_eval.models").load() is harness.Jaxspec
