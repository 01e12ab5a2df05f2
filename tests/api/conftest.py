"""One service that tests with problems of their own share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.servers import Server, running


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("service"), max_body_bytes=200_000) as service:
        yield service
