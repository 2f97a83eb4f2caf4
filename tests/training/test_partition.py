"""A module in stages equals the whole module, forward and backward; and its partition."""

from __future__ import annotations

import copy
import os
import signal
from itertools import combinations_with_replacement, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from neuraxis.comm import DistributedContext
from neuraxis.errors import CheckpointError, InvalidArgument, ModelMismatch, PeerLost, StepInterrupted
from neuraxis.training import Capacity, Checkpointer, Pipeline, partition
from neuraxis.training.pipeline.planning import Unit, cut_by_capacity, fastest_stages
from neuraxis.training.pipeline.rank_chain import schedule_passes
from tests.ranks import RankGroup
from tests.ranks.checks import Checks
from tests.ranks.processes import Ranks, await_mark, mark, run_ranks

TOLERANCE = 1e-12
RANK_GROUPS = [("shm", 2), ("shm", 3), ("gloo", 3), ("mpi", 2)]
on_rank_groups = pytest.mark.parametrize(
    "rank_group", RANK_GROUPS, indirect=True, ids=["shm-2", "shm-3", "gloo-3", "mpi-2"]
)


# --- modules ----------------------------------------------------------------------------------------------------


class Skipping(nn.Module):
    """Values that are used further down, a parameter and a buffer of its own, a number that crosses, a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.begin = nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6)))
        self.blocks = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 6))
        self.register_buffer("shift", torch.linspace(-1.0, 1.0, 6))
        self.never_used = nn.Linear(2, 2)
        self.squash = nn.Tanh()  # in several stages
        self.end = nn.Linear(6, 3)

    def forward(self, x: Tensor, weight: Tensor | None = None) -> dict[str, Tensor]:
        first = self.begin(x) * self.scale
        x, rows = first, first.shape[0]
        for block in self.blocks:
            x = self.squash(block(x)) + self.shift * self.scale
        return {"result": self.end((x + first).reshape(rows, -1)), "first": first}


class Tied(nn.Module):
    """The weights of the first unit are used once more at the end; two units share theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.norm = nn.LayerNorm(4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(torch.relu(self.two(torch.relu(self.one(self.embedding(tokens))))))
        return functional.linear(x, self.embedding.weight)


class Frozen(nn.Sequential):
    """A frozen beginning, an LSTM whose output is a tuple, and a unit that decides by values."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.Tanh(), nn.LSTM(4, 4, batch_first=True), FirstOfTwo(), nn.Linear(4, 3))
        self[0].requires_grad_(False)


class FirstOfTwo(nn.Module):
    def forward(self, both: tuple[Tensor, Any]) -> Tensor:
        return both[0] * 2 if both[0].sum() > 0 else both[0]


def chain() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 3)
    )


def made(name: str, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    kinds = {"chain": chain, "skipping": Skipping, "tied": Tied, "frozen": Frozen}
    module: nn.Module = kinds[name]().double()
    return module


def batch(name: str, rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows + 1)
    if name == "tied":
        return torch.randint(0, 7, (rows,), generator=generator), torch.randint(0, 7, (rows,), generator=generator)
    shape = (rows, 5, 4) if name == "frozen" else (rows, 4)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x, torch.randn((*shape[:-1], 3), generator=generator, dtype=torch.float64)


def loss_of(output: Any, target: Tensor) -> Tensor:
    if isinstance(output, dict):
        return functional.mse_loss(output["result"], target) + 0.1 * output["first"].square().mean()
    if not target.is_floating_point():
        return functional.cross_entropy(output, target)
    return functional.mse_loss(output, target)


def compare(
    checks: Checks, pipeline: Pipeline, whole: nn.Module, name: str, rows: int, first: bool, last: bool
) -> None:
    """One batch through both: output, loss, gradients of what this process has."""
    x, y = batch(name, rows)
    output, expected = pipeline(x if first else None), whole(x)
    pairs = [(output, expected)] if isinstance(expected, Tensor) else [(output[key], expected[key]) for key in expected]
    for got, wanted in pairs:
        checks.equal(got.shape, wanted.shape, "shape")
        checks.equal(bool((got - wanted).abs().le(TOLERANCE).all()), True, "output")
    loss = pipeline.backward_step((x,) if first else None, y if last else None, loss_of)
    wanted_loss = loss_of(whole(x), y)
    wanted_loss.backward()
    checks.equal(abs(loss.item() - wanted_loss.item()) < TOLERANCE, True, "loss")
    gradients = dict(whole.named_parameters(remove_duplicate=False))
    for parameter_name, parameter in pipeline.stage.named_parameters():
        wanted_gradient = gradients[parameter_name].grad
        if wanted_gradient is None or parameter.grad is None:
            checks.equal(parameter.grad is wanted_gradient, True, f"gradient of {parameter_name}")
        else:
            difference = (parameter.grad - wanted_gradient).abs().max().item()
            checks.equal(difference < TOLERANCE, True, f"gradient of {parameter_name} ({difference})")


# --- on ranks ---------------------------------------------------------------------------------------------------


def equals_the_whole(context: Any, name: str, schedule: Any) -> list[str]:
    checks = Checks(context.rank)
    size = context.world_size
    whole = made(name)
    own = made(name, seed=1 if context.rank == 0 else 100 + context.rank)  # rank 0's values are taken
    pipeline = partition(own, ranks=context.world, by="even", micro_batches=4, schedule=schedule)
    checks.equal(len(pipeline.ranks), size, "stages")
    for rows in (8, 11, 3, 1):
        checks(name, schedule, rows)
        compare(checks, pipeline, whole, name, rows, context.rank == 0, context.rank == size - 1)
    for norm_type, most in ((float("inf"), 1e9), (2.0, 0.5)):
        norm = pipeline.clip_grad_norm_(most, norm_type)
        wanted = nn.utils.clip_grad_norm_(whole.parameters(), most, norm_type)
        checks.equal(abs(norm.item() - wanted.item()) < TOLERANCE, True, f"norm {norm_type}: {norm}, {wanted}")
    optimizer = torch.optim.SGD(pipeline.parameters(), 0.1)
    optimizer.step()
    torch.optim.SGD(whole.parameters(), 0.1).step()
    state, expected = pipeline.full_state_dict(), whole.state_dict()
    checks.equal(list(state), list(expected), "names")
    for key, value in expected.items():
        checks.equal(bool((state[key] - value).abs().le(TOLERANCE).all()), True, key)
    pipeline.load_full_state_dict({key: value + 1 for key, value in expected.items()})
    for key, value in pipeline.full_state_dict().items():
        checks.equal(bool((value - expected[key] - 1).abs().le(TOLERANCE).all()), True, f"loaded {key}")
    return checks.failures


@on_rank_groups
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("name", ["chain", "skipping", "tied", "frozen"])
def test_it_equals_the_whole_module(rank_group: RankGroup, name: str, schedule: str) -> None:
    rank_group.check(equals_the_whole, name, schedule)


def left_out(context: Any) -> list[str]:
    """A rank that is far too slow gets nothing, and the others go on without it."""
    checks = Checks(context.rank)
    speeds = [2e9, 1.0, 1e9]
    capacities = [Capacity(rank, speed, 2**40) for rank, speed in enumerate(speeds)]
    pipeline = partition(made("chain"), ranks=context.world, capacities=capacities)
    checks.equal(pipeline.ranks, (0, 2))
    compare(checks, pipeline, made("chain"), "chain", 9, context.rank == 0, context.rank == 2)
    torch.optim.SGD(pipeline.parameters(), 0.1).step()  # also where there is nothing to learn
    parameters = sum(parameter.numel() for parameter in pipeline.stage.parameters())
    checks.equal(parameters > 0, context.rank != 1, "parameters")
    return checks.failures


@pytest.mark.parametrize("rank_group", [("shm", 3)], indirect=True, ids=["shm-3"])
def test_a_rank_that_would_hold_up_the_others_has_no_stage(rank_group: RankGroup) -> None:
    rank_group.check(left_out)


def measured(context: Any) -> list[str]:
    """With all measured, every rank has the same plan, nothing of the module has changed, and it still is right."""
    checks = Checks(context.rank)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)).double()
    before = copy.deepcopy(module.state_dict())
    state = torch.get_rng_state()
    pipeline = partition(module, ranks=context.world, example=batch("chain", 12)[0], micro_batches=3)
    checks.same(torch.get_rng_state(), state, "random state")
    if context.rank == 0:
        for name, value in pipeline.stage.state_dict().items():
            checks.same(value, before[name], name)
    for capacity in pipeline.capacities:
        checks.equal(capacity.operations_per_s > 1e6 and capacity.memory_bytes > 2**20, True, str(capacity))
    plans: list[Any] = [None] * context.world_size
    context.world.all_gather_object(plans, [list(pipeline.cuts), list(pipeline.ranks), len(pipeline.capacities)])
    checks.equal(plans, [plans[0]] * context.world_size, "plans")
    pipeline.eval()
    checks.same(pipeline(batch("chain", 6)[0]), pipeline(batch("chain", 6)[0]), "evaluated")  # no dropout in it
    return checks.failures


def refused(context: Any) -> list[str]:
    """Invalid arguments raise on every rank, and the ranks stay synchronized."""
    checks = Checks(context.rank)
    tiny = [Capacity(rank, 1.0, 1000) for rank in range(context.world_size)]
    checks.contains(checks.raises(InvalidArgument, partition, made("chain"), context.world, capacities=tiny), "rank 1")
    words = checks.raises(InvalidArgument, partition, made("chain"), context.world, by=["2.0", "9"])
    checks.contains(words, "'9'")
    words = checks.raises(InvalidArgument, partition, made("tied"), context.world, by=["two"])
    checks.contains(words, "shares")
    other = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3 + context.rank)).double()
    checks.contains(checks.raises(ModelMismatch, partition, other, context.world), "1.weight")
    pipeline = partition(made("chain"), context.world, by=["2.0"])
    checks.equal(pipeline.cuts, ("2.0",))
    compare(checks, pipeline, made("chain"), "chain", 5, context.rank == 0, context.rank == 1)
    return checks.failures


@pytest.mark.parametrize("rank_group", [("shm", 2)], indirect=True, ids=["shm-2"])
@pytest.mark.parametrize("function", [measured, refused], ids=["measured", "refused"])
def test_planning(rank_group: RankGroup, function: Any) -> None:
    rank_group.check(function)


# --- saving -----------------------------------------------------------------------------------------------------

SAVED = ("skipping", "tied")  # stages of equal shapes and a layer that nobody uses; parameters of several names


def adam(module: nn.Module, most: int) -> torch.optim.Optimizer:
    """With a group for matrices, and one for the rest, which a stage may not have: another rate in each."""
    matrices = [parameter for parameter in module.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in module.parameters() if parameter.dim() <= 1]
    return torch.optim.Adam([{"params": matrices, "lr": 0.01 * most}, {"params": others, "lr": 0.02 * most}])


def trained(name: str, module: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        x, y = batch(name, 5 + step)
        optimizer.zero_grad()
        if isinstance(module, Pipeline):
            module.backward_step((x,), y, loss_of)
        else:
            loss_of(module(x), y).backward()
        optimizer.step()


def saved_by_stages(folder: str) -> None:
    with DistributedContext("shm", timeout=60.0):
        for name in SAVED:
            pipeline = partition(made(name), by="even")
            optimizer = adam(pipeline, 1)
            trained(name, pipeline, optimizer, range(2))
            Checkpointer(f"{folder}/{name}", model=pipeline, optimizer=optimizer).save(2)


def restored_by_stages(folder: str) -> list[dict[str, Any]]:
    with DistributedContext("shm", timeout=60.0):
        return [gone_on(folder, name, partition(made(name, seed=9), by="even")) for name in SAVED]


def gone_on(folder: str, name: str, pipeline: Pipeline) -> dict[str, Any]:
    optimizer = adam(pipeline, 7)  # whose rates give way to the saved ones
    assert Checkpointer(f"{folder}/{name}", model=pipeline, optimizer=optimizer).restore() == 2
    trained(name, pipeline, optimizer, range(2, 4))
    return {key: value.tolist() for key, value in pipeline.full_state_dict().items()}


def test_another_number_of_stages_goes_on_from_a_saved_state(tmp_path: Path) -> None:
    expected = []
    for name in SAVED:
        whole = made(name)
        trained(name, whole, adam(whole, 1), range(4))
        expected.append(whole.state_dict())
    run_ranks(saved_by_stages, 2, str(tmp_path), torch=True)
    found = [*run_ranks(restored_by_stages, 2, str(tmp_path), torch=True)]
    found += run_ranks(restored_by_stages, 3, str(tmp_path), torch=True)
    found += [[gone_on(str(tmp_path), name, partition(made(name, seed=9), ["cpu"])) for name in SAVED]]
    for answer in found:
        for state, wanted in zip(answer, expected, strict=True):
            assert list(state) == list(wanted)
            for key, value in wanted.items():
                assert (torch.tensor(state[key], dtype=torch.float64) - value).abs().max() < TOLERANCE, key


def test_the_whole_module_loads_the_state_of_stages(tmp_path: Path) -> None:
    pipeline, module = partition(made("tied"), ["cpu", "cpu"], by="even"), made("tied", seed=9)
    Checkpointer(tmp_path, model=pipeline).save(1)
    assert Checkpointer(tmp_path, model=module).restore() == 1
    for one, other in zip(made("tied").parameters(), module.parameters(), strict=True):
        assert torch.equal(one, other)


def test_optimizers_that_do_not_fit_stages(tmp_path: Path) -> None:
    pipeline, other = partition(made("tied"), ["cpu", "cpu"], by="even"), nn.Linear(2, 2)
    checkpointer = Checkpointer(tmp_path, model=pipeline, optimizer=adam(pipeline, 1))
    checkpointer.save(1)
    checkpointer.add(optimizer=torch.optim.Adam(pipeline.parameters()))
    with pytest.raises(CheckpointError, match="had 2 groups, and here it has 1"):
        checkpointer.restore()
    with pytest.raises(InvalidArgument, match="has parameters of a pipeline and others"):
        checkpointer.add(optimizer=torch.optim.Adam([*pipeline.parameters(), *other.parameters()]))
    Checkpointer(tmp_path, model=pipeline, other=torch.optim.Adam(other.parameters())).save(3)  # one by itself


# --- faults -----------------------------------------------------------------------------------------------------


def killed_in_mid_step(backend: str, victim: int) -> str:
    """Rank `victim` is killed in its third micro-batch; the error of the others."""
    with DistributedContext(backend, timeout=60.0) as context:
        module = made("chain")
        pipeline = partition(module, by=["1", "2.1"], micro_batches=4)
        x, y = batch("chain", 12)
        pipeline.backward_step((x,), y, loss_of)
        calls = 0

        def count(*_: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 3 and context.rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)

        for unit in pipeline.stage.modules():
            if not list(unit.children()):
                unit.register_forward_pre_hook(count)
                break
        with pytest.raises(PeerLost) as caught:
            pipeline.backward_step((x,), y, loss_of)
        with pytest.raises(PeerLost):  # and it stays so
            pipeline.backward_step((x,), y, loss_of)
        mark(f"survived-{context.rank}")
        for rank in {0, 1, 2} - {victim}:  # nobody learns of it only because another one ends
            await_mark(f"survived-{rank}")
        return str(caught.value)


@pytest.mark.parametrize(("backend", "victim"), [("shm", 0), ("shm", 1), ("shm", 2), ("gloo", 0), ("gloo", 2)])
def test_a_killed_rank_is_an_error_for_all_others(backend: str, victim: int) -> None:
    with Ranks(killed_in_mid_step, 3, backend, victim, torch=True) as ranks:
        outcomes = ranks.outcomes()
    for rank, outcome in enumerate(outcomes):
        if rank == victim:
            assert outcome.status == -signal.SIGKILL
        else:
            assert outcome.status == 0, outcome.output
            assert "rank" in outcome.value


def raises_in_its_loss(backend: str) -> str:
    with DistributedContext(backend, timeout=60.0) as context:
        pipeline = partition(made("chain"), by=["1", "2.1"])
        x, y = batch("chain", 12)

        def loss(output: Any, target: Any) -> Tensor:
            raise ZeroDivisionError("no loss today")

        with pytest.raises(ZeroDivisionError if context.rank == 2 else PeerLost):
            pipeline.backward_step((x,), y, loss)
        with pytest.raises(StepInterrupted if context.rank == 2 else PeerLost) as again:
            pipeline.forward(x)
        mark(f"knows-{context.rank}")
        for rank in range(3):  # nobody learns of it only because another one ends
            await_mark(f"knows-{rank}")
        return str(again.value)


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_a_raising_rank_keeps_its_error_and_the_others_get_peer_lost(backend: str) -> None:
    with Ranks(raises_in_its_loss, 3, backend, torch=True) as ranks:
        outcomes = ranks.outcomes()
    assert [outcome.status for outcome in outcomes] == [0, 0, 0], [outcome.output for outcome in outcomes]
    assert "no loss today" in outcomes[2].value


# --- on devices of one process ----------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("name", ["chain", "skipping", "tied", "frozen"])
def test_stages_on_devices_equal_the_whole_module(name: str, schedule: Any) -> None:
    checks = Checks(0)
    pipeline = partition(made(name), ["cpu", "cpu"], by="parameters", schedule=schedule, micro_batches=3)
    assert len(pipeline.ranks) == 2
    whole = made(name)
    for rows in (7, 2):
        compare(checks, pipeline, whole, name, rows, first=True, last=True)
    assert checks.failures == []
    assert list(pipeline.full_state_dict()) == list(whole.state_dict())


@pytest.mark.gpu
def test_a_cpu_and_a_gpu_together_equal_the_whole_module() -> None:
    module, whole = made("skipping"), made("skipping")
    pipeline = partition(module, ["cpu", "cuda"], by="even")
    x, y = batch("skipping", 11)
    loss = pipeline.backward_step((x,), y, loss_of)
    wanted = loss_of(whole(x), y)
    wanted.backward()
    assert abs(loss.item() - wanted.item()) < TOLERANCE
    for (name, ours), theirs in zip(module.named_parameters(), whole.parameters(), strict=True):
        if theirs.grad is not None:
            assert (ours.grad.cpu() - theirs.grad).abs().max() < TOLERANCE, name
    assert {parameter.device.type for parameter in module.parameters()} == {"cpu", "cuda"}


def test_an_empty_batch_leaves_gradients_of_zero() -> None:
    pipeline = partition(made("chain"), ["cpu", "cpu"], by="even")
    x, y = batch("chain", 0)
    assert pipeline(x).shape == (0, 3)
    assert pipeline.backward_step((x,), y, loss_of).isnan()
    assert all(not parameter.grad.any() for parameter in pipeline.parameters())


class Deciding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x)) if x.sum() > 0 else self.two(x)


def test_a_forward_that_depends_on_values_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidArgument, match="Deciding cannot be split"):
        partition(Deciding(), ["cpu", "cpu"])


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"micro_batches": 0}, "micro_batches"),
        ({"schedule": "fast"}, "schedule"),
        ({"by": "luck"}, "by="),
        ({"by": ["3", "1"]}, "order"),
        ({"by": ["1", "2.0", "3"]}, "4 stages"),
        ({"capacities": []}, "capacities"),
        ({"example": torch.zeros(4, 9, dtype=torch.float64)}, "example"),
    ],
)
def test_invalid_arguments_are_refused_by_name(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidArgument, match=word):
        partition(made("chain"), ["cpu", "cpu"], **options)


def test_a_target_of_another_length_is_refused() -> None:
    pipeline = partition(made("chain"), ["cpu", "cpu"], by="even")
    x, y = batch("chain", 6)
    with pytest.raises(InvalidArgument, match="5 rows"):
        pipeline.backward_step((x,), y[:5], loss_of)


def test_gathered_is_a_deprecated_name_of_gather_state() -> None:
    pipeline = partition(made("chain"), ["cpu"], by="even")
    state = {"a": torch.ones(1)}
    assert pipeline.gather_state(state) == state
    with pytest.warns(DeprecationWarning, match="Use Pipeline.gather_state"):
        assert pipeline.gathered(state) == state


# --- where to cut, and in which order ---------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.booleans()), min_size=1, max_size=6),
    st.lists(st.tuples(st.sampled_from([1.0, 2.0, 5.0]), st.integers(0, 20)), min_size=1, max_size=4),
)
def test_no_other_cut_is_better(units: list[tuple[int, int, bool]], ranks: list[tuple[float, int]]) -> None:
    costs = [float(cost) for cost, _, _ in units]
    sizes = [size for _, size, _ in units]
    separable = [one for _, _, one in units]
    speeds = [speed for speed, _ in ranks]

    def fits(rank: int, start: int, end: int) -> bool:
        return sum(sizes[start:end]) <= ranks[rank][1]

    def slowest(stages: list[tuple[int, int]]) -> float:
        return max(sum(costs[start:end]) / speed for (start, end), speed in zip(stages, speeds, strict=True))

    count = len(units)
    possible = []
    for between in combinations_with_replacement(range(count + 1), len(ranks) - 1):
        edges = [0, *between, count]
        stages = list(pairwise(edges))
        if all(place in (0, count) or separable[place] for place in between) and all(
            start == end or fits(rank, start, end) for rank, (start, end) in enumerate(stages)
        ):
            possible.append(slowest(stages))
    found = fastest_stages(costs, separable, speeds, fits)
    if found is None:
        assert not possible
        return
    assert [start for start, _ in found[1:]] == [end for _, end in found[:-1]]
    assert (found[0][0], found[-1][1]) == (0, count)
    assert all(start == end or fits(rank, start, end) for rank, (start, end) in enumerate(found))
    assert slowest(found) == pytest.approx(min(possible))


def test_a_fast_rank_gets_more_and_a_small_one_less() -> None:
    units = [Unit(str(number), 1.0, 100, 10) for number in range(6)]
    roomy = [Capacity(0, 2.0, 10**6), Capacity(1, 1.0, 10**6)]
    assert cut_by_capacity(units, roomy, [2, 1]) == [(0, 4), (4, 6)]
    small = [Capacity(0, 2.0, 2 * (4 * 100 + 2 * 10)), Capacity(1, 1.0, 10**6)]
    assert cut_by_capacity(units, small, [2, 1]) == [(0, 2), (2, 6)]
    with pytest.raises(InvalidArgument, match="does not fit"):
        cut_by_capacity(units, [Capacity(0, 1.0, 100), Capacity(1, 1.0, 1000)], [2, 1])


@given(st.sampled_from(["1f1b", "gpipe"]), st.integers(0, 5), st.integers(1, 9))
def test_every_micro_batch_goes_forward_once_and_then_back_once(schedule: Any, after: int, count: int) -> None:
    order = schedule_passes(schedule, after, count)
    assert sorted(order) == sorted((way, number) for way in (True, False) for number in range(count))
    held = most = 0
    for is_forward, number in order:
        assert is_forward or order.index((True, number)) < order.index((False, number))
        held += 1 if is_forward else -1
        most = max(most, held)
    assert most == (count if schedule == "gpipe" else min(after + 1, count))
