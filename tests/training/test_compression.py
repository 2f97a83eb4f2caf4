"""Compressed gradients: they arrive as sent, and the reported error is right."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neuraxis.errors import InvalidArgument
from neuraxis.training import DataParallel, Half, TopK, Traffic
from neuraxis.training.parallel.buckets import Bucket, plan_buckets
from neuraxis.training.parallel.compression import codec_for
from neuraxis.training.parallel.reducer import Reducer, ReducerOptions
from tests.ranks import RankGroup
from tests.ranks.checks import Checks

WEIGHT = 4.0  # a power of two, so that dividing by it costs no bit


def buckets(dtype: torch.dtype, size: int, device: str = "cpu") -> list[Bucket]:
    """Three buckets with values, of odd lengths; without the one for the control words."""
    lengths = {"a": 37, "b": 101, "c": 5}
    parameters = [
        (name, nn.Parameter(torch.zeros(length, dtype=dtype, device=device))) for name, length in lengths.items()
    ]
    return plan_buckets(parameters, 1, 1, size, separate_metadata=True).buckets[:-1]


def gradients(length: int, rank: int, step: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(length, generator=generator, dtype=torch.float64).to(dtype)


def parts_of_all(context: Any, mine: Tensor) -> Tensor:
    """Every rank's tensor, one row each."""
    everything = mine.new_empty(context.world_size, mine.numel())
    context.world.all_gather_into_tensor(everything.view(-1), mine)
    return everything


# --- top-k ---


def error_feedback(context: Any, name: str, device: str = "cpu") -> list[str]:
    dtype = getattr(torch, name)
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    codec = codec_for(TopK(0.1))
    assert codec is not None
    bytes_before = 0
    for step in range(4):
        wanted_squares = missed_squares = 0.0
        for bucket in buckets(dtype, size, device):
            checks("step", step, "bucket", bucket.index)
            length = bucket.values.numel()
            gradient = gradients(length, rank, step, dtype).to(device)
            owed = codec.state_dict().get(f"residual.{bucket.index}", torch.zeros_like(gradient))
            bucket.values.copy_(WEIGHT * gradient)
            wanted = bucket.values + WEIGHT * owed
            codec.exchange(bucket, context.world, WEIGHT, 3)
            residual = WEIGHT * codec.state_dict()[f"residual.{bucket.index}"]
            sent = torch.where(residual == 0, wanted, 0)
            checks.equal(torch.equal(sent + residual, wanted), True, "sent + residual == wanted")
            count = math.ceil(0.1 * length)
            checks.equal(int((sent != 0).sum()), count, "values sent")
            checks.equal(float(sent.abs()[sent != 0].min()) >= float(residual.abs().max()), True, "the largest")
            total = torch.zeros_like(sent)
            for theirs in parts_of_all(context, sent):
                total += theirs
            checks.equal(torch.equal(bucket.values, total), True, "sum over ranks")
            checks.equal(codec.sent_bytes() - bytes_before, count * (wanted.element_size() + 4), "bytes")
            bytes_before = codec.sent_bytes()
            wanted_squares += float(wanted.double().square().sum())
            missed_squares += float(residual.double().square().sum())
        stated, true = codec.relative_error(), math.sqrt(missed_squares / wanted_squares)
        checks.equal(abs(stated - true) < 1e-12 and 0.3 < true < 1.0, True, f"relative error {stated} {true}")
    return checks.failures


def test_top_k_keeps_the_unsent_part_as_residual(rank_group: RankGroup) -> None:
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        rank_group.check(error_feedback, dtype)


@pytest.mark.gpu
def test_top_k_on_a_gpu(rank_group: RankGroup) -> None:
    rank_group.check(error_feedback, "float32", "cuda")


def everything_is_sent(context: Any) -> list[str]:
    checks = Checks(context.rank)
    codec = codec_for(TopK(1.0))
    assert codec is not None
    for bucket in buckets(torch.float64, context.world_size):
        mine = gradients(bucket.values.numel(), context.rank, 0, torch.float64)
        bucket.values.copy_(mine)
        codec.exchange(bucket, context.world, 1.0, 0)
        difference = (bucket.values - parts_of_all(context, mine).sum(0)).abs().max()
        checks.equal(float(difference) < 1e-12, True, "sum")
    checks.equal(codec.relative_error(), 0.0)
    return checks.failures


