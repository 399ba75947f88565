"""The engine as a user sees it: prompts in, text out, errors in one sentence."""

import contextlib
import dataclasses
import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models

from jaxspec import Engine, load
from jaxspec.builders.pruned import Pruned
from jaxspec.checkpoint import config_json, memory, parameters
from jaxspec.checkpoint.tokenizer import Tokenizer, load_tokenizer
from jaxspec.convert import llama
from jaxspec.decoding.strategy import CostTable
from jaxspec.engine import program
from jaxspec.engine.program import LOOP, Program
from jaxspec.engine.requests import requests_of
from jaxspec.engine.stop_strings import StopStrings
from jaxspec.evaluate.runlog import pieces_of
from jaxspec.evaluate.runner import compilations
from jaxspec.host import compilation
from jaxspec.report.draft_colours import coloured
from jaxspec.train.run.packed import hidden_states
from tests import checkpoints, hf_models, loops


@pytest.fixture(scope="module")
def plain(model):
    return Engine(model, "plain")


@pytest.fixture(scope="module")
def engine(model):
    return Engine(model, "ngram+chain")


PROMPTS = ["abcabc", "the first of the two", "x"]


class TestGenerate:
    def test_every_method_gives_the_plain_text(self, model, plain, engine):
        expected = plain.generate(PROMPTS, max_new_tokens=30)
        for one in (engine, Engine(model, "draft-model+static")):
            found = one.generate(PROMPTS, max_new_tokens=30)
            assert [g.tokens for g in found] == [g.tokens for g in expected]
            assert [g.text for g in found] == [g.text for g in expected]
        assert {g.finish_reason for g in expected} <= {"length", "eos"}

    def test_without_a_method_the_trained_head_is_taken(self, model):
        assert str(Engine(model).method).startswith("draft-model+chain")

    def test_what_is_compiled_ahead_is_not_compiled_again(self, model):
        """And one prefill serves both trees."""
        chain, tree = Engine(model, "ngram+chain,length=3"), Engine(model, "ngram+static")
        requests = requests_of(model, ["abcabcabcabc"], max_new_tokens=7)
        assert len({**chain.compilations(requests), **tree.compilations(requests)}) == 3 + 2
        chain.compile(requests)
        with compilations() as compiled:
            chain.run(requests)
        assert not compiled
        with compilations() as compiled:
            tree.run(requests)
        assert {*compiled} == {"jit(decode)"}

    def test_prompts_are_read_while_the_loop_is_compiled(self, model, monkeypatch):
        begun, whole = threading.Event(), Program.read

        class Loop:
            def lower(self, *given: Any) -> Any:
                assert begun.wait(30), "prefill waits for the loop"
                return LOOP.lower(*given)

        def watched(*given: Any) -> Any:
            begun.set()
            return whole(*given)

        monkeypatch.setattr(program, "LOOP", Loop())
        monkeypatch.setattr(Program, "read", watched)
        one = Engine(model, "ngram+chain,length=1")
        session = one.session(one.requests(["abcabc"], max_new_tokens=9))
        assert begun.is_set()
        session.finish_compiling()

    def test_seeds_override_the_index(self, engine):
        settings = {"max_new_tokens": 20, "temperature": 1.0, "top_p": 0.99, "top_k": 200}
        both = engine.generate(["ab"] * 3, **settings, seeds=[5, 5, 6])
        assert both[0].tokens == both[1].tokens
        assert both[0].tokens == engine.generate("ab", **settings, seed=5)[0].tokens
        differ = engine.generate(["ab"] * 3, **settings, seed=5)
        assert differ[0].tokens == both[0].tokens != differ[1].tokens

    def test_log_probs_are_log_softmax_of_the_target(self, model, plain, engine):
        """At temperature 1, whatever the text was drawn with."""
        for one, settings in ((engine, {"record": True}), (engine, {"temperature": 0.5}), (plain, {})):
            (found,) = one.generate("abcabc", max_new_tokens=12, log_probs=True, **settings)
            assert found.log_probs.shape == (12,)
            text = jnp.array([[*found.prompt_tokens, *found.tokens]])
            features = hidden_states(model.target, text, jnp.zeros_like(text))
            logs = jax.nn.log_softmax(model.target.logits(features))[0]
            before = np.arange(len(found.prompt_tokens) - 1, text.shape[1] - 1)
            expected = logs[before, np.array(found.tokens)]
            np.testing.assert_allclose(found.log_probs[: len(found.tokens)], expected, atol=1e-4)

    def test_rounds_are_recorded(self, engine):
        (found,) = engine.generate("abcabcabc", max_new_tokens=30, record=True, log_probs=True)
        assert found.tokens[:1] + [t for one in found.rounds for t in one.committed] == found.tokens
        history = found.history
        for one, verified, accepted in zip(found.rounds, history.verified, history.accepted, strict=True):
            assert len(one.token) == verified + 1
            assert one.accepted.sum() == accepted + 1
            assert one.token[one.accepted][1:].tolist() == one.committed[:accepted]
        assert found.statistics.tokens == 29

    def test_the_text_keeps_the_space_after_its_prompt(self, model):
        """Decoded alone, the first word of sentencepiece's vocabularies has none."""
        backend = tokenizers.Tokenizer(models.WordLevel({f"▁w{i}": i for i in range(259)}, "▁w0"))
        backend.decoder = decoders.Metaspace()
        words = Tokenizer(backend, {}, {})
        spaced, prompt = Engine(dataclasses.replace(model, tokenizer=words), "ngram+chain"), [7, 8, 7, 8, 7]
        assert words.decode(prompt).startswith("w7 w8")
        settings: Any = {"max_new_tokens": 20}
        (found,) = spaced.generate([prompt], record=True, log_probs=True, **settings)
        expected = "".join(f" w{token}" for token in found.tokens)
        assert found.text == expected == "".join(spaced.stream(prompt, **settings))
        assert [text.text for _, text in spaced.generate_iter([prompt] * 3, batch_size=1, **settings)] == [expected] * 3
        assert coloured(found, words, rejected=False).plain == expected
        assert "".join(pieces_of(words, prompt, found.tokens)) == expected
        stop = f" w{found.tokens[0]} w{found.tokens[1]}"
        assert spaced.generate([prompt], stop=[stop], **settings)[0].text == ""
        for text in (
            spaced.stream(prompt, stop=[stop], **settings),
            spaced.generate_iter([prompt], stop=[stop], **settings),
        ):
            assert "".join(piece if isinstance(piece, str) else piece[1].text for piece in text) == ""

    def test_token_ids_need_no_tokenizer(self, model, engine):
        bare = dataclasses.replace(model, tokenizer=None)
        tokens = model.tokenizer.encode("abc")
        expected = engine.generate("abc", max_new_tokens=8)[0].tokens
        assert Engine(bare, "ngram").generate(tokens, max_new_tokens=8)[0].tokens == expected

    def test_chat_template_has_one_bos(self, model, engine):
        by_text = engine.generate("hi", max_new_tokens=4, chat=True)[0]
        by_messages = engine.generate([{"role": "user", "content": "hi"}], max_new_tokens=4, chat=True)[0]
        assert by_text.prompt_tokens == by_messages.prompt_tokens
        assert by_text.prompt_tokens.count(model.config.bos) == 1


