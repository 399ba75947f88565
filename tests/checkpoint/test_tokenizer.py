"""Tokenizers as the files of a model's own folder define them, whatever class of transformers they name."""

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, processors
from transformers import AutoTokenizer

from jaxspec.checkpoint.config_json import FORMAT, CheckpointError
from jaxspec.checkpoint.tokenizer import GENERIC, class_of, load_tokenizer
from jaxspec.engine.stop_strings import StopStrings, text_of
from jaxspec.evaluate.runlog import pieces_of
from tests.tokenizers import LLAMA3_SPLIT, NASTY, TEMPLATE, loaded, of_bytes, of_sentencepiece, write

NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
MAKERS = {
    "bytes": of_bytes,
    "bytes with BOS": lambda: of_bytes(bos=True),
    "bytes by GPT-2's regex": lambda: of_bytes(None),
    "LLaMA 2's sentencepiece": lambda: of_sentencepiece(legacy=True),
    "Mistral's sentencepiece": lambda: of_sentencepiece(legacy=False),
}
_flags = {"lstrip": False, "rstrip": True, "normalized": False, "single_word": False, "special": True}
CONFIGS: dict[str, dict[str, Any] | None] = {
    "no config": None,
    "empty": {},
    "generic": {"tokenizer_class": GENERIC, **NAMED},
    "LlamaTokenizerFast": {"tokenizer_class": "LlamaTokenizerFast", **NAMED},
    "LlamaTokenizer": {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False},
    "GPT2Tokenizer": {"tokenizer_class": "GPT2Tokenizer", **NAMED},
    "Qwen2Tokenizer": {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "</s>", "pad_token": None},
    "GPTNeoXTokenizer": {"tokenizer_class": "GPTNeoXTokenizer", **NAMED, "pad_token": None},
    "of the model": {"tokenizer_class": "LlamaTokenizerFast", **NAMED, "image_token": "<|user|>"},
    "new tokens": {
        "tokenizer_class": GENERIC,
        **NAMED,
        "pad_token": "<pad>",
        "extra_special_tokens": ["a  b", "<|end|>"],
    },
    "new tokens in another order": {
        "tokenizer_class": GENERIC,
        "image_token": "<img>",
        "pad_token": "<pad>",
        "eos_token": "<end>",
        "bos_token": "<new>",
    },
    "other flags": {
        "tokenizer_class": GENERIC,
        **NAMED,
        "added_tokens_decoder": {"0": {"content": "<unk>", **_flags}, "500": {"content": "camel", **_flags}},
    },
    "split": {"tokenizer_class": GENERIC, **NAMED, "split_special_tokens": True},
}
REBUILT = ("LlamaTokenizer", "GPT2Tokenizer", "Qwen2Tokenizer", "GPTNeoXTokenizer", "CodeLlamaTokenizer")


@pytest.mark.parametrize("maker", MAKERS)
def test_ids_are_those_of_tokenizer_json(maker: str, tmp_path: Path):
    """Classes of transformers that build their own normaliser and pre-tokenizer change nothing; where it takes the
    file as it stands, all agrees with it: ids, texts, special tokens."""
    made, compared = MAKERS[maker](), 0
    for number, (name, config) in enumerate(CONFIGS.items()):
        for family in ("llama", "mistral", "qwen2"):
            folder = write(tmp_path / f"{number}{family}", made, config, model_type=family)
            ours, raw = loaded(folder), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            if name not in ("of the model", "new tokens", "other flags", "split", "GPTNeoXTokenizer"):
                for text in NASTY:
                    assert ours.encode(text) == raw.encode(text).ids, (name, family, text)
            theirs: Any = AutoTokenizer.from_pretrained(folder)
            if type(theirs).__name__ in REBUILT:
                continue
            compared += 1
            assert ours.special_tokens_map == theirs.special_tokens_map, (name, family)
            special = {token.content: at for at, token in theirs.added_tokens_decoder.items() if token.special}
            assert ours.special_ids == special, (name, family)
            for text in NASTY:
                ids = theirs(text)["input_ids"]
                assert ours.encode(text) == ids, (name, family, text)
                assert ours.decode(ids) == theirs.decode(ids), (name, family, text)
                assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True)
                assert ours.encode_as_text([text]) == [theirs(text, split_special_tokens=True)["input_ids"]]
    assert compared >= 15


