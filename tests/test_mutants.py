"""The mutants of `make mutants` fit the library as it is: none is stale, and the tests that they name exist."""

from collections import Counter

from tests.mutants import all_mutants


def test_every_mutant_fits_and_names_tests_that_exist():
    mutants = all_mutants.mutants()
    assert len(mutants) >= 80
    assert [name for name, count in Counter(mutant.name for mutant in mutants).items() if count > 1] == []
    for mutant in mutants:
        mutant.check()
        assert mutant.tests, f"{mutant.name}: tests/mutants/all_mutants.py lists no tests of {mutant.file}"
