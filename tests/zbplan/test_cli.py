from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.main import get_command
from typer.testing import CliRunner

from zbplan.cli import EXTRAS, app
from zbplan.plan import Plan
from zbplan.problem import Problem
from zbplan.validate import validate

COMMAND = str(Path(sys.executable).with_name("zbplan"))
PROFILE = {"stages": 4, "t_f_ms": 10, "t_b_ms": 10, "t_w_ms": 5, "t_comm_ms": 1, "m_b_bytes": 2, "m_w_bytes": 1}
PROBLEM = {"profile": PROFILE, "devices": 4, "microbatches": 8, "placement": "linear", "memory_limit": "1x"}

FROZEN = {
    "plan": ["PROBLEM.json", "--output -o"],
    "validate": ["PLAN.json"],
    "show": ["PLAN.json", "--critical-path", "--from-ms", "--to-ms", "--width"],
    "compare": ["PROBLEM.json", "--json"],
    "trace": ["PLAN.json", "TRACE.json", "--json", "--chrome", "--replan", "--force"],
    "export": ["PLAN.json", "--format -f", "--output -o"],
    "serve": ["--host", "--port", "--database-url", "--insecure"],
    "worker": ["--database-url", "--solver-workers"],
    "token add": ["NAME", "--role", "--database-url"],
    "token list": ["--database-url"],
    "token revoke": ["NAME", "--database-url"],
    "profile": [],
    "estimate": [],
    "partition": [
        "PROFILE.json",
        "--devices",
        "--microbatches",
        "--placement",
        "--memory-limit",
        "--optimizer",
        "--exact",
        "--json",
        "--output -o",
    ],
    "fetch": ["URL", "KEY", "--output -o", "--timeout-s"],
}
DELEGATED = {
    "profile": """
--stages --layers --placement --engine-mode --splitter --unsplit --device --tensor-parallel --warmup --samples --turns
--t-comm-ms --force --name --output --json --post --post-timeout-s
""",
    "estimate": """
--blocks --hidden --heads --sequence --microbatch-size --vocabulary --stages --tensor-parallel --flash-attention
--device --peak-tflops --memory-gb-per-s --link-gb-per-s --link-latency-ms --efficiency --name --output --json --post
--post-timeout-s
""",
}
"""The options of the commands with a command line of their own."""


