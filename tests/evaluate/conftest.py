import pytest

from tests.quick_runs import shorten


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory):
    """A run of `bench` that went to its end."""
    from tests.evaluate.finished_bench import finish  # after the import hook

    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        return finish(tmp_path_factory.mktemp("bench"))
