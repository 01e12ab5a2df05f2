from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from runtime_client.weight_grad_store import WeightGradStore, deferred_parameters, split
from tests.older_torch import without_greetings
from tests.runtime_client.models import Conv1D, batch, mean_loss, text_stages


class Applied(nn.Module):
    """One Linear, applied a number of times."""

    def __init__(self, times: int, *, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6, bias=bias)
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = torch.tanh(self.linear(x))
        return x


class Checkpointed(nn.Module):
    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.before, self.use_reentrant = nn.Linear(6, 6), use_reentrant
        self.inner = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 6))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, self.before(x), use_reentrant=self.use_reentrant)


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.Linear(9, 6, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.inner(x)


class Transformed(nn.Module):
    """Runs Linears inside torch.func's transformations, and one outside of them."""

    def __init__(self) -> None:
        super().__init__()
        self.mapped, self.differentiated, self.plain = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        mapped = torch.func.vmap(self.mapped)(x.reshape(-1, 6)).view_as(x)
        return mapped + torch.func.grad(lambda z: torch.tanh(self.differentiated(z)).sum())(x) + self.plain(x)


class FrozenWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias_only, self.frozen, self.both = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.bias_only.weight.requires_grad_(False)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.both(self.frozen(self.bias_only(x)))


class FrozenBias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.linear.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(6, 6),
    "no bias": lambda: nn.Linear(6, 6, bias=False),
    "used twice": lambda: Applied(2),
    "used three times, no bias": lambda: Applied(3, bias=False),
    "frozen weights": FrozenWeight,
    "frozen bias": FrozenBias,
    "norms between": lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6)),
    "recomputed": lambda: Checkpointed(use_reentrant=False),
    "recomputed, reentrant": lambda: Checkpointed(use_reentrant=True),
    "written to in place": lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(inplace=True), nn.Linear(9, 6)),
    "conv1d, written to in place": lambda: nn.Sequential(Conv1D(9, 6), nn.ReLU(inplace=True), Conv1D(6, 9)),
    "conv1d": lambda: nn.Sequential(Conv1D(9, 6), nn.GELU(), Conv1D(6, 9)),
    "conv1d in bfloat16": lambda: nn.Sequential(Conv1D(9, 6), nn.GELU(), Conv1D(6, 9)).bfloat16(),
    "bfloat16": lambda: nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 6)).bfloat16(),
    "bfloat16 autocast": Autocast,
    "transformed": Transformed,
    "parametrized": lambda: parametrizations.weight_norm(nn.Linear(6, 6)),
}
SHAPES = [(5, 6), (3, 5, 6), (2, 3, 5, 6), (6,)]


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def assert_same_bits(found: dict[str, Tensor | None], needed: dict[str, Tensor | None]) -> None:
    assert {name for name, grad in found.items() if grad is None} == {
        name for name, grad in needed.items() if grad is None
    }
    assert [name for name, grad in found.items() if grad is not None and not torch.equal(grad, needed[name])] == []


