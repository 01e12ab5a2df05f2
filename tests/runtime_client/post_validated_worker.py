"""One rank of the post-validation tests: trains every trial in both modes and keeps everything that must be equal."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, optim
from torch.distributed.pipelining import PipelineStage

from runtime_client import PlanSchedule
from runtime_client.post_validated import Mode, PostValidatedOptimizer
from runtime_client.weights import master_weights
from tests.runtime_client.post_validated_trials import STEPS, Trial, trials
from zbplan.plan import Plan


class Run:
    """One rank's part of a training run, as a training script would write it."""

    def __init__(self, trial: Trial, mode: Mode, tied_group: dist.ProcessGroup) -> None:
        self.trial, self.mode, self.tied_group = trial, mode, tied_group
        self.rank = dist.get_rank()
        self.squares: list[tuple[float, float]] = []  # of all gradients of the rank, and of the tied one
        self.build()

    def build(self) -> None:
        trial, count = self.trial, self.trial.plan.requires.stages
        built = trial.stages(count)
        self.held = {index: built[index] for index in trial.plan.placement[self.rank]}
        self.last = count - 1 in self.held
        self.stages = [PipelineStage(module, index, count, torch.device("cpu")) for index, module in self.held.items()]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3) if trial.scaled_loss else None
        self.schedule = PlanSchedule(self.stages, trial.plan, self.loss)
        torch.manual_seed(self.rank)
        self.parameters = list({id(p): p for module in self.held.values() for p in module.parameters()}.values())
        masters = master_weights(self.parameters) if trial.masters else None
        stepped = list(masters.values()) if masters else self.parameters
        self.optimizer = PostValidatedOptimizer(
            trial.optimizer(stepped),
            self.schedule,
            group=None,
            mode=self.mode,
            masters=masters,
            tied=[self.held[count - 1][-1].weight] if trial.tied and self.last else [],
            loss_scaler=self.scaler,
            rollback_limit=trial.rollback_limit,
            timeout_s=60,
            **trial.options,
        )
        self.lr = optim.lr_scheduler.StepLR(self.optimizer.optimizer, 2, 0.7) if trial.schedule_lr else None

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        loss = self.trial.loss(output, target)
        return self.scaler.scale(loss) if self.scaler else loss

    def iterate(self, at: int) -> list[Tensor]:
        tokens, target = self.trial.batch(at)
        losses: list[Tensor] = []
        inputs = [tokens] if 0 in self.held else []
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.trial.autocast):
            self.schedule.step(*inputs, target=target if self.last else None, losses=losses)
        return losses

    def train(self) -> dict[str, Any]:
        losses, norms, rollbacks, evaluated = [], [], 0, []
        for step in range(STEPS):
            if self.trial.second_plan and step == self.trial.second_plan[0]:
                self.switch_to(self.trial.second_plan[1])
            for part in range(self.trial.iterations_per_step):
                losses += self.iterate(step * self.trial.iterations_per_step + part)
            self.trial.tamper(step, self.rank, [p.grad for p in self.parameters])
            self.reduce_tied()
            norms.append(self.optimizer.step())
            self.optimizer.zero_grad(set_to_none=self.trial.set_to_none)
            if self.lr:
                self.lr.step()
            if self.trial.read_on_rank_0 and self.rank == 0:
                self.held[0].state_dict()
            if step in self.trial.evaluated_after:
                evaluated.append(self.evaluate())
            if step in self.trial.saved_after:
                rollbacks += self.start_anew()
        pending = self.optimizer._pending is not None
        self.optimizer.finalize()
        return {
            "losses": losses,
            "norms": [norm.result() for norm in norms],
            "weights": [module.state_dict() for module in self.held.values()],
            "optimizer": self.optimizer.state_dict(),
            "scale": self.scaler.state_dict() if self.scaler else None,
            "buffers and random": [torch.get_rng_state(), list(self.buffers())],
            "evaluated": evaluated,
            "apart": {
                "rollbacks": rollbacks + self.optimizer.rollbacks,
                "pending": pending,
                "kept_share": self.optimizer.memory.kept_share,
                "mode": self.optimizer.mode,
                "squares": self.squares,
            },
        }

    def switch_to(self, plan: Plan) -> None:
        self.schedule = PlanSchedule(self.stages, plan, self.loss)
        self.optimizer.attach(self.schedule)

    def reduce_tied(self) -> None:
        """Give both copies of the tied weight the sum of their gradients."""
        if self.trial.tied and (0 in self.held or self.last):
            weight = self.held[0][0].weight if 0 in self.held else self.held[max(self.held)][-1].weight
            dist.all_reduce(weight.grad, group=self.tied_group)
            self.squares.append((_square(p.grad for p in self.parameters), _square([weight.grad])))

    def buffers(self) -> Iterator[Tensor]:
        for module in self.held.values():
            yield from module.buffers()

    def evaluate(self) -> Tensor:
        """What this rank's first stage makes of ones, as validation between iterations would ask it."""
        module = next(iter(self.held.values()))
        with torch.no_grad():
            x = torch.ones(2, 5, dtype=torch.long) if 0 in self.held else torch.ones(2, 5, 8)
            return module(x)

    def start_anew(self) -> int:
        """Save, and go on from what was saved with everything built again; return the rollbacks so far."""
        weights = [{k: v.clone() for k, v in module.state_dict().items()} for module in self.held.values()]
        optimizer = self.optimizer.state_dict()
        lr, random, rollbacks = self.lr and self.lr.state_dict(), torch.get_rng_state(), self.optimizer.rollbacks
        self.build()
        for module, state in zip(self.held.values(), weights, strict=True):
            module.load_state_dict(state)
        self.optimizer.load_state_dict(optimizer)
        if self.lr:
            self.lr.load_state_dict(lr)
        torch.set_rng_state(random)
        return rollbacks


def _square(gradients: Iterable[Tensor]) -> float:
    return float(sum(gradient.double().square().sum() for gradient in gradients))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    tied_group = dist.new_group([0, dist.get_world_size() - 1])
    kept = {}
    for name, trial in trials().items():
        with warnings.catch_warnings(record=True) as caught:
            kept[name] = {mode: Run(trial, mode, tied_group).train() for mode in ("synchronous", "post_validated")}
        kept[name]["post_validated"]["apart"]["warnings"] = [str(warning.message) for warning in caught]
    torch.save(kept, Path(sys.argv[1]) / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
