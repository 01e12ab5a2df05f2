from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_client.errors import TransferOrderError
from runtime_client.lowering import Action, lower
from runtime_client.transfers import check_transfers
from tests.runtime_client.plans import plan_of, random_plan, zb_h1
from tests.strategies import problems, random_orders
from zbplan.errors import DeadlockError
from zbplan.placement import devices_of, interleaved, linear, v_shape
from zbplan.problem import Problem


def actions_of(text: str) -> list[Action]:
    """Read actions such as ``0F0 0SEND_F0``."""
    return [Action(word[1:-1], int(word[0]), int(word[-1])) for word in text.split()]


def swapped(actions: list[Action], first: Action, second: Action) -> list[Action]:
    turned = {first: second, second: first}
    return [turned.get(action, action) for action in actions]


@settings(deadline=None, max_examples=80)
@given(problems(placements=("linear", "v", "interleaved"), limited=False), st.integers(0, 2**32))
def test_what_lowering_makes_is_proven(problem: Problem, seed: int) -> None:
    plan = plan_of(problem, random_orders(problem.instance(), seed))
    check_transfers(lower(plan), plan.placement)


@pytest.mark.parametrize("placement", [[[0, 1], [2, 3]], [[0, 3, 4], [1, 2, 5]], [[1], [0]], [[0, 2], [1]]], ids=str)
def test_custom_placements_are_proven(placement: list[list[int]]) -> None:
    for seed in range(5):
        plan = random_plan(placement, 4, seed)
        check_transfers(lower(plan), plan.placement)


def test_two_receives_of_a_pair_swapped_would_hand_over_the_wrong_tensor() -> None:
    actions = lower(random_plan(interleaved(2, 2), 4, seed=1))
    receives = [action for action in actions[1] if action.kind.startswith("RECV")]
    actions[1] = swapped(actions[1], receives[0], receives[1])
    with pytest.raises(TransferOrderError):
        check_transfers(actions, interleaved(2, 2))


def test_the_place_where_two_devices_differ_is_named() -> None:
    first = "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0BW0 0RECV_B1 0BW1"
    second = "1RECV_F1 1RECV_F0 1F0 1BW0 1SEND_B0 1F1 1BW1 1SEND_B1"
    with pytest.raises(
        TransferOrderError,
        match=r"devices 0 and 1, transfer 0 between them: found SEND_F\(stage 0, microbatch 0\) → .* on device 0 and "
        r"SEND_F\(stage 0, microbatch 1\)",
    ):
        check_transfers([actions_of(first), actions_of(second)], linear(2))


def test_forward_and_backward_between_two_devices_share_one_order() -> None:
    # Each direction alone is in order; on one queue, device 0 waits to receive while device 1 does.
    first = "0F0 0SEND_F0 0F1 0RECV_B0 0SEND_F1 0BW0 0RECV_B1 0BW1"
    second = "1RECV_F0 1F0 1RECV_F1 1BW0 1SEND_B0 1F1 1BW1 1SEND_B1"
    with pytest.raises(TransferOrderError, match="transfer 1 between them"):
        check_transfers([actions_of(first), actions_of(second)], linear(2))


def test_devices_that_wait_in_a_circle_are_named() -> None:
    # Every pair agrees about its order, but 0 sends on to 1, which sends on to 2, which sends on to 0.
    first = "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 3RECV_F0 3F0 3RECV_F1 3F1 3RECV_F2 3F2"
    second = "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 1RECV_F2 1F2 1SEND_F2"
    third = "2RECV_F0 2F0 2SEND_F0 2RECV_F1 2F1 2SEND_F1 2RECV_F2 2F2 2SEND_F2"
    with pytest.raises(DeadlockError) as caught:
        check_transfers([actions_of(text) for text in (first, second, third)], [[0, 3], [1], [2]])
    assert caught.value.waiting == (
        "device 0 at SEND_F(stage 0, microbatch 2)",
        "device 1 at SEND_F(stage 1, microbatch 1)",
        "device 2 at SEND_F(stage 2, microbatch 0)",
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("mutation", ["drop", "repeat", "swap with another of the pair", "give to another device"])
def test_every_mutation_of_the_transfers_is_refused(mutation: str, seed: int) -> None:
    rng = random.Random(seed)
    plan = random_plan(v_shape(3), 3, seed)
    actions = lower(plan)
    device = rng.randrange(3)
    peer = rng.choice([peer for peer in range(3) if abs(peer - device) == 1])
    pair = [at for at, action in enumerate(actions[device]) if peer_of(action) == peer]
    at, other = rng.sample(pair, 2)
    if mutation == "repeat":
        actions[device].insert(rng.randrange(len(actions[device])), actions[device][at])
    elif mutation == "swap with another of the pair":
        actions[device] = swapped(actions[device], actions[device][at], actions[device][other])
    else:
        action = actions[device].pop(at)
        if mutation == "give to another device":
            actions[peer].insert(rng.randrange(len(actions[peer])), action)
    with pytest.raises((TransferOrderError, DeadlockError)):
        check_transfers(actions, plan.placement)


def peer_of(action: Action) -> int | None:
    """Return the other device of an action's transfer, on the V of six stages."""
    step = {"SEND_F": 1, "RECV_F": -1, "SEND_B": -1, "RECV_B": 1}.get(action.kind)
    return None if step is None else devices_of(v_shape(3))[action.stage + step]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            "0SEND_F0 0F0",
            "1RECV_F0 1F0",
            r"found SEND_F\(stage 0.*needed F\(stage 0, microbatch 0\) before it",
        ),
        ("0F0 0SEND_F0", "1F0 1RECV_F0", r"found F\(stage 1.*needed RECV_F\(stage 1, microbatch 0\) before it"),
        ("0F0 0SEND_F0", "1F0", r"found F\(stage 1.*needed RECV_F\(stage 1, microbatch 0\) before it"),
        ("0F0", "1RECV_F0 1F0", r"device 0: found no SEND_F\(stage 0, microbatch 0\); needed it once"),
        ("0F0 0SEND_F0", "1RECV_F0 1F0 1W0", r"found W\(stage 1.*needed B\(stage 1, microbatch 0\) before it"),
        ("0F0 0SEND_F0 0F0", "1RECV_F0 1F0", r"position 2: found F\(stage 0, microbatch 0\) a second time"),
        ("0F0 0SEND_F0 1F0", "1RECV_F0", r"device 0, position 2: found F\(stage 1.*needed it on device 1"),
        ("0F0 0SEND_F0 0SEND_B0", "1RECV_F0 1F0", r"found SEND_B\(stage 0.*needed none"),
    ],
)
def test_each_way_of_being_wrong_is_named(first: str, second: str, message: str) -> None:
    with pytest.raises(TransferOrderError, match=message):
        check_transfers([actions_of(first), actions_of(second)], linear(2))


def test_a_large_plan_is_lowered_and_proven() -> None:
    plan = zb_h1(32, 128)
    actions = lower(plan)
    check_transfers(actions, plan.placement)
    assert sum(map(len, actions)) == 3 * 32 * 128 + 4 * 31 * 128