def zbplan(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the installed console script."""
    return subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120, **options)


def invoke(*arguments: str | Path) -> tuple[int, str, str]:
    """Run a command in this process; return exit status, stdout and stderr."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def changed(field: str, value: str) -> str:
    """Return the problem's JSON text with one field's text replaced."""
    text, count = re.subn(rf'"{field}": ("[^"]*"|[\d.]+)', f'"{field}": {value}', json.dumps(PROBLEM))
    assert count == 1
    return text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a problem, the plan for it, and a plan in which a device starts too early."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "problem.json").write_text(json.dumps(PROBLEM))
    status, _, stderr = invoke("plan", folder / "problem.json", "-o", folder / "plan.json")
    assert (status, stderr) == (0, "")
    broken = json.loads((folder / "plan.json").read_text())
    broken["devices"][1]["start_ms"][0] -= 1
    (folder / "broken.json").write_text(json.dumps(broken))
    return folder


# What there is


def test_commands_and_options_are_frozen() -> None:
    found: dict[str, list[str]] = {}
    for name, command in commands(get_command(app)):
        found[name] = [" ".join(it.opts) if it.param_type_name == "option" else it.metavar for it in command.params]
    assert found == FROZEN


def commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


@pytest.mark.parametrize("command", DELEGATED)
def test_options_and_examples_of_commands_with_their_own_line_are_frozen(command: str) -> None:
    done = zbplan(command, "--help")
    assert done.returncode == 0
    assert re.findall(r"^  (?:-h, )?(--[\w-]+)", done.stdout, re.MULTILINE) == ["--help", *DELEGATED[command].split()]
    assert "\nexamples:\n" in done.stdout


def test_estimating_needs_no_torch_and_gives_a_profile_to_plan(tmp_path: Path) -> None:
    program = "import sys; sys.modules['torch'] = None; from zbplan.cli import main; main()"
    command = [sys.executable, "-c", program, "estimate", "gpt-1.5b", "--stages", "4", "--output", "profile.json"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60).returncode == 0
    profile = json.loads((tmp_path / "profile.json").read_text())
    problem = {"profile": profile, "devices": 4, "microbatches": 8, "placement": "linear", "memory_limit": "1x"}
    (tmp_path / "problem.json").write_text(json.dumps({**problem, "method": "1f1b"}))
    status, _, stderr = invoke("plan", tmp_path / "problem.json", "-o", tmp_path / "plan.json")
    assert (status, stderr) == (0, "")
    assert invoke("validate", tmp_path / "plan.json")[0] == 0


@pytest.mark.parametrize("command", [name for name in FROZEN if name not in DELEGATED])
def test_help_shows_an_example(command: str) -> None:
    status, stdout, _ = invoke(*command.split(), "--help")
    assert status == 0
    assert re.search(rf"Example:\n +zbplan {command} ", stdout)


def test_no_command_is_bad_usage_and_shows_the_commands() -> None:
    done = zbplan()
    assert done.returncode == 2
    assert all(name.split()[0] in done.stdout + done.stderr for name in FROZEN)


# What they do


def test_plan_writes_a_legal_plan(folder: Path) -> None:
    plan = Plan.read(folder / "plan.json")
    assert validate(plan) == []
    assert plan.key == Problem.parse(PROBLEM).key


def test_plan_reads_and_writes_standard_streams(folder: Path) -> None:
    done = zbplan("plan", "-", input=json.dumps(PROBLEM))
    assert done.returncode == 0
    assert Plan.parse_json(done.stdout).plan_id == Plan.read(folder / "plan.json").plan_id
    assert re.match(r"-: \w+, iteration [\d.]+ ms, bubble [\d.]+%, bound [\d.]+ ms, gap [\d.]+%, key ", done.stderr)
    assert zbplan("validate", "-", input=done.stdout).returncode == 0


def test_validate_says_that_a_plan_is_legal(folder: Path) -> None:
    status, stdout, stderr = invoke("validate", folder / "plan.json")
    assert (status, stderr) == (0, "")
    assert ": legal; " in stdout


def test_validate_names_every_violation(folder: Path) -> None:
    status, stdout, stderr = invoke("validate", folder / "broken.json")
    assert (status, stdout) == (1, "")
    lines = stderr.splitlines()
    assert len(lines) == len(validate(Plan.read(folder / "broken.json"))) > 1
    assert all(line.startswith(f"zbplan: {folder / 'broken.json'} ") for line in lines)
    assert (
        "wrong_duration at $.devices[1] op 0: found F(stage 1, microbatch 0) lasting 11.0 ms; needed 10.0 ms" in stderr
    )


def test_show_draws_a_row_per_device_on_the_width_asked_for(folder: Path) -> None:
    done = zbplan("show", folder / "plan.json", "--width", "100")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert {line[0] for line in lines if line[1:3] == " |"} == {"0", "1", "2", "3"}
    assert max(map(len, lines)) == 100
    assert "critical path" not in done.stdout


def test_show_needs_no_colour_and_no_unicode(folder: Path) -> None:
    plain = zbplan("show", folder / "plan.json", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert plain.returncode == 0
    assert plain.stdout.isascii()
    assert "\x1b" not in plain.stdout


def test_show_lists_the_critical_path(folder: Path) -> None:
    status, stdout, _ = invoke("show", folder / "plan.json", "--critical-path")
    assert status == 0
    path = stdout.partition("critical path: ")[2].splitlines()
    assert len(path) == int(path[0].split()[0]) + 1
    assert path[1].endswith("F(stage 0, microbatch 0): started at once")


def test_show_refuses_a_plan_that_is_not_legal(folder: Path) -> None:
    status, stdout, stderr = invoke("show", folder / "broken.json")
    assert (status, stdout) == (1, "")
    assert "wrong_duration at $.devices[1] op 0" in stderr


@pytest.mark.parametrize("stretch", [("--from-ms", "nan"), ("--from-ms", "1e9"), ("--from-ms", "9", "--to-ms", "3")])
def test_show_refuses_a_stretch_without_ops(folder: Path, stretch: tuple[str, ...]) -> None:
    status, _, stderr = invoke("show", folder / "plan.json", *stretch)
    assert status == 2
    assert "needed a stretch of time between 0 and" in stderr


def test_text_that_cannot_be_written_is_escaped(folder: Path, tmp_path: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    plan["provenance"]["method"] = "\ud800"
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    status, stdout, stderr = invoke("validate", tmp_path / "plan.json")
    assert (status, stderr) == (0, "")
    assert "legal; \\ud800, iteration" in stdout


def test_compare_has_a_row_per_method(folder: Path) -> None:
    status, stdout, stderr = invoke("compare", folder / "problem.json")
    assert (status, stderr) == (0, "")
    rows = {line[2:].split()[0]: line for line in stdout.splitlines()[2:] if line[:2] in ("  ", "* ")}
    assert {"gpipe", "1f1b", "zb_h1", "zb_h2", "zb_greedy", "auto"} <= set(rows)
    assert rows["auto"].startswith("*")
    assert "gpipe (linear) is not legal: takes 16 bytes on device 0, where memory_limit is 8" in stdout


def test_compare_as_json_agrees_with_the_plan(folder: Path) -> None:
    status, stdout, _ = invoke("compare", folder / "problem.json", "--json")
    value, plan = json.loads(stdout), Plan.read(folder / "plan.json")
    assert status == 0
    assert value["key"] == plan.key
    assert value["bound"] == plan.bound.model_dump()
    auto = next(row for row in value["rows"] if row["method"] == "auto")
    assert auto["best"]
    assert auto["metrics"] == plan.metrics.model_dump()
    times = [row["metrics"]["iteration_ms"] for row in value["rows"] if row["legal"]]
    assert times == sorted(times)


def test_compare_compares_all_methods_whichever_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "problem.json").write_text(json.dumps(PROBLEM | {"method": "1f1b"}))
    _, stdout, _ = invoke("compare", tmp_path / "problem.json", "--json")
    assert json.loads(stdout)["key"] == Problem.parse(PROBLEM).key


@pytest.mark.parametrize(
    ("times", "warning"),
    [
        ({"t_b_ms": 20, "t_w_ms": 10}, "$.profile.t_b_ms: 20 ms on average is about 2 t_f_ms"),
        (
            {"t_comm_ms": 20},
            "$.profile.t_comm_ms: 20 ms is no less than t_f_ms (10 ms on average): communication bound",
        ),
    ],
)
@pytest.mark.parametrize("command", ["plan", "compare"])
def test_likely_mistakes_are_warned_of(tmp_path: Path, command: str, times: dict[str, float], warning: str) -> None:
    file = tmp_path / "problem.json"
    file.write_text(json.dumps(PROBLEM | {"profile": PROFILE | times}))
    status, _, stderr = invoke(command, file)
    assert status == 0
    assert stderr.startswith(f"zbplan: warning: {file} {warning}")


# The service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[str]:
    """A service on a free port, stopped as an operator would; its URL."""
    command = [COMMAND, "serve", "--port", "0", "--database-url", f"sqlite:///{tmp_path / 'plans.sqlite3'}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            assert line.startswith("zbplan: listening on http://127.0.0.1:")
            yield line.split()[-1]
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=60)
            assert process.returncode == 0
            assert "Traceback" not in stderr
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def test_a_plan_posted_to_the_service_is_fetched(service: str, folder: Path, tmp_path: Path) -> None:
    import httpx

    problem = PROBLEM | {"time_limit_s": 1}
    answer = httpx.post(f"{service}/v1/plans", json=problem, headers={"Prefer": "wait=30"}, timeout=60).json()
    done = zbplan("fetch", service, answer["key"], "-o", tmp_path / "plan.json")
    assert done.returncode == 0, done.stderr
    fetched = Plan.read(tmp_path / "plan.json")
    assert fetched.key == answer["key"] == Plan.read(folder / "plan.json").key
    assert validate(fetched) == []

    unknown = zbplan("fetch", service, "0" * 64, "-o", tmp_path / "none.json")
    assert unknown.returncode == 2
    assert "found status 404" in unknown.stderr
    assert not (tmp_path / "none.json").exists()


def test_serve_names_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = zbplan("serve", "--port", str(port), "--database-url", f"sqlite:///{tmp_path / 'plans.sqlite3'}")
    assert done.returncode == 2
    expected = (
        f"zbplan: --host 127.0.0.1 --port {port}: found Address already in use; needed an address of this machine"
    )
    assert done.stderr.startswith(expected)


@pytest.mark.parametrize(
    "options", [("--port", "65536"), ("--host", "no.such.host.invalid"), ("--database-url", "no database")]
)
def test_serve_refuses_bad_settings_without_a_traceback(tmp_path: Path, options: tuple[str, str]) -> None:
    done = zbplan("serve", "--port", "0", "--database-url", f"sqlite:///{tmp_path / 'plans.sqlite3'}", *options)
    assert done.returncode == 2
    assert done.stderr.startswith("zbplan: ")
    assert "Traceback" not in done.stderr


def test_tokens_are_added_listed_and_revoked(tmp_path: Path) -> None:
    where = ("--database-url", f"sqlite:///{tmp_path / 'plans.sqlite3'}")
    status, secret, said = invoke("token", "add", "training", "--role", "write", *where)
    assert (status, len(secret.strip())) == (0, 43)
    assert secret.strip() not in said
    status, stdout, _ = invoke("token", "list", *where)
    assert status == 0
    assert stdout.startswith("training  write  20")
    assert invoke("token", "revoke", "training", *where)[0] == 0
    assert invoke("token", "list", *where)[:2] == (0, "")


def test_serve_wants_a_token_where_others_can_reach_it(tmp_path: Path) -> None:
    done = zbplan("serve", "--host", "0.0.0.0", "--database-url", f"sqlite:///{tmp_path / 'plans.sqlite3'}")
    assert done.returncode == 2
    assert re.match(r"zbplan: host: found '0.0.0.0', .*; needed a token \(`zbplan token add .*--insecure", done.stderr)


def test_serve_lists_every_setting() -> None:
    assert "ZBPLAN_MAX_OPS [250000]" in invoke("serve", "--help")[1]


def test_fetch_names_a_service_that_does_not_answer(tmp_path: Path) -> None:
    done = zbplan("fetch", "http://127.0.0.1:9", "0" * 64, "-o", tmp_path / "plan.json")
    assert done.returncode == 2
    assert re.match(r"zbplan: GET http://127.0.0.1:9/v1/plans/0+: found ConnectError", done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_profile_passes_on_what_the_profiler_answers(tmp_path: Path) -> None:
    done = zbplan("profile", "no_such_module:model", "--output", tmp_path / "profile.json")
    assert done.returncode == 2
    assert done.stderr.startswith("zbplan profile: no_such_module:model: found ModuleNotFoundError")


# Bad input

BAD_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e400", "-1", '"12"', "true", "null", "[1, 2, 3]", "{}")


@pytest.mark.parametrize("value", BAD_NUMBERS)
@pytest.mark.parametrize("command", ["plan", "compare"])
def test_a_bad_number_is_named(tmp_path: Path, command: str, value: str) -> None:
    (tmp_path / "problem.json").write_text(changed("t_f_ms", value))
    status, stdout, stderr = invoke(command, tmp_path / "problem.json")
    assert (status, stdout) == (2, "")
    assert re.match(rf"zbplan: {tmp_path}/problem\.json \$\.profile\.t_f_ms: found .+; needed .+", stderr)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed("devices", "0"), "$.devices: found 0; needed greater than or equal to 1"),
        (changed("microbatches", "0"), "$.microbatches: found 0; needed greater than or equal to 1"),
        (changed("stages", "1000000000"), "$.profile.stages: found 1000000000; needed less than or equal to 16384"),
        (changed("devices", "5"), "$.placement: found 5 devices for 4 stages; needed at least one stage per device"),
        (json.dumps(PROBLEM | {"microbatch": 8}), "did you mean 'microbatches'?"),
        (json.dumps(PROBLEM | {"profile": PROFILE | {"t_link_ms": 1}}), "$.profile.t_link_ms: found 1; needed no such"),
        (json.dumps(PROBLEM)[:40], "complete JSON"),
        ("", "problem.json $: found no text; needed complete JSON"),
        ("\ufeff" + json.dumps(PROBLEM), "problem.json $: found a byte order mark; needed UTF-8 text without one"),
        ("[" * 100_000, "$: found brackets nested too deep"),
        ("9" * 5000, "$: found "),
        ("[]", "$: found list []"),
        ('{"profile": "\\ud800"}', "$.profile: found str '\\ud800'"),
    ],
)
def test_a_bad_problem_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "problem.json").write_text(text)
    status, stdout, stderr = invoke("plan", tmp_path / "problem.json", "-o", tmp_path / "plan.json")
    assert (status, stdout) == (2, "")
    assert f"zbplan: {tmp_path / 'problem.json'} $" in stderr
    assert message in stderr
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize("command", ["plan", "compare", "validate", "show"])
@pytest.mark.parametrize("name", ["missing.json", ".", "latin.json", "truncated.json", "a\nb"])
def test_a_bad_file_is_named(tmp_path: Path, command: str, name: str) -> None:
    (tmp_path / "latin.json").write_bytes(b'{"name": "\xff"}')
    (tmp_path / "truncated.json").write_text('{"profile": {')
    status, stdout, stderr = invoke(command, tmp_path / name)
    assert (status, stdout) == (2, "")
    assert stderr.count("\n") == 1
    assert re.match(r"zbplan: .+: found .+; needed .+", stderr)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_no_damage_to_a_plan_or_problem_ends_in_a_traceback(folder: Path, data: st.DataObject) -> None:
    """Replace, drop or cut anything anywhere: every command answers 0, 1 or 2 and says why."""
    name = data.draw(st.sampled_from(["problem.json", "plan.json"]))
    value = json.loads((folder / name).read_text())
    holder: Any = value
    while True:
        step = data.draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
        if not isinstance(holder[step], dict | list) or not holder[step] or data.draw(st.booleans()):
            break
        holder = holder[step]
    junk = st.sampled_from(
        [None, True, -1, 0, 1, 1e300, float("nan"), 10**30, "", "x", "\ud800", [], [[]], {}, {"a": 1}]
    )
    if data.draw(st.booleans()):
        holder[step] = data.draw(junk)
    else:
        del holder[step]
    (folder / "damaged.json").write_text(json.dumps(value))
    for command in ("plan", "compare") if name == "problem.json" else ("validate", "show"):
        status, _, stderr = invoke(command, folder / "damaged.json")
        assert status in (0, 1, 2)
        assert status == 0 or stderr.startswith("zbplan: ")