class TestSession:
    def test_a_row_that_is_stopped_stays_as_it_is_and_the_others_go_on(self, model, plain, engine):
        whole = plain.generate(PROMPTS, max_new_tokens=30)
        requests = requests_of(model, PROMPTS, max_new_tokens=30)
        session = engine.session(requests)
        session.advance(2)
        assert not session.finished
        stopped = session.length.copy()
        session.stop([1])
        session.advance()
        assert session.finished
        for row, (request, text) in enumerate(zip(requests, whole, strict=True)):
            end = stopped[1] if row == 1 else len(request.tokens) + len(text.tokens)
            assert session.length[row] == end
            begin = len(request.tokens)
            found = np.asarray(session.state.tokens)[row, begin:end].tolist()
            assert found == text.tokens[: end - begin]
        assert stopped[1] < len(requests[1].tokens) + 30, "it had ended before"


class TestCosts:
    TABLE = CostTable(plain=2.0, verify=((1, 2.0), (8, 3.0)), level=((1, 0.1), (4, 0.25)))

    def test_a_method_that_needs_them_is_refused_without(self, model):
        with pytest.raises(ValueError, match=r"ngram.*\+pruned.* needs the costs of .* on this device: use Eng"):
            Engine(model, "ngram+pruned")
        assert Engine(model, "ngram+pruned,cost=0.1").method.builder == Pruned(cost=0.1)

    def test_given_ones_are_taken(self, model):
        method = Engine(model, "ngram+pruned", costs=self.TABLE).method
        assert method.builder == Pruned().with_costs(self.TABLE) and not method.needs_costs