def test_what_a_class_of_transformers_names_and_adds(tmp_path: Path):
    """Special tokens that only the class names, and BOS that only the class adds, come from the original folder."""
    for name, family in (("LlamaTokenizer", "llama"), ("CodeLlamaTokenizer", "llama"), ("GPTNeoXTokenizer", "llama")):
        made = of_sentencepiece(legacy=False) if "Llama" in name else of_bytes(bos=True)
        folder = write(tmp_path / name, made, {"tokenizer_class": name, "unk_token": "<unk>"}, model_type=family)
        theirs, ours = AutoTokenizer.from_pretrained(folder), loaded(folder)
        assert type(theirs).__name__ == name == class_of(folder)
        named = {key: token for key, token in theirs.special_tokens_map.items() if token in made.get_vocab()}
        assert {key: token for key, token in ours.special_tokens_map.items() if key in named} == named
        assert theirs("x")["input_ids"] == ours.encode("x")
    for config, family in (({}, "qwen2"), ({}, "qwen3"), ({"tokenizer_class": "LlamaTokenizerFast"}, "qwen2")):
        made = of_bytes()
        made.add_special_tokens(["<|endoftext|>"])
        folder = write(tmp_path / f"{family}{len(config)}", made, config, model_type=family)
        ours = loaded(folder)
        assert ours.special_tokens_map == AutoTokenizer.from_pretrained(folder).special_tokens_map
        assert ours.eos_token_id == made.token_to_id("<|endoftext|>")


@pytest.mark.parametrize("config", [{}, {"fill_token": "<FILL_ME>"}, {"fill_token": None}])
def test_code_llamas_mark_for_text_to_fill_in(config: dict, tmp_path: Path):
    """Transformers writes another prompt for it, so it is refused, and is no token outside the vocabulary."""
    values = {"tokenizer_class": "CodeLlamaTokenizer", **NAMED, **config}
    folder = write(tmp_path, of_sentencepiece(legacy=True), values, model_type="llama")
    ours, mark = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder).fill_token
    assert ours is not None and ours.special_tokens_map.get("fill_token") == mark
    if mark is None:
        assert ours.encode("x<FILL_ME>")
    else:
        with pytest.raises(ValueError, match=f"the text 'def f{mark}' holds {mark}, Code LLaMA's mark for infilling"):
            ours.encode(f"def f{mark}")


def test_a_checkpoint_keeps_the_class_that_conversion_found(tmp_path: Path):
    write(tmp_path, of_bytes(), {"tokenizer_class": "LlamaTokenizer"}, format=FORMAT, tokenizer_class=GENERIC)
    assert class_of(tmp_path) == GENERIC


def test_special_tokens_of_the_older_files(tmp_path: Path):
    folder = write(tmp_path, of_bytes(), {"tokenizer_class": GENERIC, "eos_token": "</s>"}, model_type="llama")
    old = {
        "eos_token": {"content": "<|end|>", "lstrip": False, "rstrip": True, "normalized": False, "single_word": False}
    }
    (folder / "special_tokens_map.json").write_text(json.dumps({**old, "bos_token": "<s>"}))
    (folder / "added_tokens.json").write_text(json.dumps({"camel": 430, "<s>": 1}))
    theirs, ours = AutoTokenizer.from_pretrained(folder), loaded(folder)
    assert ours.special_tokens_map == theirs.special_tokens_map == {"eos_token": "<|end|>", "bos_token": "<s>"}
    for text in NASTY:
        assert theirs(text)["input_ids"] == ours.encode(text)