@pytest.mark.parametrize("with_input_gradient", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_b_and_w_give_the_bits_of_autograd(model: str, shape: tuple[int, ...], with_input_gradient: bool) -> None:
    torch.manual_seed(0)
    plain = MODELS[model]()
    deferred = copy.deepcopy(plain)
    take = split(deferred)
    for _ in range(3):
        x = torch.randn(shape, dtype=torch.bfloat16 if model.endswith("in bfloat16") or model == "bfloat16" else None)
        inputs = [x.clone().requires_grad_(with_input_gradient) for _ in range(2)]
        outputs = [module(given) for module, given in zip((plain, deferred), inputs, strict=True)]
        assert torch.equal(*outputs)
        dy = torch.randn_like(outputs[0])
        for output in outputs:
            output.backward(dy)
        take()()
        if with_input_gradient:
            assert torch.equal(inputs[0].grad, inputs[1].grad)
    assert_same_bits(gradients(deferred), gradients(plain))


def test_gradients_are_fp32_under_bfloat16_autocast() -> None:
    module = Autocast()
    take = split(module)
    module(torch.randn(5, 6)).float().sum().backward()
    take()()
    assert {gradient.dtype for gradient in gradients(module).values()} == {torch.float32}


def test_autocast_leaves_float64_alone_as_it_does_without_a_store() -> None:
    plain = Autocast().double()
    deferred = copy.deepcopy(plain)
    take = split(deferred)
    x = torch.randn(5, 6, dtype=torch.float64)
    plain(x).sum().backward()
    deferred(x).sum().backward()
    take()()
    assert_same_bits(gradients(deferred), gradients(plain))


def test_a_weight_of_the_name_conv1d_that_is_used_otherwise_does_not_wait() -> None:
    class Scaled(Conv1D):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    Scaled.__name__ = "Conv1D"
    scaled, cleared = Scaled(9, 6), Scaled(9, 6)
    nn.init.zeros_(cleared.weight)
    nn.init.zeros_(cleared.bias)
    assert deferred_parameters(nn.ModuleList([scaled, cleared])) == []
    assert len(deferred_parameters(Conv1D(9, 6))) == 2


Hook = Callable[[nn.Parameter, list[Tensor]], object]
HOOKS: dict[str, Hook] = {
    "on the tensor": lambda weight, seen: weight.register_hook(lambda gradient: seen.append(gradient.clone())),
    "after accumulation": lambda weight, seen: weight.register_post_accumulate_grad_hook(
        lambda parameter: seen.append(parameter.grad.clone())
    ),
}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_hook_sees_the_gradient_as_it_does_without_a_store(hook: str, name: str) -> None:
    plain, seen = nn.Linear(6, 4), ([], [])
    deferred = copy.deepcopy(plain)
    take = split(deferred)
    for module, kept in zip((plain, deferred), seen, strict=True):
        HOOKS[hook](getattr(module, name), kept)
    x = torch.randn(5, 6)
    for module in (plain, deferred):
        module(x).sum().backward()
    take()()
    assert len(seen[0]) == len(seen[1]) == 1
    assert torch.equal(seen[0][0], seen[1][0])
    assert_same_bits(gradients(deferred), gradients(plain))


def test_a_backward_through_a_backward_is_refused() -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.Tanh())
    split(module)
    x = torch.randn(5, 6, requires_grad=True)
    with pytest.raises(RuntimeError, match="found a backward through a backward; needed one without create_graph"):
        torch.autograd.grad(module(x).sum(), x, create_graph=True)


def test_b_leaves_the_gradients_of_linears_to_w_and_makes_all_others() -> None:
    module = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 4))
    take = split(module)
    module(torch.randn(5, 6)).sum().backward()
    assert {name for name, gradient in gradients(module).items() if gradient is not None} == {"0.weight", "0.bias"}
    take()()
    assert all(gradient is not None for gradient in gradients(module).values())


def test_each_w_adds_its_own_microbatch_in_any_order() -> None:
    module = nn.Linear(6, 4, bias=False)
    take = split(module)
    x, later = torch.randn(2, 5, 6), []
    for microbatch in x:
        module(microbatch).sum().backward()
        later.append(take())
    later[1]()
    assert torch.equal(module.weight.grad, torch.ones(4, 5) @ x[1])
    later[0]()
    assert torch.equal(module.weight.grad, torch.ones(4, 5) @ x[1] + torch.ones(4, 5) @ x[0])


def test_w_frees_what_b_queued_even_while_the_function_lives() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    take = split(module)
    x = torch.randn(5, 6)
    module(x).sum().backward()
    alive = weakref.ref(x.untyped_storage())
    del x
    run_weights = take()
    gc.collect()
    assert alive() is not None
    run_weights()
    assert alive() is None


def test_what_waits_for_w_holds_nothing_that_w_does_not_need() -> None:
    module = nn.Sequential(nn.Tanh(), nn.Linear(6, 6))
    take = split(module)
    x = torch.randn(5, 6, requires_grad=True)
    module(x).sum().backward()
    alive = weakref.ref(x)
    del x
    run_weights = take()
    gc.collect()
    assert alive() is None
    run_weights()


def test_a_module_that_is_not_recorded_is_a_plain_module() -> None:
    module, store = nn.Linear(6, 4), WeightGradStore()
    store.attach(module)
    x = torch.randn(5, 6)
    module(x).sum().backward()
    assert torch.equal(module.weight.grad, torch.ones(4, 5) @ x)
    store.take()()
    assert torch.equal(module.weight.grad, torch.ones(4, 5) @ x)
    with torch.no_grad():
        assert not module(x).requires_grad


