"""Real processes for the tests, none of which outlives its test."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
GRACE_S = 15


@dataclass(frozen=True)
class Finished:
    """A run that has ended, and what all its processes wrote."""

    returncode: int
    stdout: str
    stderr: str = ""

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def torchrun(ranks: int, module: str, *arguments: str, timeout_s: float = 150) -> Finished:
    """Run a module on a number of ranks, to its end or for a time."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    process = subprocess.Popen(
        [*command, "-m", module, *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    finally:
        if process.poll() is None:
            process.terminate()  # torchrun takes its ranks along
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
    return Finished(process.returncode, stdout, stderr)


def together(commands: Sequence[Sequence[str]], timeout_s: float = 120) -> list[Finished]:
    """Run Python with each list of arguments at once; none goes on when one takes too long."""
    processes = [
        subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for arguments in commands
    ]
    deadline = time.monotonic() + timeout_s
    try:
        outputs = [process.communicate(timeout=deadline - time.monotonic())[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [Finished(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]
