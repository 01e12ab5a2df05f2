"""One of two ranks that ask the example for a plan of three stages, one per device."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from examples.switch_midrun import plan_for
from zbplan.errors import InvalidInputError
from zbplan.profile import Profile


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    times = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "t_comm_ms": 0, "m_b_bytes": 1, "m_w_bytes": 1}
    try:
        plan_for(Profile.parse({"stages": 3, **times}), service=None)
    except InvalidInputError as error:
        print(f"rank {dist.get_rank()} ends: {error}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
