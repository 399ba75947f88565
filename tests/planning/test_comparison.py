"""Planned times beside measured times."""

from jaxspec.planning.chips import CHIPS, KINDS, chip_of
from jaxspec.planning.comparison import Compared, table, verdict
from jaxspec.planning.estimate import Interval

INSIDE = Compared("plain: verify", 1e-3, Interval(1.2e-3, 1.4e-3, 1.6e-3), 1.5e-3)
ABOVE = Compared("plain: rest", 1e-3, Interval(1.2e-3, 1.4e-3, 1.6e-3), 2e-3)
BELOW = Compared("prefill", 1e-3, Interval(1.2e-3, 1.4e-3, 1.6e-3), 0.6e-3)
NO_ESTIMATE = Compared("draft", 1e-3, None, 5e-3)
TOO_FAST = Compared("draft", 1e-3, None, 0.5e-3)
UNKNOWN = Compared("draft", None, None, 0.5e-3)


def test_the_verdict_names_what_contradicts_the_plan():
    assert [row.within for row in (INSIDE, ABOVE, BELOW, NO_ESTIMATE)] == [True, False, False, None]
    assert verdict([INSIDE]) == "The plan holds: 0 of 1 phases lie outside their interval."
    assert verdict([INSIDE, ABOVE, BELOW]) == (
        "The plan is wrong here: 2 of 3 phases lie outside their interval: plain: rest is 25% above its upper end; "
        "prefill is 50% below its lower end."
    )


def test_without_estimates_floors_are_all_there_is():
    assert verdict([NO_ESTIMATE]).endswith("nothing ran faster than its floor.")
    assert "a floor is wrong: draft is 50% below its floor" in verdict([NO_ESTIMATE, TOO_FAST])
    assert "Nothing can be compared" in verdict([UNKNOWN])


def test_the_table_has_a_line_for_each_phase():
    lines = table([INSIDE, ABOVE, NO_ESTIMATE, TOO_FAST, UNKNOWN]).splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in (lines[0], *lines[2:])]
    assert cells == [
        ["phase", "floor ms", "estimate ms", "measured ms", "within?"],
        ["plain: verify", "1", "1.2 - 1.6", "1.5", "yes"],
        ["plain: rest", "1", "1.2 - 1.6", "2", "NO"],
        ["draft", "1", "none", "5", "no interval"],
        ["draft", "1", "none", "0.5", "below the floor"],
        ["draft", "", "none", "0.5", "no interval"],
    ]
    assert ABOVE.to_json()["estimated_seconds"] == [1.2e-3, 1.6e-3]


def test_chips_are_known_by_the_names_that_jax_has_for_them():
    assert set(KINDS.values()) == CHIPS.keys()
    assert str(chip_of("TPU v5 lite")) == "v5e:1"
    assert chip_of("TPU v2") is None