class TestStops:
    def test_eos_ends_the_text_and_is_not_part_of_it(self, model, plain):
        (free,) = plain.generate("abcabc", max_new_tokens=30)
        eos = free.tokens[7]
        ending = dataclasses.replace(model, config=dataclasses.replace(model.config, eos=(258, eos)))
        (found,) = Engine(ending, "draft-model+static").generate("abcabc", max_new_tokens=30)
        assert found.tokens == free.tokens[: free.tokens.index(eos) + 1]
        assert found.finish_reason == "eos"

    def test_stop_string_across_tokens(self, plain, engine):
        (free,) = plain.generate("abcabc", max_new_tokens=40)
        stop = free.text[9:12]
        assert len(stop) > 1
        end = free.text.index(stop)
        (found,) = engine.generate("abcabc", max_new_tokens=40, stop=[stop])
        assert (found.text, found.finish_reason) == (free.text[:end], "stop")
        assert found.history.committed.sum() == len(found.tokens) - 1

    def test_a_special_token_as_a_stop_string(self, model, engine):
        stops, (c, d) = StopStrings(["</s>", "d"], model.tokenizer), model.tokenizer.encode("cd", False)
        assert stops.cut([c, 2, d], [1]) == (2, "c", True)
        assert stops.cut([c, d, 2], [1]) == (2, "c", True)
        assert stops.cut([c, c], [1]) == (2, "cc", False)

    def test_a_special_token_that_only_tokenizer_json_has(self, tmp_path):
        checkpoints.byte_tokenizer().save_pretrained(tmp_path)
        file = tmp_path / "tokenizer.json"
        made, flags = json.loads(file.read_text()), {"single_word": False, "lstrip": False, "rstrip": False}
        token = {"id": 259, "content": "<|eot_id|>", "special": True, "normalized": False}
        file.write_text(json.dumps({**made, "added_tokens": [*made["added_tokens"], {**flags, **token}]}))
        tokenizer: Any = load_tokenizer(tmp_path)
        c, d = tokenizer.encode("cd", False)
        assert StopStrings(["<|eot_id|>"], tokenizer).cut([c, 259, d], [1]) == (2, "c", True)

    def test_stream_is_the_text(self, engine):
        (whole,) = engine.generate("abcabc", max_new_tokens=40)
        pieces = list(engine.stream("abcabc", max_new_tokens=40, rounds=2))
        assert "".join(pieces) == whole.text
        assert len(pieces) > 1
        stop = whole.text[9:12]
        stopped = "".join(engine.stream("abcabc", max_new_tokens=40, rounds=2, stop=[stop]))
        assert stopped == whole.text[: whole.text.index(stop)]


class TestRefusals:
    @pytest.mark.parametrize(
        ("prompts", "settings", "says"),
        [
            ("abc", {"max_new_tokens": 300}, "exceeds the 256 positions"),
            ("a" * 300, {}, "prompt 0 has 301 tokens"),
            ("abc", {"top_k": -1}, "top_k must be 0"),
            ("abc", {"repetition_penalty": 1.1}, "repetition_penalty is not supported"),
            ("abc", {"stop": [""]}, "a stop string must be text and not empty"),
            ([], {}, "there are no prompts"),
        ],
    )
    def test_says_what_is_wrong(self, engine, prompts, settings, says):
        with pytest.raises(ValueError, match=says):
            engine.generate(prompts, **settings)

    def test_unknown_argument_is_a_type_error(self, engine):
        with pytest.raises(TypeError, match="'speed'"):
            engine.generate("abc", speed=2)

    def test_empty_prompt_starts_from_bos(self, model, engine):
        assert engine.generate([[]], max_new_tokens=3)[0].prompt_tokens == [model.config.bos]
        nameless = dataclasses.replace(model, config=dataclasses.replace(model.config, bos=None))
        with pytest.raises(ValueError, match="prompt 0 is empty"):
            Engine(nameless, "ngram").generate([[]], max_new_tokens=3)

    def test_dynamic_scaling_ends_where_it_would_begin(self, model):
        rope = dataclasses.replace(model.config.model.rope, scaling="dynamic", factor=2.0, original_length=64)
        scaled = dataclasses.replace(model.config.model, rope=rope)
        dynamic = dataclasses.replace(model, config=dataclasses.replace(model.config, model=scaled))
        with pytest.raises(ValueError, match="exceeds the 64 positions"):
            Engine(dynamic, "ngram").generate("abc", max_new_tokens=61)

    def test_draft_model_of_another_vocabulary(self, model, tmp_path):
        hf_models.make("llama", tmp_path / "hf", vocab_size=300)
        llama.convert(tmp_path / "hf", tmp_path / "other")
        with pytest.raises(config_json.CheckpointError, match="vocabulary of 300 tokens and the target one of 259"):
            Engine(model, f"draft-model@{tmp_path / 'other'}")
        own = checkpoints.byte_tokenizer()
        own.save_pretrained(tmp_path / "hf")
        llama.convert(tmp_path / "hf", tmp_path / "padded")  # the same tokens: only the padding differs
        assert Engine(model, f"draft-model@{tmp_path / 'padded'}").models.draft.config.vocab_size == 300
        own.add_tokens("<more>")
        own.save_pretrained(tmp_path / "hf")
        llama.convert(tmp_path / "hf", tmp_path / "more")
        with pytest.raises(config_json.CheckpointError, match=r"another vocabulary than the target.*'<more>'"):
            Engine(model, f"draft-model@{tmp_path / 'more'}")

    def test_head_that_is_not_there(self, model):
        with pytest.raises(config_json.CheckpointError, match=r"no head 'small' under .*found: draft-model"):
            Engine(model, "draft-model@small")


