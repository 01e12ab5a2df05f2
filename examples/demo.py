"""The main job on real input: measure a small GPT on four processes, plan, serve, train with the plan, compare.

Run by ``make demo``; everything happens on loopback and in a temporary folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
ZBPLAN = str(Path(sys.executable).with_name("zbplan"))
DEVICES = 4
MICROBATCHES = 8
STEPS = 10
MEMORY_LIMIT = "2x"

CONSOLE = Console(highlight=False)


def main() -> None:
    """Measure → plan → serve → train."""
    with tempfile.TemporaryDirectory(prefix="zbplan-demo-") as name, service(Path(name)) as url:
        folder = Path(name)
        heading(f"1. measure: the stages of a 10 M parameter GPT on {DEVICES} gloo processes")
        profile = measure(folder)
        heading("2. plan: post the problem to the service")
        answers = {method: plan(url, profile, method) for method in ("auto", "1f1b", "gpipe")}
        show_plans(answers)
        best = answers["auto"]
        (folder / "plan.json").write_text(json.dumps(best), encoding="utf-8")
        zbplan("show", folder / "plan.json")
        heading(f"3. train: {STEPS} steps on {DEVICES} processes with the fetched plan, {STEPS} steps in one process")
        pipeline = train(url, best["key"], folder / "pipeline.json", torchrun(DEVICES))
        single = train(url, best["key"], folder / "single.json", [sys.executable], "--single")
        compare(pipeline, single, best)
    CONSOLE.print("\ndemo: ok")


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """Run the service on a free loopback port and yield its URL."""
    database = f"sqlite:///{folder / 'plans.sqlite'}"
    command = [ZBPLAN, "serve", "--port", "0", "--database-url", database]
    log = folder / "service.log"
    with log.open("w") as errors, running(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        for line in process.stdout or ():
            if "listening on" in line:
                yield line.split()[-1]
                return
    raise SystemExit(f"demo: the service did not start:\n{log.read_text()}")


def measure(folder: Path) -> dict[str, Any]:
    """Profile the model with one process per stage."""
    path = folder / "profile.json"
    factory = ["-m", "profiler", "examples.gpt:staged_model", "--splitter", "runtime_client:split"]
    # A machine that does other work scatters its samples: the demo says so and goes on.
    run([*torchrun(DEVICES), *factory, "--device", "cpu", "--force", "--output", str(path)])
    profile: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return profile


def plan(url: str, profile: dict[str, Any], method: str) -> dict[str, Any]:
    """Ask the service for a plan; GPipe holds every microbatch and gets the memory for it."""
    problem = {
        "profile": profile,
        "devices": DEVICES,
        "microbatches": MICROBATCHES,
        "placement": "linear",
        "memory_limit": None if method == "gpipe" else MEMORY_LIMIT,
        "optimizer": "synchronous",
        "method": method,
        "time_limit_s": 10,
    }
    response = httpx.post(f"{url}/v1/plans", json=problem, headers={"Prefer": "wait=30"}, timeout=60)
    answer = response.json()
    while response.status_code == 202:
        response = httpx.get(f"{url}/v1/plans/{answer['key']}", headers={"Prefer": "wait=30"}, timeout=60)
        answer = response.json()
    if response.status_code != 200 or answer["status"] != "done":
        raise SystemExit(f"demo: found {answer}; needed a plan")
    found: dict[str, Any] = answer["plan"]
    return found


def show_plans(plans: dict[str, dict[str, Any]]) -> None:
    """Print what each plan is predicted to take."""
    table = Table(title=f"{DEVICES} devices, {MICROBATCHES} microbatches, memory limit {MEMORY_LIMIT} (GPipe: none)")
    for column in ("plan", "iteration", "bubble", "bound", "gap"):
        table.add_column(column, justify="left" if column == "plan" else "right")
    for method, found in plans.items():
        metrics, bound = found["metrics"], found["bound"]
        label = f"best ({found['provenance']['method']})" if method == "auto" else method
        times = (f"{metrics['iteration_ms']:.2f} ms", f"{metrics['bubble_rate']:.1%}")
        table.add_row(label, *times, f"{bound['iteration_ms']:.2f} ms", f"{bound['gap']:.2%}")
    CONSOLE.print(table)


def train(url: str, key: str, output: Path, launcher: list[str], *options: str) -> list[dict[str, Any]]:
    """Train and return loss and seconds of each step."""
    script = str(ROOT / "examples" / "train_gpt.py")
    arguments = ["--service", url, "--key", key, "--steps", str(STEPS), "--output", str(output)]
    run([*launcher, script, *arguments, *options], stdout=subprocess.DEVNULL)
    rows: list[dict[str, Any]] = json.loads(output.read_text(encoding="utf-8"))
    return rows


def compare(pipeline: list[dict[str, Any]], single: list[dict[str, Any]], best: dict[str, Any]) -> None:
    """Print both loss columns, and fail unless they agree in every bit."""
    table = Table("step", f"{DEVICES} processes", "one process", title="mean loss")
    for step, (left, right) in enumerate(zip(pipeline, single, strict=True)):
        table.add_row(str(step), f"{left['loss']:.9f}", f"{right['loss']:.9f}")
    CONSOLE.print(table)
    if [row["bits"] for row in pipeline] != [row["bits"] for row in single]:
        raise SystemExit("demo: the losses differ")
    CONSOLE.print("losses are equal, bit for bit")
    seconds = sorted(row["seconds"] for row in pipeline[2:])
    measured_ms, predicted_ms = seconds[len(seconds) // 2] * 1e3, best["metrics"]["iteration_ms"]
    CONSOLE.print(f"iteration: predicted {predicted_ms:.1f} ms with a core per device, measured {measured_ms:.1f} ms")
    CONSOLE.print(f"({DEVICES} processes shared {len(os.sched_getaffinity(0))} cores: no claim on the ratio)")


def torchrun(processes: int) -> list[str]:
    """Return the command that starts one process per device on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", str(processes)]


def zbplan(*arguments: str | Path) -> None:
    """Run a command of the command line."""
    run([ZBPLAN, *map(str, arguments)])


def run(command: list[str], **options: Any) -> None:
    """Run a command to its end; fail with it."""
    with running(command, **options) as process:
        status = process.wait()
    if status:
        raise SystemExit(f"demo: {' '.join(command[1:4])} … ended with status {status}")


@contextmanager
def running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a command in a session of its own and leave none of its processes behind."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **options)
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[str], grace_s: float = 10) -> None:
    """Interrupt a process and its children; kill what is left."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(grace_s)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def heading(text: str) -> None:
    """Print what comes next."""
    CONSOLE.print(f"\n[bold]{text}[/bold]")


def interrupt(signum: int, frame: object) -> None:
    """Treat a termination like Ctrl-C, so that everything started is stopped."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("demo: interrupted")
