"""Agreement: all ranks of a group go on together, or all raise the same named error."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from runtime_client.errors import JobMismatchError, PlanDigestError
from zbplan.errors import RankGoneError

DIGEST_BYTES = 32
FINDING_BYTES = 480
"""How much of a rank's finding the others get to see."""


def transport_device(group: dist.ProcessGroup | None) -> torch.device:
    """Return where the tensors of a group's collectives must lie."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@contextmanager
def together(doing: str, group: dist.ProcessGroup | None) -> Iterator[None]:
    """Run collectives of a group inside the block.

    Raises
    ------
    RankGoneError
        If one fails, most often because another rank is gone.
    """
    try:
        yield
    except RuntimeError as error:
        raise RankGoneError(dist.get_rank(group), doing, error) from error


def agree(content: bytes, findings: Sequence[str] = (), *, group: dist.ProcessGroup | None = None) -> None:
    """Return on every rank, or raise on every rank: a collective that every rank of the group must join.

    Parameters
    ----------
    content
        The plan as this rank has it; all ranks must have the same.
    findings
        What is wrong on this rank; with any, no rank goes on.

    Raises
    ------
    JobMismatchError
        With the findings of all ranks.
    PlanDigestError
        Naming the ranks whose content is not that of rank 0.
    RankGoneError
        If a rank does not join within the group's time-out.
    """
    with together("agreeing with the others", group):
        digests, said = _gather(hashlib.sha256(content).digest(), "; ".join(findings), group)
    wrong = [f"rank {rank}: {text}" for rank, text in enumerate(said) if text]
    if wrong:
        raise JobMismatchError(wrong)
    others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise PlanDigestError(
            f"found another plan on ranks {others[:8]} ({digests[others[0]].hex()[:12]}…) than on rank 0 "
            f"({digests[0].hex()[:12]}…); needed one plan on all ranks: fetch it with runtime_client.fetch"
        )


def _gather(digest: bytes, text: str, group: dist.ProcessGroup | None) -> tuple[list[bytes], list[str]]:
    """Return every rank's digest and text. Each sends the same number of bytes, so one all-gather is enough."""
    message = digest + text.encode()[:FINDING_BYTES].ljust(FINDING_BYTES, b"\0")
    mine = torch.frombuffer(bytearray(message), dtype=torch.uint8).to(transport_device(group))
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, mine, group=group)
    messages = [bytes(tensor.cpu().numpy()) for tensor in gathered]
    digests = [message[:DIGEST_BYTES] for message in messages]
    return digests, [message[DIGEST_BYTES:].rstrip(b"\0").decode(errors="replace") for message in messages]