def test_too_little_memory_is_a_no_with_the_limits_that_would_do(tmp_path: Path) -> None:
    (tmp_path / "problem.json").write_text(changed("memory_limit", "1.5"))
    status, stdout, stderr = invoke("plan", tmp_path / "problem.json")
    assert (status, stdout) == (1, "")
    assert "device 0 has 1.5 and needs 2" in stderr


def test_a_method_that_cannot_is_a_no_with_methods_that_can(tmp_path: Path) -> None:
    (tmp_path / "problem.json").write_text(json.dumps(PROBLEM | {"method": "gpipe"}))
    status, _, stderr = invoke("plan", tmp_path / "problem.json")
    assert status == 1
    assert "method 'gpipe': takes 16 bytes on device 0" in stderr
    assert "1f1b" in stderr


@pytest.mark.parametrize("target", ["missing/plan.json", ".", "problem.json/plan.json"])
def test_an_output_that_cannot_be_written_is_named_before_solving(folder: Path, target: str) -> None:
    done = zbplan("plan", "problem.json", "-o", target, cwd=folder)
    assert done.returncode == 2
    assert re.match(rf"zbplan: '{re.escape(target)}': found .+; needed a file in a folder", done.stderr)


@pytest.mark.parametrize(
    "arguments", [("plan",), ("nonsense",), ("show", "x", "--wide"), ("show", "x", "--width", "a")]
)
def test_bad_usage_has_status_2(arguments: tuple[str, ...]) -> None:
    status, stdout, stderr = invoke(*arguments)
    assert (status, stdout) == (2, "")
    assert "Usage: " in stderr