@pytest.mark.parametrize("listed", [True, False], ids=["in added_tokens_decoder", "in the older files"])
def test_flags_of_added_tokens_are_those_of_transformers(listed: bool, tmp_path: Path):
    """Files of fine-tunes contradict each other about tokens that were added to a model's tokenizer."""
    made = of_sentencepiece(legacy=True)
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": False}
    made.add_tokens([AddedToken(text, **flags) for text in ("<|start|>", "<|stop|>", "<|x|>")])
    pad = {"content": "<pad>", **flags, "lstrip": True}
    config: dict[str, Any] = {
        "tokenizer_class": GENERIC,
        "eos_token": "<|stop|>",
        "pad_token": {"__type": "AddedToken", **pad},
    }
    ids = {text: made.token_to_id(text) for text in ("<|start|>", "<|stop|>", "<|x|>")}
    if listed:
        config["added_tokens_decoder"] = {str(at): {"content": text, **flags} for text, at in ids.items()}
    folder = write(tmp_path, made, config, model_type="llama")
    (folder / "added_tokens.json").write_text(json.dumps(ids))
    theirs, ours = AutoTokenizer.from_pretrained(folder), loaded(folder)
    for text in (*NASTY, "<|start|> user\nhi<|stop|>  x<|x|>y", "a <pad> b"):
        found = ours.encode(text)
        assert found == theirs(text)["input_ids"]
        assert ours.encode_as_text([text]) == [theirs(text, split_special_tokens=True)["input_ids"]]
        assert ours.decode(found, True) == theirs.decode(found, skip_special_tokens=True)


def test_threads_encode_alike(tmp_path: Path):
    ours = loaded(write(tmp_path, of_bytes(bos=True), NAMED))
    text, others = "<s>a</s> b<|end|>", ["<s>a</s> b"] * 2000
    expected = ours.encode(text)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ours.encode_as_text, others)
        while not waiting.done():
            assert ours.encode(text) == expected
            assert ours.encode_with_offsets([text])[0][0] == expected[1:]
    assert waiting.result() == [ours.encode_as_text(others[:1])[0]] * 2000


@pytest.mark.parametrize("split", [True, False])
def test_copies_encode_alike(split: bool, tmp_path: Path):
    """In this process and in another, such as a worker that loads data."""
    config = {"tokenizer_class": GENERIC, "split_special_tokens": split, "chat_template": TEMPLATE}
    ours = loaded(write(tmp_path, of_bytes(), config, model_type="llama"))
    copies: tuple[Any, ...] = (copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each)))
    for other in (make(ours) for make in copies):
        for text in NASTY:
            assert other.encode_as_text([text]) == ours.encode_as_text([text])
            assert other.encode(text) == ours.encode(text)
            assert other.decode(ours.encode(text)) == ours.decode(ours.encode(text))
        talk = [{"role": "user", "content": "hi"}]
        assert other.apply_chat_template(talk) == ours.apply_chat_template(talk)
        other.chat_template = None
        assert ours.chat_template == TEMPLATE


def test_settings_of_a_batch_are_ignored(tmp_path: Path):
    made = of_bytes()
    made.enable_truncation(3)
    made.enable_padding(length=8)
    ours = loaded(write(tmp_path, made))
    assert len(ours.encode("a" * 40)) > 8
    assert len(ours.encode("a")) == 1


def test_text_after_other_tokens_keeps_its_space(tmp_path: Path):
    ours = loaded(write(tmp_path, of_sentencepiece(legacy=True), NAMED, model_type="llama"))
    prompt = ours.encode("def f(x):\n")
    for text in ("    x = 1", " x", "x", "", "é😀", "  \n"):
        tokens = ours.encode(text)[1:]
        whole = ours.decode([*prompt, *tokens], skip_special_tokens=True)
        assert ours.decode_after(prompt, tokens) == ours.decode_after(prompt[-1:], tokens)
        assert ours.decode(prompt, skip_special_tokens=True) + ours.decode_after(prompt[-1:], tokens) == whole
    assert ours.decode_after(prompt[:1], ours.encode("x")[1:]) == "x"  # BOS begins a text, as does nothing
    for end, text in (
        ("😀", "😀x"),
        ("ย", "ยไ  y"),
        ("é", "\ue000"),
        ("好" * 9, "世"),
    ):  # characters of several byte tokens
        tokens = ours.encode(text)[2:]
        assert text_of(ours, tokens, ours.encode(end)) == "".join(pieces_of(ours, ours.encode(end), tokens)) == text
        assert text_of(ours, tokens[:1], ours.encode(end)) == ours.decode(tokens[:1])
    half = ours.encode("😀")[-4:]
    assert ours.decode_after(half[:2], half[2:]) == "😀"


