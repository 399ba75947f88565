"""Which generated texts are left out: near a question, looping, or repeating others."""

import json
import string
from pathlib import Path
from typing import Any

from jaxspec.train.data.screening import LEFT_OUT, Screen, grams, loops, of_questions, words_of

LETTERS = list(string.ascii_lowercase)


def text(words: list[str], prompt: str = "") -> dict[str, Any]:
    return {"text": prompt + " ".join(words), "prompt": prompt, "complete": True}


def fresh(number: int) -> dict[str, Any]:
    return text([f"w{number}x{i}" for i in range(20)])


def test_loops_are_found_on_the_whole_and_at_the_end():
    once = [f"w{i}" for i in range(200)]
    assert not loops(once) and not loops([]) and not loops(["a", "b"])
    assert loops(LETTERS * 3) and not loops(LETTERS + LETTERS)
    assert loops(once + ["again", "and"] * 24) and not loops(once + ["again", "and"] * 4)
    assert grams(LETTERS[:5]) == [tuple("abcd"), tuple("bcde")]
    assert words_of("Don't stop, it's 4!") == ["don", "t", "stop", "it", "s", "4"]


def test_no_text_shares_thirteen_words_or_a_short_turn(tmp_path: Path):
    held = tmp_path / "held.jsonl"
    lines = [{"turns": [" ".join(LETTERS[:14]), "one two three four five six seven eight"]}, {"prompt": "hello you"}]
    lines += [{"prompt": "x", "reference": " ".join(LETTERS[13:])}]
    held.write_text("".join(json.dumps(line) + "\n" for line in lines))
    screen = Screen(of_questions([held, "translations"]))
    out = lambda line: screen.screened(line).get(LEFT_OUT)
    assert out(text(["so", *LETTERS[1:14]])) == "near an excluded question"
    assert out(text(["A,", "B!", *LETTERS[2:13]])) == "near an excluded question"
    assert out(text(LETTERS[13:])) == "near an excluded question", "a worked answer"
    assert out(text(LETTERS[7:13], prompt=f"{' '.join(LETTERS[:7])} ")) == "near an excluded question"
    assert out(text(LETTERS[1:13])) is None, "twelve words"
    assert (
        out(text(["so", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]))
        == "near an excluded question"
    )
    assert out(text(["hello", "you", "there"])) is None
    said = lambda *contents: {"messages": [{"role": "user", "content": each} for each in contents]}
    assert out(said("Vor dem Gesetz steht ein Türhüter. Zu diesem Türhüter kommt ein Mann vom Lande", "b")) is not None
    assert out(said(" ".join(LETTERS[:7]), " ".join(LETTERS[7:13]))) is None, "of two messages"


def test_what_training_refuses_as_empty_is_left_out():
    talk = lambda answer: {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": answer}]}
    screen = Screen(set())
    lines = [talk(""), talk(" \n"), talk("!"), text([]), text([], prompt="of the prompt alone")]
    found = [screen.screened(line) for line in lines]
    assert found == [*[{LEFT_OUT: "empty"}] * 2, lines[2], {LEFT_OUT: "empty"}, lines[4]]
    assert screen.texts == 2 and screen.summary(found).endswith("left out: 3 empty")


def test_few_kept_texts_loop():
    screen = Screen(set(), most_loops=0.25)
    looping = lambda number: text([f"loop{number}", "again"] * 10)
    assert screen.screened(looping(0)) == {LEFT_OUT: "looping"}
    kept = [fresh(number) for number in range(3)]
    assert [screen.screened(line) for line in kept] == kept
    assert LEFT_OUT not in screen.screened(looping(1)), "one of four"
    assert screen.screened(looping(2)) == {LEFT_OUT: "looping"}
    assert (screen.texts, screen.looping, screen.total) == (4, 1, 4 * 17)
    assert screen.summary([{LEFT_OUT: "looping"}, kept[0], {LEFT_OUT: "looping"}]) == (
        "78% of their 4-grams are distinct, 25% of the texts loop; left out: 2 looping"
    )
    everything = Screen(set())
    assert all(everything.screened(looping(number)) == looping(number) for number in range(3))


def test_answers_that_repeat_others_are_left_out_if_wanted():
    mixed = text([*(f"w0x{i}" for i in range(10)), *(f"new{i}" for i in range(10))])
    screen = Screen(set(), repeats=False)
    assert [LEFT_OUT in screen.screened(line) for line in (fresh(0), fresh(0), mixed, fresh(1))] == [
        *(False, True, False, False),
    ]
    assert screen.screened(text(["ok"])) == text(["ok"]), "too short to tell"
    assert LEFT_OUT not in Screen(set()).screened(fresh(0))
