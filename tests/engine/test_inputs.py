"""Inputs that users really pass: NumPy numbers, numbers out of range, prompts of all kinds, and no prompts at all."""

import copy
import dataclasses
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from jaxspec import Engine, SamplingParams
from jaxspec.checkpoint.builtin import locate
from jaxspec.checkpoint.config_json import CheckpointError
from jaxspec.checkpoint.loading import Checkpoint
from jaxspec.engine import head_weights
from jaxspec.engine.requests import requests_of, warn_if_greedy
from jaxspec.engine.stop_strings import ShownText
from jaxspec.methods.method import parse_method
from tests import checkpoints


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """Without the checks of types that tests run under: users run without them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def engine(model: Checkpoint) -> Engine:
    return Engine(model, "ngram+chain")


def test_a_mesh_may_be_text(model: Checkpoint) -> None:
    mesh = Engine(model.path, "ngram+chain", mesh="data=1").model.mesh
    assert mesh is not None and mesh.shape["data"] == 1


class TestSamplingParams:
    @pytest.mark.parametrize(
        ("settings", "warned"),
        [({}, False), ({"top_p": 0.9}, True), ({"top_k": 5}, True), ({"top_p": 0.9, "temperature": 1.0}, False)],
    )
    def test_greedy_decoding_warns_of_top_p_and_top_k(
        self, settings: dict[str, Any], warned: bool, capsys: pytest.CaptureFixture[str]
    ) -> None:
        warn_if_greedy(SamplingParams(**settings))
        assert ("no effect at temperature 0" in capsys.readouterr().err) == warned

    def test_numbers_of_numpy_become_pythons(self) -> None:
        numbers: Any = (np.int64(3), np.float32(0.5), np.array(0.5), np.uint8(2), jnp.int32(1))
        given = SamplingParams(*numbers)
        assert given == SamplingParams(max_new_tokens=3, temperature=0.5, top_p=0.5, top_k=2, seed=1)
        assert [type(value) for value in dataclasses.astuple(given)] == [int, float, float, int, int]

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"max_new_tokens": 16.5}, r"max_new_tokens must be a whole number, not 16\.5"),
            ({"max_new_tokens": "16"}, "max_new_tokens must be a whole number, not '16'"),
            ({"max_new_tokens": True}, "max_new_tokens must be a whole number, not True"),
            ({"max_new_tokens": None}, "max_new_tokens must be a whole number, not None"),
            ({"max_new_tokens": -1}, "max_new_tokens must be at least 0, not -1"),
            ({"temperature": "0.5"}, "temperature must be a number, not '0.5'"),
            ({"temperature": float("nan")}, "temperature must be a finite number, not nan"),
            ({"temperature": float("inf")}, "temperature must be a finite number, not inf"),
            ({"temperature": 10**400}, "temperature must be a number"),
            ({"temperature": np.True_}, "temperature must be a number, not np.True_"),
            ({"top_p": jnp.array(True)}, "top_p must be a number, not "),
            ({"top_k": np.True_}, "top_k must be a whole number, not np.True_"),
            ({"temperature": -0.1}, r"temperature must be 0 or above, not -0\.1"),
            ({"top_p": 0}, "top_p must be above 0 and at most 1, not 0"),
            ({"top_p": 1.01}, r"top_p must be above 0 and at most 1, not 1\.01"),
            ({"top_p": float("nan")}, "top_p must be a finite number, not nan"),
            ({"top_k": -1}, "top_k must be 0"),
            ({"top_k": 2.5}, "top_k must be a whole number"),
            ({"seed": "7"}, "seed must be a whole number"),
            ({"seed": 2**32}, "seed must be at most 4294967295"),
        ],
    )
    def test_others_are_refused(self, settings: dict[str, Any], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            SamplingParams(**settings)


class TestSettings:
    def test_arrays_give_one_value_a_prompt(self, model: Checkpoint) -> None:
        for values in (np.array([0.0, 0.7]), jnp.array([0.0, 0.7]), (0.0, 0.7)):
            seeds: Any = np.array([4, 5])
            requests = requests_of(model, ["a", "b"], temperature=values, seeds=seeds)
            assert [request.sampling.temperature for request in requests] == pytest.approx([0.0, 0.7])
            assert [request.sampling.seed for request in requests] == [4, 5]
        with pytest.raises(ValueError, match="temperature has 3 values for 2 prompts"):
            requests_of(model, ["a", "b"], temperature=np.zeros(3))

    @pytest.mark.parametrize(
        "method", ["plain", "ngram+chain", pytest.param("draft-model+static", marks=pytest.mark.soak)]
    )
    def test_what_leaves_one_token_leaves_the_best(self, model: Checkpoint, method: str) -> None:
        settings = {
            "temperature": [0.0, 1.0, 1.0, 1.0, 1e-38, 1e-300],
            "top_p": [1.0, 1e-50, 1e-40, 1.0, 1.0, 1.0],
            "top_k": [0, 0, 0, 1, 0, 0],
        }
        best, *others = Engine(model, method).generate(["abcabc"] * 6, max_new_tokens=6, **settings)
        assert len(best.tokens) == 6
        assert [other.tokens for other in others] == [best.tokens] * 5

    def test_what_leaves_out_nothing_and_what_is_hot(self, engine: Engine) -> None:
        settings = {"top_k": [0, 259, 1000, 2**31 - 1, 2**31, 2**80, 0, 0], "temperature": [1.0] * 6 + [100.0, 1e300]}
        settings["top_p"] = [1.0] * 7 + [0.99]  # with it the programs are those of the test above
        free, *others = engine.generate(["abc"] * 8, max_new_tokens=6, seeds=[3] * 8, **settings)
        assert [other.tokens for other in others[:5]] == [free.tokens] * 5
        assert all(hot.tokens != free.tokens and len(hot.tokens) > 1 for hot in others[5:])

    def test_text_of_no_tokens(self, model: Checkpoint, engine: Engine) -> None:
        (found,) = engine.generate("abc", max_new_tokens=0, log_probs=True, record=True)
        assert (found.tokens, found.text, found.finish_reason, found.rounds) == ([], "", "length", [])
        assert found.log_probs is not None and found.log_probs.shape == (0,)
        assert found.statistics.tokens == found.statistics.rounds == 0
        assert list(engine.stream("abc", max_new_tokens=0)) == []
        (whole,) = engine.generate("abcd", max_new_tokens=9)
        mixed = engine.generate(["abc", "abcd", "ab", "abcd"], max_new_tokens=[0, 9, 0, 9], batch_size=2)
        assert [one.tokens for one in mixed] == [[], whole.tokens, [], whole.tokens]
        (full,) = engine.generate([[5] * 256], max_new_tokens=0)
        assert full.tokens == []

    def test_penalties_that_do_nothing_are_taken(self, engine: Engine) -> None:
        nothing: Any = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_length": None}
        nothing |= {"logits_processor": None, "stop": None}
        assert engine.generate("ab", max_new_tokens=4, **nothing)[0].tokens
        with pytest.raises(ValueError, match=r"min_length is not supported: it makes the target's distribution"):
            engine.generate("ab", max_new_tokens=4, **nothing | {"min_length": 3})

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"batch_size": 2.5}, r"batch_size must be a whole number, not 2\.5"),
            ({"stop": [5]}, "a stop string must be text and not empty, not 5"),
            ({"stop": 5}, "stop must be a string or several, not 5"),
            ({"sampling": {"temperature": 1}}, "sampling must be a jaxspec.SamplingParams, not "),
            ({"seed": 1, "seeds": [2]}, "give either seed, .* or seeds"),
            ({"stop": ["a\ud83d"]}, "the stop string .* has a part that is no character"),
            ({"truncate": "right"}, "truncate must be None or \"left\", not 'right'"),
            ({"system": 5, "chat": True}, "system must be text, not 5"),
            ({"chat_args": "a=1", "chat": True}, "chat_args must map names to values, not 'a=1'"),
            ({"temperature": [[1.0]]}, r"temperature must be a number, not \[1\.0\]"),
        ],
    )
    def test_others_are_refused(self, engine: Engine, settings: dict[str, Any], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            engine.generate("abc", **settings)

    def test_of_an_engine(self, model: Checkpoint, engine: Engine) -> None:
        method: Any = 5
        with pytest.raises(TypeError, match="method must be a name such as"):
            Engine.calibrated(model, method)
        with pytest.raises(ValueError, match="loaded already: leave out quantize"):
            Engine.calibrated(model, "plain", quantize="int8")
        with pytest.raises(ValueError, match="loaded already: leave out dtype, quantize"):
            Engine(model, "plain", dtype="bfloat16", quantize="int8")
        with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
            Engine.calibrated(model, "plain", batch_size=0)
        with pytest.raises(ValueError, match=r"batch_size must be a whole number, not 3\.5"):
            engine.warmup(batch_size=cast(int, 3.5))

    def test_at_the_call(self, engine: Engine) -> None:
        """And not at the first result."""
        requests = engine.requests("abc")
        for call in (engine.decode, engine.run, engine.compile):
            with pytest.raises(ValueError, match="there are no requests"):
                call([])
            with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
                call(requests, 0)
        with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
            engine.generate_iter("abc", batch_size=0)
        with pytest.raises(ValueError, match="max_new_tokens must be at least 0, not -5"):
            engine.stream("abc", max_new_tokens=-5)
        with pytest.raises(ValueError, match="rounds must be at least 1, not 0"):
            engine.stream("abc", rounds=0)

    def test_copies_of_an_engine(self, engine: Engine) -> None:
        copies: tuple[Any, ...] = (copy.copy, copy.deepcopy, pickle.dumps)
        for each in copies:
            with pytest.raises(TypeError, match="an Engine is neither copied nor pickled, because"):
                each(engine)


class TestPrompts:
    @pytest.mark.parametrize(
        "prompts", [np.array([5, 6, 7]), jnp.array([5, 6, 7]), [np.int64(5), np.int64(6), 7], (5, 6, 7), [[5, 6, 7]],
                    np.array([[5, 6, 7]]), [np.array([5, 6, 7])], [jnp.array([5, 6, 7])], [(5, 6, 7)]]
    )  # fmt: skip
    def test_token_ids_of_all_kinds(self, model: Checkpoint, prompts: Any) -> None:
        assert [request.tokens for request in requests_of(model, prompts)] == [[5, 6, 7]]

    @pytest.mark.parametrize(
        ("prompts", "says"),
        [
            ([[1.5, 2.7]], r"a token id of prompt 0 must be a whole number, not 1\.5"),
            ([1.5, 2.7], r"a token id of prompt 0 must be a whole number, not 1\.5"),
            (np.array([1.5, 2.7]), r"a token id of prompt 0 must be a whole number, not 1\.5"),
            (["ab", ["c"]], "a token id of prompt 1 must be a whole number, not 'c'"),
            (b"def f", "prompt 0 must be text .* not bytes"),
            (["a", b"def f"], "prompt 1 must be text .* not bytes"),
            (None, "prompt 0 must be text .* not NoneType"),
            (7, "prompt 0 must be text .* not int"),
            ([[1, 259]], "prompt 0 holds token 259, outside the vocabulary of 259"),
            ([[1, -1]], "prompt 0 holds token -1, outside the vocabulary"),
            ([[1, 2**70]], "outside the vocabulary"),
            ([{"role": "assistant", "tool_calls": [{}]}], "the chat template of .* does not take prompt 0"),
            ([{"role": "user"}], "a message of prompt 0 must have a role and a content, both text, not "),
            ([{"role": "user", "content": [{"type": "text", "text": "a"}]}], "a message of prompt 0 must have"),
            ([{"messages": [{"role": "user", "content": "a"}]}], "a message of prompt 0 must have"),
            ([[{"from": "human", "value": "a"}]], "a message of prompt 0 must have"),
            ([[{"role": "user", "content": "a"}, "b"]], "must have a role and a content, both text, not 'b'"),
            (["a", "b \udcff"], r"prompt 1 holds U\+DCFF at 2, which is no character"),
            ([[{"role": "user", "content": "\ud800"}]], r"prompt 0 holds U\+D800"),
        ],
    )
    def test_others_are_refused(self, model: Checkpoint, prompts: Any, says: str) -> None:
        strict = dataclasses.replace(model, tokenizer=copy.copy(model.tokenizer))
        strict.tokenizer.chat_template = checkpoints.TEMPLATE.replace("m.content", "m['content'] + ''")
        with pytest.raises(ValueError, match=says):
            requests_of(strict, prompts)

    @pytest.mark.parametrize("prompts", [[5, 6, 7], ["a", [5, 6]], [[]], np.array([5, 6])])
    def test_token_ids_are_no_chat(self, engine: Engine, prompts: Any) -> None:
        for call in (engine.generate, engine.generate_iter, engine.requests):
            with pytest.raises(ValueError, match=r"prompt \d is a list of token ids, which the chat template cannot"):
                call(prompts, chat=True)
        with pytest.raises(ValueError, match="prompt 0 is a list of token ids"):
            engine.stream([5, 6], chat=True)

    def test_empty_and_only_bos_are_the_same(self, model: Checkpoint, engine: Engine) -> None:
        bos: Any = model.config.bos
        found = engine.generate(["", [], [bos]], max_new_tokens=5)
        assert [one.prompt_tokens for one in found] == [[bos]] * 3
        assert found[0].tokens == found[1].tokens == found[2].tokens and len(found[0].tokens) == 5

    def test_longer_than_the_context(self, model: Checkpoint, engine: Engine) -> None:
        tokens = [5 + i % 200 for i in range(300)]
        with pytest.raises(ValueError, match=r"prompt 0 has 300 tokens; with max_new_tokens=20 .* the 256 positions"):
            engine.generate([tokens], max_new_tokens=20)
        (found,) = engine.generate([tokens], max_new_tokens=20, truncate="left")
        assert found.prompt_tokens == tokens[-236:] and len(found.tokens) == 20
        (short,) = engine.generate([tokens[:9]], max_new_tokens=20, truncate="left")
        assert short.prompt_tokens == tokens[:9]
        with pytest.raises(
            ValueError, match=r"max_new_tokens=256 .* 256 positions of this model: ask for fewer tokens"
        ):
            engine.generate([tokens], max_new_tokens=256, truncate="left")

    def test_batches_of_1_and_33(self, engine: Engine) -> None:
        prompts = [[3 + i, 5, 6, 3 + i] for i in range(33)]
        settings = {"max_new_tokens": 6, "temperature": 0.9, "seed": 1}
        together, alone = (engine.generate(prompts, batch_size=size, **settings) for size in (33, 1))
        assert [one.tokens for one in together] == [one.tokens for one in alone]


class TestText:
    def test_a_character_split_over_tokens_is_streamed_whole(self, model: Checkpoint) -> None:
        """`é` and `漢` are two and three tokens of the byte tokenizer: no piece ends within one."""
        tokens = model.tokenizer.encode("aé漢b", add_special_tokens=False)
        assert len(tokens) == 7
        unfinished, pieces = ShownText(model.tokenizer), []
        for end in range(1, 8):
            text = model.tokenizer.decode(tokens[:end])
            pieces.append("".join(unfinished.more(text, final=end == 7, hold=0)))
        assert pieces == ["a", "", "é", "", "", "漢", "b"]


class TestSizes:
    @pytest.mark.parametrize(
        ("method", "says"),
        [
            ("ngram+chain,length=99999", "chain: length must be at most 4096, not 99999"),
            ("ngram+chain,length=-1", "chain: length must be at least 0, not -1"),
            ("ngram+uniform,total=100000", "uniform: total must be at most 4096"),
            ("ngram+cape,depth=100000", "cape: depth must be at most 4096"),
            ("ngram+eagle2,width=4000,depth=4000", "eagle2: with these settings it drafts up to .* nodes, .* limit is"),
            ("ngram+pruned,cost=0.1,width=100000", "pruned: width must be at most 4096"),
            ("ngram+budgeted,depth=100000", "budgeted: depth must be at most 4096"),
            ("ngram+static,paths=0.:9999.", r"the largest rank in path \(9999,\) must be at most 4096, not 9999"),
            ("ngram,longest=1000", "ngram: longest must be at most 64, not 1000"),
            ("ngram,sharpness=nan", "ngram: sharpness must exceed 1"),
        ],
    )
    def test_drafts_are_bounded(self, method: str, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            parse_method(method)

    def test_the_largest_is_taken(self) -> None:
        assert parse_method("ngram+chain,length=4096").builder.size == 4097


@pytest.mark.parametrize("settings", [{}, {"unknown": 1}])
@pytest.mark.parametrize("name", ["dflash", "eagle3", "early-exit", "edd", "medusa"])
def test_a_head_without_its_settings_is_refused(name: str, settings: dict[str, Any], tmp_path: Path):
    builtin = locate("builtin")
    config = json.loads((builtin / "heads" / name / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "settings": settings}))
    with pytest.raises(CheckpointError, match=f"{tmp_path} does not have the settings of a.* head"):
        head_weights.fitted(builtin, parse_method(f"{name}@{tmp_path}"))
