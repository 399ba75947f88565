"""Mutants written by hand: what a slip of the pen could change."""

from tests.mutants.by_hand import decoding, drafters, formats, scoring, strategies, training

MUTANTS = (
    *(*decoding.MUTANTS, *drafters.MUTANTS, *strategies.MUTANTS, *training.MUTANTS),
    *(*formats.MUTANTS, *scoring.MUTANTS),
)
