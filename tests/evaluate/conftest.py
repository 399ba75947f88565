import pytest

from tests.little import little_to_do


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory):
    """A run of `bench` that went to its end."""
    from tests.evaluate.finished_bench import finish  # after the import hook

    with little_to_do():
        return finish(tmp_path_factory.mktemp("bench"))