LLAMA_CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "{{ yes }} <b>", "thinking": "hm"}]
TEMPLATES = {
    "plain": TEMPLATE,
    "json": "{% for m in messages %}{{ m | tojson }}{{ m.content|tojson(indent=2) }}{% endfor %}",
    "refuses": "{% if messages[0].role == 'user' %}{{ raise_exception('no users here') }}{% endif %}",
    "loops": "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
    "blocks": "  {% if add_generation_prompt %}\nyes\n  {% endif %}\n{% set n = namespace(x=dict(a=1)) %}{{ n.x.a }}",
    "reasoning": "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }}{% endfor %}",
    "arguments": "{{ enable_thinking }}{{ tools is none }}{{ documents is none }}{{ date is defined }}",
    "escapes": "{{ messages.__class__ }}{{ [].append(1) }}",
    "damaged": "{% for m in messages %}",
    "marked": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}.{% endfor %}",
}


def outcome(render: Callable[..., str], **arguments: Any) -> str:
    """The text, or the error."""
    try:
        return render(LLAMA_CHAT, **arguments)
    except Exception as error:
        return repr(error)


@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_templates_render_as_in_transformers(name: str, tmp_path: Path):
    folder = write(tmp_path, of_bytes(), {**NAMED, "tokenizer_class": GENERIC}, model_type="llama")
    (folder / "chat_template.jinja").write_text(TEMPLATES[name])
    theirs, ours = AutoTokenizer.from_pretrained(folder), loaded(folder)
    for prompt in (False, True):
        arguments = {"add_generation_prompt": prompt, "enable_thinking": False}
        expected = outcome(theirs.apply_chat_template, tokenize=False, **arguments)
        assert outcome(ours.apply_chat_template, **arguments) == expected


def test_the_assistants_part_is_marked(tmp_path: Path):
    folder = write(tmp_path, of_bytes(), {"chat_template": TEMPLATES["marked"]}, model_type="llama")
    ours = loaded(folder)
    text, spans = ours.render_marked(LLAMA_CHAT)
    assert text == ours.apply_chat_template(LLAMA_CHAT) == "hi.{{ yes }} <b>."
    assert [text[start:end] for start, end in spans] == ["hi", "{{ yes }} <b>"]
    assert ours.apply_chat_template(LLAMA_CHAT, continue_final_message=True) == "hi.{{ yes }} <b>"


@pytest.mark.parametrize(
    ("config", "later"),
    [
        ({"additional_special_tokens": ["<|a|>", "<|b|>"]}, {"additional_special_tokens": ["<|a|>"]}),
        ({"additional_special_tokens": None}, {"additional_special_tokens": ["<|a|>"]}),
        ({"extra_special_tokens": {"image_token": "<img>"}}, {"additional_special_tokens": ["<|a|>"]}),
        ({"extra_special_tokens": ["<|b|>"]}, {"extra_special_tokens": ["<|a|>", "<|b|>"]}),
        ({"extra_special_tokens": ["<|b|>"]}, {"extra_special_tokens": {"image_token": "<img>"}}),
    ],
)
def test_lists_of_special_tokens_in_two_files(config: dict, later: dict, tmp_path: Path):
    folder = write(tmp_path, of_bytes(), {"tokenizer_class": GENERIC, **config}, model_type="llama")
    (folder / "special_tokens_map.json").write_text(json.dumps(later))
    theirs, ours = AutoTokenizer.from_pretrained(folder), loaded(folder)
    text = "<|a|>x<|b|>y<img>"
    assert theirs(text)["input_ids"] == ours.encode(text)