def test_a_fraction_of_one_is_the_plain_sum(rank_group: RankGroup) -> None:
    rank_group.check(everything_is_sent)


def debts_and_weights(context: Any) -> list[str]:
    """A residual keeps the weight of its own batch, however large the batch is with which it is sent."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    codec = codec_for(TopK(0.5))
    assert codec is not None
    bucket = buckets(torch.float64, size)[0]  # five values, of which three are sent
    mean_gradient = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0], dtype=torch.float64)
    bucket.values.copy_(32.0 * mean_gradient)
    codec.exchange(bucket, context.world, 32.0, 0)
    checks("a batch of 32").equal((bucket.values / (32 * size)).tolist(), [5.0, 4.0, 3.0, 0.0, 0.0])
    bucket.values.zero_()
    codec.exchange(bucket, context.world, 0.0, 0)
    checks("no data").equal(bucket.values.tolist(), [0.0] * 5)
    bucket.values.zero_()
    codec.exchange(bucket, context.world, 2.0, 0)
    checks("a batch of 2").equal((bucket.values / (2 * size)).tolist(), [0.0, 0.0, 0.0, 2.0, 1.0])
    checks.equal(codec.relative_error(), 0.0)
    return checks.failures


def test_a_small_batch_does_not_pay_more_than_is_owed(rank_group: RankGroup) -> None:
    rank_group.check(debts_and_weights)


def not_finite(context: Any, compress: str) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for bad in (math.inf, -math.inf, math.nan):
        checks(compress, bad)
        codec = codec_for(TopK(0.05) if compress == "topk" else compress)
        assert codec is not None
        for bucket in buckets(torch.float32, size):
            bucket.values.fill_(1.0)
            if rank == size - 1:
                bucket.values[3:5] = bad  # more of them than top-k sends
            codec.exchange(bucket, context.world, 1.0, 2)
            checks.equal(bool(bucket.values.isfinite().all()), False, "all finite")
        checks.equal(math.isnan(codec.relative_error()), rank == size - 1, "relative error is NaN")
        debts = codec.state_dict().values()
        checks.equal(all(bool(debt.isfinite().all()) for debt in debts), True, "debts are finite")
    return checks.failures


def test_an_infinity_of_one_rank_reaches_all_of_them(rank_group: RankGroup) -> None:
    for compress in ("topk", "fp16", "bf16"):
        rank_group.check(not_finite, compress)


# --- 16 bits ---


def sixteen_bits(context: Any, name: str, device: str = "cpu") -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    rounding = {"fp16": 2.0**-11, "bf16": 2.0**-8}[name]
    codec = codec_for(Half(name))  # type: ignore[arg-type]
    assert codec is not None
    samples = 1000.0
    for dtype in (torch.float32, torch.float64):
        bytes_before = codec.sent_bytes()
        for bucket in buckets(dtype, size, device):
            checks(name, dtype, "bucket", bucket.index)
            mine = samples * 1000 * gradients(bucket.values.numel(), rank, 1, dtype)  # beyond what fp16 can hold
            mine = mine.to(device)
            bucket.values.copy_(mine)
            codec.exchange(bucket, context.world, samples, math.ceil(math.log2(samples * size)))
            parts = parts_of_all(context, mine)
            # Each part is rounded, and each sum: a backend may round after each addition.
            bound = rounding * parts.abs().sum(0) * (1 + size)
            checks.equal(bool(((bucket.values - parts.sum(0)).abs() <= bound).all()), True, "error within its bound")
        checks.equal(codec.sent_bytes() - bytes_before, 2 * (37 + 101 + 5), "bytes")
        checks.equal(0 < codec.relative_error() <= rounding, True, f"relative error {codec.relative_error()}")
    return checks.failures


def test_16_bits_keep_within_the_stated_error(rank_group: RankGroup) -> None:
    for name in ("fp16", "bf16"):
        rank_group.check(sixteen_bits, name)


@pytest.mark.gpu
def test_16_bits_on_a_gpu(rank_group: RankGroup) -> None:
    for name in ("fp16", "bf16"):
        rank_group.check(sixteen_bits, name, "cuda")


def too_large(context: Any) -> list[str]:
    checks = Checks(context.rank)
    codec = codec_for("fp16")
    assert codec is not None
    for bucket in buckets(torch.float32, context.world_size):
        bucket.values.fill_(1e6)
        codec.exchange(bucket, context.world, 1.0, 0)
        checks.equal(bool(bucket.values.isfinite().all()), True, "finite")
        checks.equal(float(bucket.values.min()) > 65504 / 2, True, "large")
    checks.equal(codec.relative_error() > 0.9, True, "the error is reported")
    return checks.failures


def test_values_too_large_for_fp16_are_clipped_and_counted(rank_group: RankGroup) -> None:
    rank_group.check(too_large)


# --- state, names, numbers ---


def resumed(context: Any) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    results = []
    first = codec_for(TopK(0.2))
    assert first is not None
    for bucket in buckets(torch.float32, size):
        bucket.values.copy_(gradients(bucket.values.numel(), rank, 0, torch.float32))
        first.exchange(bucket, context.world, 1.0, 0)
    second = codec_for(TopK(0.2))
    assert second is not None
    second.load_state_dict(first.state_dict())
    forgetful = codec_for(TopK(0.2))
    assert forgetful is not None
    for codec in (first, second, forgetful):
        result = []
        for bucket in buckets(torch.float32, size):
            bucket.values.copy_(gradients(bucket.values.numel(), rank, 1, torch.float32))
            codec.exchange(bucket, context.world, 1.0, 0)
            result.append(bucket.values.clone())
        results.append(torch.cat(result))
    checks.equal(torch.equal(results[0], results[1]), True, "after a restart")
    checks.equal(torch.equal(results[0], results[2]), False, "without what is owed")
    return checks.failures


def test_debts_survive_a_restart(rank_group: RankGroup) -> None:
    rank_group.check(resumed)


def test_debts_go_with_their_parameters() -> None:
    """Buckets change when a layer is frozen or moved; what is owed to a parameter stays owed to it."""
    parameters = [(name, nn.Parameter(torch.zeros(size))) for name, size in (("a", 2), ("b", 3), ("c", 1))]
    together = plan_buckets(parameters, 1 << 20, 1 << 20, 1, separate_metadata=True)
    apart = plan_buckets(parameters[1:], 1, 1, 1, separate_metadata=True)
    codec = codec_for(TopK(0.2))
    assert codec is not None
    codec.load_state_dict({"residual.0": torch.arange(6.0)})  # c, b and a: the last comes first
    codec.follow(together, apart)
    owed = {name: residual.tolist() for name, residual in codec.state_dict().items()}
    assert owed == {"residual.0": [0.0], "residual.1": [1.0, 2.0, 3.0]}
    codec.follow(apart, together)
    assert codec.state_dict()["residual.0"].tolist() == [0.0, 1.0, 2.0, 3.0, 0.0, 0.0]


def test_names() -> None:
    assert codec_for(None) is None
    for right in ("fp16", "bf16", Half(), Half("bf16"), TopK()):
        assert codec_for(right) is not None
    for wrong in ("fp8", "topk", 0.1):
        with pytest.raises(InvalidArgument, match="compress="):
            codec_for(wrong)  # type: ignore[arg-type]
    for fraction in (0.0, -0.1, 1.5, math.nan):
        with pytest.raises(InvalidArgument, match="fraction="):
            TopK(fraction)
    with pytest.raises(InvalidArgument, match="dtype="):
        Half("fp8")  # type: ignore[arg-type]


def test_traffic_reads_as_a_sentence() -> None:
    traffic = Traffic(steps=3, bytes_sent=1_200, bytes_uncompressed=12_000, relative_error=0.314159)
    assert traffic.saved == 0.9
    expected = "3 steps, 1,200 bytes sent instead of 12,000 (90.0% saved), relative error of the last step 0.31"
    assert str(traffic) == expected
    assert Traffic(0, 0, 0, 0.0).saved == 0.0


# --- in training ---


def trained(context: Any, compress: Any, steps: int = 12) -> tuple[DataParallel, list[float]]:
    """A small net that learns a linear function, with batches of different sizes, none on some ranks at times."""
    rank, size = context.rank, context.world_size
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2)).double()
    model = DataParallel(net, compress=compress, first_bucket_bytes=256, bucket_bytes=1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    losses = []
    for step in range(steps):
        rows = [(5 + 3 * each + step) % 9 for each in range(size)]
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(sum(rows) + 1, 6, generator=generator, dtype=torch.float64)
        y = x[:, :2] - 0.5 * x[:, 2:4]
        rows[0] += 1
        share = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[share]), y[share]).backward()
        optimizer.step()
        with torch.no_grad():
            losses.append(float(nn.functional.mse_loss(model(x), y)))
    return model, losses


def learned(context: Any) -> list[str]:
    checks = Checks(context.rank)
    size = context.world_size
    plain, plain_losses = trained(context, None)
    reference = torch.cat([parameter.detach().flatten() for parameter in plain.parameters()])
    cases = (
        (TopK(1.0), 1e-12, 0.0, 1e-15),
        ("fp16", 1e-2, 2.0**-20, 2.0**-11),
        (Half("bf16"), 0.1, 2.0**-16, 2.0**-8),
        (TopK(0.2), math.inf, 0.1, 1.0),
    )
    for compress, tolerance, least_error, most_error in cases:
        checks(compress)
        model, losses = trained(context, compress)
        flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        everybody = parts_of_all(context, flat)
        checks.equal(all(torch.equal(theirs, flat) for theirs in everybody), True, "equal bits on all ranks")
        difference = float((flat - reference).abs().max())
        checks.equal(difference <= tolerance, True, f"difference {difference} to no compression")
        checks.equal(losses[-1] < 0.7 * losses[0] + 1e-3, True, f"learns: {losses[0]} → {losses[-1]}, {plain_losses}")
        traffic = model.traffic()
        if size == 1:
            continue
        checks.equal(least_error <= traffic.relative_error <= most_error, True, str(traffic))
        checks.equal(traffic.steps, 12, "steps")
        if compress == TopK(1.0):
            checks.equal(traffic.bytes_sent > traffic.bytes_uncompressed, True, str(traffic))
        else:
            checks.equal(traffic.saved > 0.5, True, str(traffic))
    return checks.failures


def test_training_with_compression(rank_group: RankGroup) -> None:
    rank_group.check(learned)


def what_is_left_over_has_no_loss_scale(context: Any) -> list[str]:
    """The loss scale changes between two steps; what the first left over counts in the second as what it is."""
    checks = Checks(context.rank)
    scale = [2.0**16]
    torch.manual_seed(0)
    layer = nn.Linear(8, 8, bias=False)
    group = context.world.new_group()
    reducer = Reducer(
        list(layer.named_parameters()), group, ReducerOptions(), codec_for(TopK(0.25)), None, lambda: scale[0]
    )
    true = torch.linspace(-1.0, 2.0, 64).reshape(8, 8)  # the gradient, in both steps
    total = torch.zeros(8, 8)
    for scale[0] in (2.0**16, 2.0**3, 2.0**11, *[1.0] * 5):
        layer.weight.grad = None
        (layer.weight * true * scale[0]).sum().backward()
        total += layer.weight.grad / scale[0]
    reducer.close()
    # Eight steps with a quarter of the values each have sent everything at least once, at its true size.
    checks.equal(bool((total > 8 * true.abs().max()).any()), False, "more than was wanted")
    checks.equal(bool((total[true > 1] > 4).all()), True, "most of what was wanted")
    return checks.failures


def test_residuals_are_kept_without_the_loss_scale(rank_group: RankGroup) -> None:
    rank_group.check(what_is_left_over_has_no_loss_scale)