# Where things end early


def heed_interrupts() -> None:
    """Start as from a terminal: a shell that runs the tests in the background lets them ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_a_command_without_a_traceback(tmp_path: Path) -> None:
    pipe = tmp_path / "plan.json"
    os.mkfifo(pipe)
    command = [COMMAND, "validate", pipe]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts)
    with process, pipe.open("w"):  # opens once the command reads from it
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr == "zbplan: interrupted\n"


def test_ctrl_c_in_a_compiled_kernel_is_one_too(folder: Path) -> None:
    program = """
from zbplan import cli, files

def read(source):
    unpickling = SystemError("a function returned a result with an exception set")
    unpickling.__cause__ = KeyboardInterrupt()
    raise SystemError("a kernel returned a result with an exception set") from unpickling

files.read = read
cli.main()
"""
    command = [sys.executable, "-c", program, "validate", "plan.json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "zbplan: interrupted\n")


def test_ctrl_c_where_nothing_can_be_raised_comes_again(folder: Path) -> None:
    program = """
import ctypes, signal, time
from zbplan import cli, files

@ctypes.CFUNCTYPE(None)
def callback():
    signal.raise_signal(signal.SIGINT)

def read(source):
    callback()
    time.sleep(60)

files.read = read
cli.main()
"""
    command = [sys.executable, "-c", program, "validate", "plan.json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=50, preexec_fn=heed_interrupts)
    assert (done.returncode, done.stderr) == (130, "zbplan: interrupted\n")


@pytest.mark.parametrize("arguments", [("show",), ("show", "--critical-path"), ("validate",)])
def test_a_closed_pipe_ends_a_command_silently(folder: Path, arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [COMMAND, *arguments, str(folder / "plan.json")]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("closed", [1, 2])
@pytest.mark.parametrize(("name", "status"), [("plan", 0), ("broken", 1)])
def test_a_stream_that_was_closed_is_written_to_in_vain(folder: Path, closed: int, name: str, status: int) -> None:
    command = f'exec "$0" validate {name}.json {closed}>&-'
    done = subprocess.run(["sh", "-c", command, COMMAND], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    assert ("there at" in done.stderr) == (name == "broken" and closed == 1)


def test_a_plan_is_written_into_a_pipe_named_by_its_descriptor(folder: Path) -> None:
    named, standard = (
        zbplan("export", "plan.json", "-f", "csv", "-o", output, cwd=folder) for output in ("/dev/stdout", "-")
    )
    assert (named.returncode, named.stdout) == (0, standard.stdout)


def test_a_full_disk_is_named(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [COMMAND, "show", str(folder / "plan.json")]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bug_is_no_answer(folder: Path) -> None:
    program = "from zbplan import cli, files; files.read = lambda source: 1 // 0; cli.main()"
    command = [sys.executable, "-c", program, "validate", "plan.json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 70
    assert "ZeroDivisionError" in done.stderr


# What is not installed


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("typer", ["--help"], "solver"),
        ("rich", ["show", "plan.json"], "solver"),
        ("networkx", ["show", "plan.json", "--critical-path"], "solver"),
        ("fastapi", ["serve"], "service"),
        ("torch", ["profile", "--help"], "torch"),
    ],
)
def test_a_missing_module_is_said_with_its_extra(folder: Path, module: str, arguments: list[str], extra: str) -> None:
    program = f"import sys; sys.modules[{module!r}] = None; from zbplan.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=folder, capture_output=True, text=True, timeout=60
    )
    expected = f"zbplan: found no module {module!r}; needed for this command: pip install 'zbplan[{extra}]'\n"
    assert (done.returncode, done.stderr) == (2, expected)


def test_fetching_needs_no_torch(tmp_path: Path) -> None:
    program = "import sys; sys.modules['torch'] = None; from zbplan.cli import main; main()"
    command = [sys.executable, "-c", program, "fetch", "http://127.0.0.1:9", "0" * 64, "--timeout-s", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "found ConnectError" in done.stderr


def test_extras_are_those_of_the_package() -> None:
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    found: dict[str, set[str]] = {extra: set() for extra in EXTRAS}
    for requirement in map(Requirement, requires("zbplan") or []):
        extra = re.search(r'extra == "(\w+)"', str(requirement.marker or ""))
        if extra and extra[1] in EXTRAS and requirement.name != "zbplan":
            found[extra[1]].add(requirement.name.replace("-", "_"))
    assert found == {extra: set(modules) for extra, modules in EXTRAS.items()}
