from __future__ import annotations

import pytest

from runtime_client.gradient_state import GradientState
from runtime_client.validation import Validation

pytestmark = pytest.mark.usefixtures("alone")


def test_a_rank_alone_counts_all_that_it_holds_and_speaks_for_all() -> None:
    validation = Validation(None, [0, 3], timeout_s=10)
    assert validation.first_held == {0, 3}
    assert validation.is_first_rank


def test_states_of_several_exchanges_do_not_mix() -> None:
    validation = Validation(None, [0, 3], timeout_s=10)
    said = [GradientState({0: float(at), 3: 0.5}, finite=at % 2 == 0) for at in range(5)]
    exchanges = [validation.begin(state) for state in said]
    for exchange, state in reversed(list(zip(exchanges, said, strict=True))):
        assert exchange.states() == [state]
        assert exchange.states() is exchange.states()


def test_two_validations_of_one_group_do_not_mix() -> None:
    first, second = (Validation(None, [0], timeout_s=10) for _ in range(2))
    ours, theirs = GradientState({0: 1.0}, finite=True), GradientState({0: 2.0}, finite=True)
    exchanges = first.begin(ours), second.begin(theirs)
    assert [exchange.states() for exchange in exchanges] == [[ours], [theirs]]