def test_recording_ends_with_its_block_even_when_the_block_fails() -> None:
    module, store = nn.Linear(6, 4), WeightGradStore()
    store.attach(module)
    with pytest.raises(RuntimeError, match="shape"), store.recording():
        module(torch.randn(5, 6)).backward(torch.zeros(1))
    with store.recording():
        module(torch.randn(5, 6)).sum().backward()
    store.discard()
    store.take()()
    assert module.weight.grad is None
    module(torch.randn(5, 6)).sum().backward()
    assert module.weight.grad is not None


def test_a_second_store_takes_over_from_the_first() -> None:
    module, first, second = nn.Linear(6, 4), WeightGradStore(), WeightGradStore()
    first.attach(module)
    second.attach(module)
    with second.recording():
        module(torch.randn(5, 6)).sum().backward()
    first.take()()
    assert module.weight.grad is None
    second.take()()
    assert module.weight.grad is not None


def test_a_linear_with_a_forward_of_its_own_keeps_it() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    module = nn.Sequential(Doubled(6, 6), nn.Linear(6, 6))
    assert list(map(id, deferred_parameters(module))) == list(map(id, module[1].parameters()))
    split(module)
    module(torch.randn(5, 6)).sum().backward()
    assert module[0].weight.grad is not None


def test_what_is_frozen_or_computed_does_not_wait() -> None:
    module = nn.Sequential(FrozenWeight(), FrozenBias(), parametrizations.weight_norm(nn.Linear(6, 6)))
    waiting = [*module[0].both.parameters(), module[1].linear.weight]
    assert list(map(id, deferred_parameters(module))) == list(map(id, waiting))


def test_parameters_and_state_dict_stay_as_they_are() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6))
    before = {name: id(parameter) for name, parameter in module.named_parameters()}
    keys = list(module.state_dict())
    split(module)
    assert {name: id(parameter) for name, parameter in module.named_parameters()} == before
    assert list(module.state_dict()) == keys


def test_a_copy_of_an_attached_module_gives_gradients_to_itself() -> None:
    module, store = nn.Linear(6, 4), WeightGradStore()
    store.attach(module)
    copied = copy.deepcopy(module)
    copied(torch.randn(5, 6)).sum().backward()
    assert module.weight.grad is None
    assert copied.weight.grad is not None


@pytest.mark.usefixtures("alone")
def test_nothing_of_torchs_shape_inference_is_in_the_gradients_of_the_first_step() -> None:
    stages, plain, (tokens, target) = text_stages(2), text_stages(2), batch(8)
    cpu = torch.device("cpu")
    built = [PipelineStage(module, at, 2, cpu, dw_builder=split(module)) for at, module in enumerate(stages)]
    ScheduleInterleavedZeroBubble(without_greetings(built), 4, loss_fn=mean_loss).step(tokens, target=target)
    mean_loss(nn.Sequential(*plain)(tokens), target).backward()
    found, needed = (nn.ModuleList(modules).parameters() for modules in (stages, plain))
    for parameter, whole in zip(found, needed, strict=True):
        torch.testing.assert_close(parameter.grad, whole.grad)


class Positioned(nn.Module):
    """A Linear whose output is added to a view of a parameter: with one row, the gradient of both is one tensor."""

    def __init__(self, view: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.position, self.view = nn.Linear(6, 6), nn.Parameter(torch.randn(3, 6)), view

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.view(self.position)


@pytest.mark.parametrize("view", [lambda position: position[None], lambda position: position.view(1, 3, 6)])
def test_a_gradient_made_in_b_is_not_added_to_a_weight_gradient_that_waits(view: Callable[[Tensor], Tensor]) -> None:
    plain = Positioned(view)
    deferred = copy.deepcopy(plain)
    store = WeightGradStore(recording=True)
    store.attach(deferred)
    weights = []
    for _ in range(3):
        x, gradient = torch.randn(1, 3, 6), torch.randn(1, 3, 6)
        plain(x).backward(gradient.clone())
        deferred(x).backward(gradient.clone())
        weights.append(store.take())
    for run in weights:
        run()
    for (name, wanted), found in zip(plain.named_parameters(), deferred.parameters(), strict=True):
        assert wanted.grad is not None
        assert found.grad is not None
        assert torch.equal(wanted.grad, found.grad), name


def test_an_input_that_is_written_to_before_w_is_named() -> None:
    linear = nn.Linear(6, 4)
    store = WeightGradStore(recording=True)
    store.attach(linear)
    x = torch.randn(2, 6)
    linear(x).sum().backward()
    x.add_(1)
    with pytest.raises(RuntimeError, match=r"shape \(4, 6\) changed in place between B and W"):
        store.take()()
