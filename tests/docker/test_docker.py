"""Every command in docker/, run as it stands, and the files held against each other."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.api.postgresql import postgresql, program
from tests.api.servers import problem, running, wait_until
from tests.docker.recipe import (
    DOCKER,
    command,
    compose,
    copy_context,
    documented_commands,
    instructions,
    said,
    variables,
)

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first stage makes, in a folder of its own."""
    folder = tmp_path_factory.mktemp("image")
    assert said("COPY", 0) == [". source"]
    copy_context(folder / "source")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for line in said("RUN", 0):
        subprocess.run(line, shell=True, check=True, cwd=folder, env={**clean(), "PATH": path}, timeout=600)
    return folder


@pytest.fixture(scope="module")
def postgresql_url() -> Iterator[str]:
    with postgresql() as database:
        yield database.url


@pytest.fixture
def environment(image: Path) -> dict[str, str]:
    """What a container of the image sees."""
    path = f"{image / 'installed' / 'bin'}:{os.environ['PATH']}"
    return {**clean(), **variables(), "PATH": path, "NUMBA_CACHE_DIR": str(image / "kernels")}


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ZBPLAN", "VIRTUAL"))}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def container(arguments: list[str], environment: dict[str, str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a command until the end of the block, then stop it as an engine does."""
    with subprocess.Popen(arguments, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            assert process.wait(60) == 0


def healthy(environment: dict[str, str], folder: Path) -> bool:
    (check,) = said("HEALTHCHECK")
    return subprocess.run(command(check), cwd=folder, env=environment, capture_output=True, timeout=60).returncode == 0


def test_image_has_what_the_service_needs_and_no_torch(image: Path) -> None:
    python = image / "installed" / "bin" / "python"
    names = ["api", "fastapi", "ortools", "highspy", "procrastinate", "psycopg", "torch", "pytest"]
    program = f"from importlib.util import find_spec; print([name for name in {names} if find_spec(name)])"
    done = subprocess.run([python, "-c", program], cwd="/", env=clean(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(names[:-2])


def test_nobody_is_root_and_what_is_copied_is_where_the_path_leads() -> None:
    assert len(said("FROM", 0)) == len(said("FROM", 1)) == 1
    (user,) = said("USER")
    assert "0" not in user.split(":")
    assert re.fullmatch(r"\d+:\d+", user)
    assert said("COPY") == [
        "--from=build /opt/zbplan/installed /opt/zbplan/installed",
        f"--from=build --chown={user} /opt/zbplan/kernels /opt/zbplan/kernels",
    ]
    assert variables()["NUMBA_CACHE_DIR"] == "/opt/zbplan/kernels"
    assert variables()["PATH"].split(":")[0] == "/opt/zbplan/installed/bin"
    assert said("WORKDIR", 0) == ["/opt/zbplan"]
    assert {item.name for item in instructions()} >= {"HEALTHCHECK", "EXPOSE", "CMD"}


def test_cluster_of_the_compose_file(postgresql_url: str, environment: dict[str, str], tmp_path: Path) -> None:
    services = compose(POSTGRES_PASSWORD="secret")["services"]
    export, token, up = documented_commands()
    assert export.startswith("export POSTGRES_PASSWORD=")
    assert up.startswith("docker compose ")
    given = services["api-1"]["environment"]
    assert given["ZBPLAN_DATABASE_URL"] == "postgresql+psycopg://zbplan:secret@postgres/zbplan"
    own = {**environment, **given, "ZBPLAN_DATABASE_URL": postgresql_url}
    add = shlex.split(token.partition("run --rm api-1 ")[2])
    secret = subprocess.run(add, cwd=tmp_path, env=own, capture_output=True, text=True, check=True).stdout.strip()
    ports = [free_port(), free_port()]
    first, second = ({**own, "ZBPLAN_PORT": str(port)} for port in ports)
    assert not healthy(first, tmp_path)
    with (
        container(services["api-1"]["command"], first, tmp_path) as one,
        container(services["api-2"]["command"], second, tmp_path) as other,
        container(services["worker"]["command"], own, tmp_path) as worker,
    ):
        for process in (one, other):
            assert process.stdout is not None
            assert process.stdout.readline().startswith("zbplan: listening on ")
        assert worker.stdout is not None
        assert "wait for problems" in worker.stdout.readline()
        assert healthy(first, tmp_path)
        assert healthy(second, tmp_path)
        assert solved(ports, secret)


def solved(ports: list[int], secret: str) -> bool:
    """Post a problem to one replica and wait for its plan at the other."""
    headers = {"Authorization": f"Bearer {secret}", "Prefer": "wait=60"}
    one, other = (httpx.Client(base_url=f"http://localhost:{port}", headers=headers, timeout=90) for port in ports)
    with one, other:
        assert other.get("/v1/plans", headers={"Authorization": ""}).status_code == 401
        key = one.post("/v1/plans", json=problem(time_limit_s=1)).json()["key"]
        return bool(other.get(f"/v1/plans/{key}").json()["status"] == "done")


def test_database_says_when_it_is_ready(postgresql_url: str) -> None:
    test = compose()["services"]["postgres"]["healthcheck"]["test"]
    assert test[0] == "CMD"
    host = httpx.URL(postgresql_url.replace("postgresql+psycopg", "http").replace("@/", "@x/")).params["host"]
    path = f"{Path(program('pg_isready')).parent}:{os.environ['PATH']}"
    for folder, ready in ((host, True), ("/nowhere", False)):
        done = subprocess.run(test[1:], env={**os.environ, "PATH": path, "PGHOST": folder}, capture_output=True)
        assert (done.returncode == 0) == ready, done.stdout


def test_proxy_leads_to_every_replica() -> None:
    services = compose()["services"]
    config = (DOCKER / "nginx.conf").read_text()
    (port,) = said("EXPOSE")
    replicas = [name for name in services if name.startswith("api")]
    assert re.findall(r"server ([\w-]+):(\d+) ", config) == [(name, port) for name in replicas]
    assert set(services["nginx"]["depends_on"]) == set(replicas)
    (published,) = services["nginx"]["ports"]
    assert re.findall(r"listen (\d+)", config) == [published.split(":")[1]]
    assert services["nginx"]["volumes"] == ["./nginx.conf:/etc/nginx/nginx.conf:ro"]


@pytest.fixture
def nginx() -> str:
    found = shutil.which(compose()["services"]["nginx"]["command"][0], path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        pytest.skip("nginx is not installed")
    return found


def configured(folder: Path, listen: int, replicas: list[int]) -> Path:
    """Write the proxy's configuration with other addresses, and folders that any user may have."""
    config = (DOCKER / "nginx.conf").read_text()
    for at, port in enumerate(replicas, 1):
        config = config.replace(f"server api-{at}:8642", f"server 127.0.0.1:{port}")
    config = re.sub(r"listen \d+", f"listen 127.0.0.1:{listen}", config).replace(
        "/tmp/nginx.pid", f"{folder}/nginx.pid"
    )
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    config = config.replace("http {", "http {" + "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds))
    as_root = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(as_root + config)
    return folder / "nginx.conf"


def test_proxy_takes_its_configuration(nginx: str, tmp_path: Path) -> None:
    config = configured(tmp_path, free_port(), [1, 2])
    done = subprocess.run([nginx, "-t", "-c", config], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_proxy_serves_plans_and_events_and_passes_over_a_replica_that_is_gone(nginx: str, tmp_path: Path) -> None:
    with running(tmp_path) as one, running(tmp_path) as other:
        port = free_port()
        config = configured(tmp_path, port, [httpx.URL(server.url).port or 0 for server in (one, other)])
        arguments = [nginx, *compose()["services"]["nginx"]["command"][1:], "-c", str(config)]
        with container(arguments, clean(), tmp_path), httpx.Client(base_url=f"http://localhost:{port}") as client:
            wait_until(lambda: reachable(client))
            asked = problem()
            answer = client.post("/v1/plans", json=asked, headers={"Prefer": "wait=30"}, timeout=60)
            assert answer.json()["status"] == "done"
            with client.stream("GET", f"/v1/plans/{answer.json()['key']}/events") as events:
                assert "event: done" in list(events.iter_lines())
            too_large = client.post("/v1/plans", content=b" " * (8 << 20) + b"{}", headers=JSON)
            assert too_large.status_code == 413
            one.stop(signal.SIGKILL)
            for _ in range(10):
                assert client.post("/v1/plans", json=asked).json() == answer.json()


def reachable(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False
