"""The runtime client: gets a plan onto every rank and trains with it on torch.distributed.pipelining."""

from runtime_client.errors import FetchError, JobMismatchError, OpError, PlanDigestError, StepError, TransferOrderError
from runtime_client.fetch import broadcast, fetch
from runtime_client.reference import reference_step
from runtime_client.schedule import PlanSchedule
from runtime_client.service import PlanSoFarWarning
from runtime_client.weight_grad_store import split

__all__ = [
    "FetchError",
    "JobMismatchError",
    "OpError",
    "PlanDigestError",
    "PlanSchedule",
    "PlanSoFarWarning",
    "StepError",
    "TransferOrderError",
    "broadcast",
    "fetch",
    "reference_step",
    "split",
]