@contextlib.contextmanager
def every_compilation() -> Iterator[list[str]]:
    """Yields a list that gets the events of all programs, also of those that `compilations` leaves out."""
    compiled = list[str]()
    count = lambda event, *_, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(count)


def test_a_second_prompt_in_the_same_bucket_compiles_nothing(engine):
    engine.generate("abcabc", max_new_tokens=20)
    engine.generate("abcabc", max_new_tokens=20, temperature=0.5, top_p=0.9, top_k=5)
    with every_compilation() as compiled:
        engine.generate("another prompt", max_new_tokens=25)
        engine.generate("yet another", max_new_tokens=11, temperature=1.1, top_p=0.7, top_k=7, seed=4)
        assert compiled == []
        engine.generate("a prompt that needs a larger bucket, because it is long", max_new_tokens=90)
        assert compiled, "the listener hears nothing"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit, or none that can be read")
def test_programs_in_memory_are_limited(engine, tmp_path, monkeypatch):
    """Each takes hundreds of a process's memory maps, and a process that asks for too many is aborted."""
    before = engine.generate("abcabc", max_new_tokens=20)[0].tokens
    (limit := tmp_path / "max_map_count").write_text("1")
    monkeypatch.setattr(compilation, "_MOST_MAPS", limit)
    jax.jit(lambda x: x + 1)(jnp.ones(3))  # maps are counted again when something was compiled
    assert loops.count() > 0
    session = engine.session(requests_of(engine.model, ["abcabc"], max_new_tokens=20))
    assert loops.count() == 0
    session.advance()
    assert engine.generate("abcabc", max_new_tokens=20)[0].tokens == before


def test_warmup_compiles_ahead(model):
    fresh = Engine(model, "ngram+chain,length=3")
    fresh.warmup(max_prompt_tokens=16, max_new_tokens=20)
    with every_compilation() as compiled:
        fresh.generate("abcabc", max_new_tokens=20)
    assert compiled == []
    with pytest.raises(ValueError, match="exceeds the 256 positions"):
        fresh.warmup(max_prompt_tokens=200)


def test_too_large_for_memory_is_refused_before_loading(model, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda device=None: 1000)
    monkeypatch.setattr(parameters, "restore", lambda *_: pytest.fail("loaded all the same"))
    with pytest.raises(config_json.CheckpointError, match=r"parameters x 4 bytes = .* 1\.0 kB free"):
        load(model.path)


def test_the_mesh_and_checks_of_a_program_around_it_do_not_matter(model, plain):
    (expected,) = plain.generate("abcabc", max_new_tokens=10)
    mesh = jax.make_mesh((1,), ("data",))
    strict = (jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"), jax.transfer_guard("disallow"))
    with contextlib.ExitStack() as stack:
        for setting in (*strict, jax.set_mesh(mesh)):
            stack.enter_context(setting)
        (found,) = Engine(model, "plain").generate("abcabc", max_new_tokens=10)
    assert found.tokens == expected.tokens and found != expected
