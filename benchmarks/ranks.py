"""Ranks: the processes of a benchmark that trains, one per device, each on one thread."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run_ranks(count: int, module: str, *arguments: str) -> None:
    """Run a module on a number of ranks to their end; raises ``CalledProcessError`` if one fails."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*launcher, "-m", module, *arguments], cwd=ROOT, env=environment, check=True)
