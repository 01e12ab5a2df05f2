from __future__ import annotations

import re
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from runtime_client import (
    OptimizerUseError,
    PlanSchedule,
    PostValidatedOptimizer,
    master_weights,
    reference_optimizer_step,
    reference_step,
)
from tests.processes import together, torchrun
from tests.runtime_client.models import batch, mean_loss, on_one_device, text_stages
from tests.runtime_client.plans import plan_of, problem_of, random_plan
from tests.runtime_client.post_validated_data_parallel_worker import KINDS
from tests.runtime_client.post_validated_trials import RANKS, STEPS, Trial, trials
from zbplan.problem import Problem

Kept = dict[str, dict[str, dict[str, Any]]]
TRIALS = trials()


def run_ranks(module: str, folder: Path) -> list[Any]:
    """What each of four ranks kept."""
    run = torchrun(RANKS, f"tests.runtime_client.{module}", str(folder), timeout_s=400)
    assert run.returncode == 0, run.output
    return [torch.load(path, weights_only=False) for path in sorted(folder.glob("*.pt"))]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[Kept]:
    """All trials, run in one start of the processes."""
    return run_ranks("post_validated_worker", tmp_path_factory.mktemp("ranks"))


def bits(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number in nested lists and dictionaries, to the bit: NaN is equal to itself, and 0 is not -0."""
    if isinstance(value, Tensor):
        yield path, (value.dtype, tuple(value.shape), bytes(value.detach().flatten().view(torch.uint8).numpy()))
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from bits(inner, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for at, inner in enumerate(value):
            yield from bits(inner, f"{path}[{at}]")
    else:
        yield path, struct.pack("d", value) if isinstance(value, float) else value


def differences(found: dict[str, Any], needed: dict[str, Any]) -> list[str]:
    """Where two runs differ, beside what is kept apart."""
    ours, theirs = (dict(bits({key: value for key, value in run.items() if key != "apart"})) for run in (found, needed))
    return sorted(path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path))


@pytest.mark.parametrize("name", TRIALS)
def test_weights_moments_counters_and_losses_are_those_of_the_synchronous_step_to_the_bit(
    trained: list[Kept], name: str
) -> None:
    for kept in trained:
        assert differences(kept[name]["post_validated"], kept[name]["synchronous"]) == []


@pytest.mark.parametrize("name", TRIALS)
def test_every_rank_takes_back_just_the_steps_that_were_wrong(trained: list[Kept], name: str) -> None:
    assert [kept[name]["post_validated"]["apart"]["rollbacks"] for kept in trained] == [TRIALS[name].rollbacks] * RANKS
    assert [kept[name]["synchronous"]["apart"]["rollbacks"] for kept in trained] == [0] * RANKS


def test_a_rank_whose_own_gradients_ask_for_it_waits_and_the_others_do_not(trained: list[Kept]) -> None:
    def pending(name: str) -> list[bool]:
        return [kept[name]["post_validated"]["apart"]["pending"] for kept in trained]

    assert pending("no clip") == [True, True, True, True]
    assert pending("clip on all stages") == [False, False, False, False]
    assert pending("NaN on one stage") == [True, True, False, True]
    assert pending("NaN and no check") == [False, False, False, False]


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("no clip", 1 / 3),
        ("bfloat16 without masters", 1 / 3),
        ("bfloat16 with float32 masters", 0),
        ("Adam with AMSGrad", 1 / 4),
        ("SGD with momentum", 1 / 2),
    ],
)
def test_what_is_kept_is_one_copy_of_the_weights_at_most(trained: list[Kept], name: str, share: float) -> None:
    found = [kept[name]["post_validated"]["apart"]["kept_share"] for kept in trained]
    assert found == pytest.approx([share] * RANKS)


def test_all_ranks_go_over_to_synchronous_together_and_one_says_so(trained: list[Kept]) -> None:
    apart = [kept["too many steps wrong"]["post_validated"]["apart"] for kept in trained]
    assert [rank["mode"] for rank in apart] == ["synchronous"] * RANKS
    assert [len(rank["warnings"]) for rank in apart] == [1, 0, 0, 0]
    assert apart[0]["warnings"][0].startswith("6 of the last 6 optimizer steps had to be clipped or skipped after")
    assert [kept["every step wrong"]["post_validated"]["apart"]["mode"] for kept in trained] == [
        "post_validated"
    ] * RANKS


def test_no_other_trial_warns(trained: list[Kept]) -> None:
    warned = {name for kept in trained for name, modes in kept.items() if modes["post_validated"]["apart"]["warnings"]}
    assert warned == {"too many steps wrong"}


def in_one_process(trial: Trial) -> tuple[list[Tensor], list[float], list[nn.Module], optim.Optimizer]:
    """Train all stages by the reference: losses, norms, stages and their optimizer."""
    stages = trial.stages(trial.plan.requires.stages)
    parameters = list({id(p): p for stage in stages for p in stage.parameters()}.values())
    masters = master_weights(parameters) if trial.masters else None
    optimizer = trial.optimizer(list(masters.values()) if masters else parameters)
    losses, norms = [], []
    for step in range(STEPS):
        tokens, target = trial.batch(step)
        losses += reference_step(stages, trial.plan, trial.loss, tokens, target=target)
        for rank, held in enumerate(trial.plan.placement):
            own = {id(p): p.grad for stage in held for p in stages[stage].parameters()}
            trial.tamper(step, rank, list(own.values()))
        norms.append(reference_optimizer_step(optimizer, stages, masters=masters, **trial.options))
        for parameter in parameters:
            parameter.grad = None
    return losses, norms, stages, optimizer


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    "name",
    [
        "gradients as they come",
        "every step wrong",
        "inf-norm",
        "3-norm",
        "NaN on one stage",
        "bfloat16 with float32 masters",
        "V, tied on one device",
    ],
)
def test_norms_losses_and_weights_are_those_of_one_process_to_the_bit(trained: list[Kept], name: str) -> None:
    trial = TRIALS[name]
    losses, norms, stages, optimizer = in_one_process(trial)
    kept = [rank[name]["post_validated"] for rank in trained]
    holder = next(at for at, held in enumerate(trial.plan.placement) if len(stages) - 1 in held)
    found = {"losses": kept[holder]["losses"], "norms": [rank["norms"] for rank in kept]}
    assert differences(found, {"losses": losses, "norms": [norms] * RANKS}) == []
    for rank, held in enumerate(trial.plan.placement):
        needed = [stages[stage].state_dict() for stage in held]
        assert differences({"weights": kept[rank]["weights"]}, {"weights": needed}) == []
    counters = {float(state["step"]) for state in optimizer.state.values()}
    found_counters = {float(state["step"]) for rank in kept for state in rank["optimizer"]["state"].values()}
    assert found_counters == counters
    assert len(counters) == 1


def test_a_weight_tied_over_two_devices_is_counted_once(trained: list[Kept]) -> None:
    kept = [rank["tied on two devices"]["synchronous"] for rank in trained]
    first, last = kept[0]["apart"]["squares"], kept[-1]["apart"]["squares"]
    middle = 2 * 0.6**2
    for step in range(STEPS):
        (ours, tied), (theirs, again) = first[step], last[step]
        assert tied == again > 0
        assert kept[0]["norms"][step] ** 2 == pytest.approx(ours + middle + theirs - tied)


@pytest.fixture(scope="module")
def data_parallel(tmp_path_factory: pytest.TempPathFactory) -> list[Kept]:
    """Two stages on two ranks each, by each kind of data parallelism."""
    return run_ranks("post_validated_data_parallel_worker", tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("kind", KINDS)
def test_data_parallel_stages_train_like_the_synchronous_step(data_parallel: list[Kept], kind: str) -> None:
    for kept in data_parallel:
        found, needed = kept[kind]["post_validated"], kept[kind]["synchronous"]
        assert found["apart"] >= STEPS // 2
        assert found["norms"] == needed["norms"]
        torch.testing.assert_close(found["weights"], needed["weights"], rtol=1e-6, atol=0)
        torch.testing.assert_close(found["losses"], needed["losses"], rtol=1e-6, atol=0)


def test_replicas_and_shards_count_once_whatever_the_group(data_parallel: list[Kept]) -> None:
    norms = [kept[kind][mode]["norms"] for kept in data_parallel for kind in KINDS for mode in kept[kind]]
    for own in norms:
        assert own == pytest.approx(norms[0], rel=1e-5)


@pytest.mark.parametrize(
    ("end", "named"),
    [
        ("before its step, the others reading weights", "ValidationError: rank {}, while an optimizer step"),
        ("before its step, the others going on", "(ValidationError|StepError): rank {}, "),
        ("after its step", "(ValidationError|StepError): rank {}, "),
    ],
)
def test_a_rank_killed_while_a_validation_is_pending_ends_all_ranks_with_a_named_error(
    tmp_path: Path, end: str, named: str
) -> None:
    worker = ["-m", "tests.runtime_client.post_validated_dying_worker"]
    ranks = together([[*worker, str(rank), str(tmp_path / "meeting"), end] for rank in range(3)])
    assert ranks[1].returncode == -signal.SIGKILL
    for rank in (0, 2):
        assert ranks[rank].returncode == 1
        assert re.search(named.format(rank), ranks[rank].output), ranks[rank].output


def test_a_rank_that_does_not_come_to_its_step_ends_the_others_in_time(tmp_path: Path) -> None:
    worker = ["-m", "tests.runtime_client.post_validated_dying_worker"]
    ranks = together([[*worker, str(rank), str(tmp_path / "meeting"), "never"] for rank in range(3)])
    for rank in (0, 2):
        assert re.search("ValidationError: rank .* [Tt]imed out", ranks[rank].output), ranks[rank].output
        assert "needed the state of all 3 ranks: look for the one that failed first" in ranks[rank].output


def small(**options: Any) -> tuple[list[nn.Module], PlanSchedule, PostValidatedOptimizer]:
    """Two stages of one device, whose own gradients are all there are: every step is right."""
    stages = text_stages(2)
    schedule = PlanSchedule(on_one_device(stages), random_plan([[0, 1]], 4, 0), mean_loss)
    optimizer = optim.SGD(nn.ModuleList(stages).parameters(), lr=0.1)
    return stages, schedule, PostValidatedOptimizer(optimizer, schedule, group=None, **options)


def iterate(schedule: PlanSchedule) -> None:
    tokens, target = batch(8)
    schedule.step(tokens, target=target)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("planned", ["synchronous", "post_validated"])
def test_the_mode_is_that_of_the_plan_unless_it_is_asked_for(planned: str) -> None:
    asked = problem_of([[0, 1]], 4).canonical | {"optimizer": planned}
    problem = Problem.parse(asked)
    plan = plan_of(problem, random_plan([[0, 1]], 4, 0).orders())
    stages = text_stages(2)
    schedule = PlanSchedule(on_one_device(stages), plan, mean_loss)
    for mode in (None, "synchronous", "post_validated"):
        optimizer = optim.SGD(nn.ModuleList(stages).parameters(), lr=0.1)
        assert PostValidatedOptimizer(optimizer, schedule, group=None, mode=mode).mode == (mode or planned)


@pytest.mark.usefixtures("alone")
def test_gradients_stay_until_the_step_is_validated_and_are_cleared_then() -> None:
    stages, schedule, optimizer = small(mode="post_validated")
    iterate(schedule)
    optimizer.step()
    kept = stages[0][0].weight.grad
    optimizer.zero_grad()
    assert stages[0][0].weight.grad is kept
    optimizer.finalize()
    assert stages[0][0].weight.grad is None


@pytest.mark.usefixtures("alone")
def test_gradients_that_others_have_cleared_end_the_next_iteration() -> None:
    stages, schedule, optimizer = small(mode="post_validated")
    iterate(schedule)
    optimizer.step()
    stages[0].zero_grad()
    with pytest.raises(OptimizerUseError, match=r"clear them with zero_grad\(\) of the PostValidatedOptimizer"):
        iterate(schedule)


@pytest.mark.usefixtures("alone")
def test_a_schedule_of_other_modules_is_refused() -> None:
    _, _, optimizer = small()
    _, other, _ = small()
    with pytest.raises(
        OptimizerUseError, match=r"found a schedule of stages \[0, 1\], or of other modules; needed the"
    ):
        optimizer.attach(other)


@pytest.mark.usefixtures("alone")
def test_an_optimizer_of_other_weights_is_refused() -> None:
    _, schedule, _ = small()
    with pytest.raises(OptimizerUseError, match="that no stage of this rank has"):
        PostValidatedOptimizer(optim.SGD(text_stages(2)[0].parameters(), lr=0.1), schedule, group=None)
