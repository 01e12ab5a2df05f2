import pytest
from torch import nn

from profiler.errors import MeasurementError
from profiler.model import StagedModel, load_function, load_model
from tests.profiler import emulated


def test_a_factory_is_called_with_the_number_of_stages() -> None:
    model = load_model("tests.profiler.emulated:staged_model", 3)
    assert isinstance(model, StagedModel)
    assert len(model.stages) == 3


def test_a_stage_is_a_module_or_a_function_that_builds_it() -> None:
    module = nn.Linear(1, 1)
    model = emulated.model([module, lambda: nn.Linear(2, 2)])
    assert model.build(0) is module
    assert model.build(1).in_features == 2


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("gpt", "found 'gpt'; needed module:function"),
        ("no_such_module:make", "no_such_module:make: found ModuleNotFoundError"),
        (
            "tests.profiler.emulated:make",
            "found AttributeError: module 'tests.profiler.emulated' has no attribute 'make'",
        ),
        ("tests.profiler.emulated:WIDTH", "found a int; needed a function"),
    ],
)
def test_an_entry_that_names_no_function_is_refused(entry: str, complaint: str) -> None:
    with pytest.raises(MeasurementError, match=complaint):
        load_function(entry)


@pytest.mark.parametrize(
    ("factory", "complaint"),
    [
        ("tests.profiler.emulated:Emulated", r"Emulated\(2\): found TypeError"),
        ("tests.profiler.emulated:sgd", r"sgd\(2\): found TypeError"),
        ("tests.profiler.test_model:too_few", r"too_few\(2\): found 1 stages; needed 2"),
        ("tests.profiler.test_model:not_a_model", "found a list; needed a profiler.StagedModel"),
    ],
)
def test_a_factory_that_returns_something_else_is_refused(factory: str, complaint: str) -> None:
    with pytest.raises(MeasurementError, match=complaint):
        load_model(factory, 2)


def too_few(count: int) -> StagedModel:
    return emulated.staged_model(count - 1)


def not_a_model(count: int) -> list[nn.Module]:
    return [nn.Linear(1, 1)] * count
