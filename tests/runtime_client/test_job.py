from __future__ import annotations

import pytest
import torch
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel

from runtime_client import JobMismatchError, PlanSchedule
from runtime_client.job import batch_findings, job_findings
from tests.runtime_client.models import batch, mean_loss, text_stages
from tests.runtime_client.plans import random_plan
from zbplan.errors import InvalidPlanError
from zbplan.placement import v_shape
from zbplan.plan import Plan

pytestmark = pytest.mark.usefixtures("alone")


def stages_of(count: int, held: list[int] | None = None) -> list[PipelineStage]:
    built = text_stages(count)
    return [PipelineStage(built[at], at, count, torch.device("cpu")) for at in held or range(count)]


def plan(microbatches: int = 4) -> Plan:
    return random_plan([[0, 1]], microbatches, 0)


def test_a_job_that_fits_has_no_findings() -> None:
    assert job_findings(stages_of(2), plan(), 4) == []
    assert job_findings(stages_of(2)[::-1], plan(), None) == []


def test_a_plan_for_more_devices_than_ranks() -> None:
    assert job_findings(stages_of(2), random_plan(v_shape(2), 4, 0), None) == [
        "found 1 ranks in the pipeline's group; needed 2, one per device"
    ]


def test_a_plan_for_another_number_of_stages() -> None:
    assert job_findings(stages_of(3), plan(), None) == ["found stages of a pipeline of 3; needed 2 stages"]


def test_stages_that_the_plan_places_elsewhere() -> None:
    (finding,) = job_findings(stages_of(2, held=[1]), plan(), None)
    assert finding.startswith("found stages [1]; needed [0, 1]: build those here")


def test_a_plan_for_another_number_of_microbatches() -> None:
    (finding,) = job_findings(stages_of(2), plan(4), 8)
    assert finding == "found 8 microbatches; needed 4, or a plan for 8"


def test_a_plan_that_cuts_the_layers_needs_stages_of_that_cut() -> None:
    found, starts = plan(), [0, 3]
    cut = found.model_copy(update={"requires": found.requires.model_copy(update={"starts": starts})})
    assert job_findings(stages_of(2), cut, None, starts=(0, 3)) == []
    (finding,) = job_findings(stages_of(2), cut, None, starts=[0, 2])
    assert finding.startswith("found stages that begin with layers [0, 2]; needed [0, 3], as the plan cuts the model")
    with pytest.raises(JobMismatchError, match="begin with layers that nobody told; needed"):
        PlanSchedule(stages_of(2), cut, mean_loss)


def test_a_plan_measured_with_a_split_that_this_runtime_does_not_make() -> None:
    native = random_plan([[0, 1]], 4, 0, engine_mode="native_split")
    (finding,) = job_findings(stages_of(2), native, None)
    assert finding == "found a plan for engine mode 'native_split'; needed one of weight_grad_store, fused"


def test_ddp_is_refused_since_it_would_average_too_early() -> None:
    stages = stages_of(2)
    stages[1].submod = DistributedDataParallel(stages[1].submod)
    (finding,) = job_findings(stages, plan(), None)
    assert finding.startswith("stage 1 is wrapped in DistributedDataParallel")


def test_what_does_not_fit_is_an_error_that_names_the_rank() -> None:
    with pytest.raises(JobMismatchError, match="the plan does not fit the job: rank 0: found 8 microbatches; needed 4"):
        PlanSchedule(stages_of(2), plan(4), mean_loss, microbatches=8)


def test_an_illegal_plan_is_refused() -> None:
    ops = plan().devices[0]
    turned = ops.model_copy(update={"kind": ops.kind[::-1]})
    with pytest.raises(InvalidPlanError):
        PlanSchedule(stages_of(2), plan().model_copy(update={"devices": [turned]}), mean_loss)


@pytest.mark.parametrize("rows", [0, 3, 10])
def test_a_batch_that_cannot_be_cut_in_equal_microbatches(rows: int) -> None:
    tokens, target = batch(rows)
    with pytest.raises(JobMismatchError) as caught:
        PlanSchedule(stages_of(2), plan(4), mean_loss).step(tokens, target=target)
    assert caught.value.findings == tuple(
        f"found {name} with {rows} rows; needed a multiple of the plan's 4 microbatches"
        for name in ("args[0]", "target")
    )


def test_a_batch_without_target() -> None:
    with pytest.raises(JobMismatchError, match="found no target; needed one on the rank that holds the last stage"):
        PlanSchedule(stages_of(2), plan(4), mean_loss).step(batch(8)[0])


def test_only_tensors_with_rows_are_cut() -> None:
    values = {"scale": torch.tensor(2.0), "flag": True, "nothing": None, "rows": torch.zeros(8, 3)}
    assert batch_findings(values, 4) == []