def test_several_chat_templates(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    listed = [{"name": "default", "template": "d{{ tools }}"}, {"name": "tool_use", "template": "t"}]
    folder = write(tmp_path, of_bytes(), {"chat_template": listed}, model_type="llama")
    for _ in range(2):
        ours, theirs = loaded(folder), AutoTokenizer.from_pretrained(folder)
        for tools in (None, [], [{"type": "function"}]):
            expected = theirs.apply_chat_template(LLAMA_CHAT, tools=tools, tokenize=False)
            assert ours.apply_chat_template(LLAMA_CHAT, tools=tools) == expected
            assert (ours.template_for({"tools": tools}) == ours.chat_template) == (tools is None)
        (folder / "additional_chat_templates").mkdir(exist_ok=True)
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text("u")
        (folder / "chat_template.jinja").write_text("e")
    assert capsys.readouterr().err == ""
    unused = {"chat_template": [{"name": "rag", "template": "r"}]}
    none = loaded(write(tmp_path / "none", of_bytes(), unused))
    assert "no default chat template, only those for other uses: rag" in capsys.readouterr().err
    assert none.chat_template is None
    with pytest.raises(ValueError, match="has no chat template"):
        none.apply_chat_template(LLAMA_CHAT)


def test_a_pre_tokenizer_that_is_not_the_models_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Mistral Small 3's tokenizer.json splits as LLaMA 3 does; LLaMA 3's own and Mistral's others are right."""
    right, wrong = of_bytes(), of_bytes(LLAMA3_SPLIT)
    for made, marks, warned in ((wrong, ["[INST]"], True), (wrong, ["<|eot_id|>"], False), (right, ["[INST]"], False)):
        folder = write(tmp_path / f"{warned}{marks}{made is right}", made, {"tokenizer_class": GENERIC})
        copy = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        copy.add_special_tokens(marks)
        copy.save(str(folder / "tokenizer.json"))
        load_tokenizer(folder)
        assert ("splits text as LLaMA 3 does" in capsys.readouterr().err) == warned
        if warned:
            write(folder, None, {"fix_mistral_regex": True})
            mended = loaded(folder)
            assert not capsys.readouterr().err
            assert mended.encode("1234") == [mended.encode(digit)[0] for digit in "1234"]
            assert mended.encode("camelCase") != copy.encode("camelCase").ids


def test_folders_without_one_and_damaged_ones(tmp_path: Path):
    assert load_tokenizer(tmp_path) is None
    (tmp_path / "tokenizer.model").write_bytes(b"\n")
    with pytest.raises(CheckpointError, match=r"tokenizer\.model without a tokenizer\.json; write one with"):
        load_tokenizer(tmp_path)
    folder = write(tmp_path / "whole", of_bytes(), NAMED)
    for name, content in (("tokenizer_config.json", "[]"), ("tokenizer_config.json", "{"), ("tokenizer.json", "{}")):
        damaged = write(tmp_path / "damaged", of_bytes(), NAMED)
        (damaged / name).write_text(content)
        with pytest.raises(CheckpointError, match="cannot be read") as error:
            load_tokenizer(damaged)
        assert "\n" not in str(error.value)
    assert load_tokenizer(folder) is not None


def test_decoding_imports_no_transformers():
    code = (
        "import sys, jaxspec\n"
        "jaxspec.load('builtin').tokenizer.apply_chat_template\n"
        "sys.exit('transformers' in sys.modules or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_post_processors_stay(tmp_path: Path):
    made = of_bytes()
    ends = [("<s>", 1), ("</s>", 2)]
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    made.add_tokens([AddedToken("camel", lstrip=True, rstrip=True)])
    for add in (True, False):
        config = {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": add, "add_eos_token": add, **NAMED}
        folder = write(tmp_path / str(add), made, config, model_type="llama")
        ours = loaded(folder)
        for text in NASTY:
            assert (
                ours.encode(text) == made.encode(text).ids == AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
            )


@pytest.mark.parametrize("stop", ["\n", "🙂"])
def test_a_stop_string_before_an_unfinished_character_ends_the_text(stop: str, tmp_path: Path):
    """Bytes in a row are decoded as one, so that half an emoji makes a line feed before it unreadable."""
    ours = loaded(write(tmp_path, of_sentencepiece(legacy=True)))
    ids = ours.get_vocab()
    first, after = [[ids[f"<0x{byte:02X}>"] for byte in text.encode()] for text in (stop, "🙃")]
    tokens, end = [*ours.encode("ab", add_special_tokens=False), *first, *after], StopStrings(stop, ours)
    least = len(tokens) - len(after)
    assert [end.cut(tokens[:count], [])[::2] for count in range(least, len(tokens) + 1)] == [(least, True)] * 5
