import pytest
import torch

from examples import gpt
from profiler import StagedModel


def test_ten_million_parameters_that_do_not_depend_on_the_cut() -> None:
    whole = gpt.stage(0, 1)
    cut = torch.nn.Sequential(*(layer for index in range(4) for layer in gpt.stage(index, 4)))
    assert sum(parameter.numel() for parameter in whole.parameters()) == pytest.approx(10e6, rel=0.05)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), cut.parameters(), strict=True))


def test_building_a_stage_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    gpt.stage(1, 4)
    assert torch.equal(torch.get_rng_state(), before)


def test_batches_are_text_with_the_byte_that_follows() -> None:
    tokens, target = gpt.batch(step=3, microbatches=2)
    assert tokens.shape == target.shape == (2 * gpt.MICROBATCH, gpt.SEQUENCE)
    assert torch.equal(tokens[:, 1:], target[:, :-1])
    assert bytes(tokens[0].tolist()) in gpt.TEXT.read_bytes()
    assert torch.equal(tokens, gpt.batch(step=3, microbatches=2)[0])
    assert not torch.equal(tokens, gpt.batch(step=4, microbatches=2)[0])


def test_a_step_of_training_lowers_the_loss() -> None:
    (tokens, target), model = gpt.batch(step=0, microbatches=1), gpt.stage(0, 1)
    optimizer = gpt.optimizer(list(model.parameters()))
    first = gpt.loss(model(tokens), target)
    first.backward()
    optimizer.step()
    assert gpt.loss(model(tokens), target) < first


@pytest.mark.parametrize("count", [0, 9])
def test_more_stages_than_blocks_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"found {count} stages; needed 1 to 8"):
        gpt.stage(0, count)


def test_the_profiler_gets_all_stages_and_one_microbatch() -> None:
    model = gpt.staged_model(4)
    assert isinstance(model, StagedModel)
    assert len(model.stages) == 4
    assert model.microbatch[0].shape == model.target.shape == (gpt.MICROBATCH, gpt.SEQUENCE)
    assert sum(parameter.numel() for parameter in model.build(3).parameters()) > 0


def test_the_profiler_gets_all_layers() -> None:
    model = gpt.layered_model()
    assert len(model.layers) == gpt.BLOCKS + 2
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            model.cut([0, 5]).build(1).parameters(),
            torch.nn.Sequential(*map(gpt.layer, range(5, 10))).parameters(),
            strict=True,
        )
    )
