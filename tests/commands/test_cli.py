"""The command line: its output and its errors."""

import functools
import json

import pytest

from tests import checkpoints
from tests.programs import run

jaxspec = functools.partial(run, "jaxspec")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return checkpoints.make(tmp_path_factory.mktemp("cli"))


def test_text_json_stream_and_drafts_agree(path, tmp_path):
    method = ("--method", "ngram+chain,length=2")
    common = ("generate", "--target", path, *method, "--prompt", "abcabc", "--max-new-tokens", 12)
    code, text, remarks = jaxspec(*common)
    assert code == 0
    assert "12 tokens in" in remarks
    code, line, _ = jaxspec(*common, "--format", "json")
    found = json.loads(line)
    assert found["text"] + "\n" == text
    assert len(found["tokens"]) == 12
    assert jaxspec(*common, "--stream")[:2] == (0, text)
    code, shown, remarks = jaxspec(*common, "--show-drafts")
    assert code == 0
    assert "[-in brackets-]: drafted and rejected" in remarks
    assert shown


def test_a_file_of_prompts(path, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "ab"}\n{"turns": ["cd", "ef"], "question_id": 7}\n')
    code, out, remarks = jaxspec(
        "generate", "--target", path, "--prompts", file, "--max-new-tokens", 4, "--format", "json"
    )
    assert code == 0
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == ["ab", "cd"]
    warning, method, *_ = remarks.splitlines()
    assert warning == f"warning: questions of {file} with several turns: 1; only first turns are used"
    assert method.startswith("method: draft-model+chain,length=4+fixed")


def test_methods_env_and_version(path):
    code, out, _ = jaxspec("methods", "--target", path)
    assert code == 0
    listed = " ".join(out.split())  # lines break where the terminal's width has it
    assert "can run: plain, ngram, draft-model heads found" in listed
    assert "DRAFTER[@HEAD][+BUILDER][+CONTROLLER]" in listed
    code, out, _ = jaxspec("env")
    assert code == 0
    assert "device     cpu:0" in out
    assert jaxspec("--version")[1].startswith("jaxspec 0.")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("generate", "--prompt", "x"), "--target"),
        (("generate", "--target", "CKPT"), "give either --prompt TEXT or --prompts FILE"),
        (("generate", "--target", "nowhere", "--prompt", "x"), "no readable jaxspec checkpoint at nowhere"),
        (("generate", "--target", "CKPT", "--prompt", "x", "--method", "foo"), "there is no drafter 'foo'"),
        (("generate", "--target", "CKPT", "--prompts", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
        (
            ("generate", "--target", "CKPT", "--prompt", "x", "--repetition-penalty", "1.2"),
            "repetition_penalty is not supported",
        ),
        (("generate", "--target", "CKPT", "--prompt", "x", "--max-new-tokens", "9999"), "exceeds the 256 positions"),
        (("generate", "--target", "CKPT", "--prompt", "x", "--temperature", "hot"), "temperature"),
        (("generate", "--target", "CKPT", "--prompt", "x", "--limit", "2"), "--limit has no effect with --prompt"),
        (("generate", "--target", "CKPT", "--prompts", "builtin", "--batch-size", "-3"), "batch_size must be at"),
        (("generate", "--target", "CKPT", "--prompt", "x", "--stream", "--batch-size", "3"), "--batch-size has no"),
        (("generate", "--target", "CKPT", "--prompt", "x", "--show-drafts", "--format", "json"), "json has no drafts"),
        (("generate", "--target", "CKPT", "--prompt", "x", "--method", "eagle@~nobody9/x"), "~nobody9/x begins with"),
        (("eval", "--merge=nowhere.jsonl", "--out", "x.jsonl"), "there is no nowhere.jsonl"),
        (("generate", "--target", "CKPT", "--prompt", "x", "--top-p", "2"), "error: top_p must be above 0"),
        (("methods", "--target", "nowhere"), "no readable jaxspec checkpoint"),
        (("fly",), "fly"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(path, arguments, says):
    code, out, err = jaxspec(*(path if a == "CKPT" else a for a in arguments))
    assert code == 2
    assert out == ""
    assert says in err.splitlines()[-1]
    assert "Traceback" not in err


def test_an_empty_prompt_starts_from_bos(path):
    options = ("--method", "plain", "--max-new-tokens", 3, "--format", "json")
    code, out, _ = jaxspec("generate", "--target", path, "--prompt", "", *options)
    assert code == 0
    assert len(json.loads(out)["tokens"]) == 3
