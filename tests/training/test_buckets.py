"""Layout of gradients: every element once, in the parameter's layout, in an order that depends on the model only."""

from __future__ import annotations

import hypothesis
import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from neuraxis.training.parallel.buckets import BucketPlan, StepMetadata, plan_buckets
from neuraxis.training.parallel.packing import Packer

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]

shapes = st.lists(st.lists(st.integers(0, 4), max_size=4), max_size=12)
dtypes = st.lists(st.sampled_from(DTYPES), min_size=1, max_size=4)


def _parameters(shapes: list[list[int]], dtypes: list[torch.dtype]) -> list[tuple[str, nn.Parameter]]:
    made = []
    for index, shape in enumerate(shapes):
        tensor = torch.zeros(shape, dtype=dtypes[index % len(dtypes)])
        if index % 3 == 1 and tensor.dim() > 1:
            tensor = tensor.transpose(0, -1)  # dense, in another order
        made.append((f"p{index}", nn.Parameter(tensor)))
    return made


@hypothesis.given(shapes, dtypes, st.integers(0, 64), st.integers(0, 256), st.integers(1, 5), st.booleans())
def test_each_element_has_one_place(
    shapes: list[list[int]], dtypes: list[torch.dtype], first: int, later: int, size: int, apart: bool
) -> None:
    parameters = _parameters(shapes, dtypes)
    plan = plan_buckets(parameters, first, later, size, separate_metadata=apart)
    assert [bucket.index for bucket in plan.buckets] == list(range(len(plan.buckets)))
    assert sorted(place for bucket in plan.buckets for place in bucket.places) == list(range(len(parameters)))
    for bucket in plan.buckets:
        assert sum(view.numel() for view in bucket.views) == bucket.values.numel()
        for place, name, parameter, view in zip(
            bucket.places, bucket.names, bucket.parameters, bucket.views, strict=True
        ):
            assert (name, parameter) == (parameters[place][0], parameters[place][1])
            assert plan.bucket_of[place] == bucket.index
            packed_as = torch.float32 if parameter.dtype is torch.float16 else parameter.dtype
            assert (view.shape, view.dtype) == (parameter.shape, packed_as) == (parameter.shape, bucket.flat.dtype)
            view.fill_(place + 1)
        # Each view has filled its own part, and all of it together is the bucket.
        counts = sorted(place + 1 for place in bucket.places for _ in range(parameters[place][1].numel()))
        assert sorted(bucket.values.real.double().tolist()) == counts
    _check_control_words(plan, size, len(parameters), apart)


def _check_control_words(plan: BucketPlan, size: int, parameters: int, apart: bool) -> None:
    last = plan.buckets[-1]
    assert last.flat.dtype in (torch.float32, torch.float64)  # counts are exact
    assert (plan.weights.numel(), plan.sizes.numel(), plan.used.numel()) == (size, size, parameters)
    assert last.flat.numel() == last.values.numel() + 2 * size + parameters
    assert all(bucket.flat.numel() == bucket.values.numel() for bucket in plan.buckets[:-1])
    if apart:
        assert not last.parameters
    before = last.values.clone()
    plan.weights.fill_(7)
    plan.sizes.fill_(9)
    plan.used.fill_(8)
    assert torch.equal(last.values, before)
    if last.array is not None:
        assert np.shares_memory(last.array, last.flat.numpy())
        assert last.array[last.values.numel() :].tolist() == [7] * size + [9] * size + [8] * parameters


@hypothesis.given(shapes, st.integers(1, 64), st.integers(1, 256))
def test_buckets_are_filled_from_the_last_parameter_and_no_fuller_than_needed(
    shapes: list[list[int]], first: int, later: int
) -> None:
    parameters = _parameters(shapes, [torch.float32])
    plan = plan_buckets(parameters, first, later, 2, separate_metadata=False)
    order = [place for bucket in plan.buckets for place in bucket.places]
    assert order == list(reversed(range(len(parameters))))
    for bucket in plan.buckets:
        limit = later if bucket.index else first
        without_last = sum(view.numel() * 4 for view in bucket.views[:-1])
        assert without_last < limit  # it was not full before
    for bucket in plan.buckets[:-1]:
        assert bucket.values.numel() * 4 >= (later if bucket.index else first)


def test_a_layout_that_is_not_plain_is_kept() -> None:
    convolution = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    expanded = nn.Parameter(torch.zeros(1, 3).expand(2, 3))  # several elements in one place
    plan = plan_buckets(
        [("weight", convolution.weight), ("expanded", expanded)], 1 << 20, 1 << 20, 1, separate_metadata=False
    )
    views = dict(zip(plan.buckets[0].names, plan.buckets[0].views, strict=True))
    assert views["weight"].stride() == convolution.weight.stride() != torch.empty(4, 3, 2, 2).stride()
    assert views["expanded"].is_contiguous()


gradients = st.lists(st.sampled_from(["none", "value", "sparse", "own view", "negated"]), min_size=1, max_size=6)


@hypothesis.given(gradients, st.sampled_from([0.0, 1.0, 3.0]), st.booleans())
def test_packing(kinds: list[str], weight: float, add: bool) -> None:
    parameters = [(f"p{index}", nn.Parameter(torch.zeros(2, 3))) for index in range(len(kinds))]
    plan = plan_buckets(parameters, 1 << 20, 1 << 20, 1, separate_metadata=False)
    (bucket,) = plan.buckets
    plan.used.fill_(5)
    before, expected = [], []
    for index, (view, (_, parameter)) in enumerate(
        zip(reversed(bucket.views), parameters, strict=True)  # they lie in the reverse order
    ):
        view.fill_(100 + index)
        before.append(view.clone())
        value = torch.arange(6.0).view(2, 3) + index
        kind = kinds[index]
        if kind == "own view" and not add:  # what zero_grad(set_to_none=False) leaves
            parameter.grad = view.copy_(value)
        elif kind == "negated":  # its memory is to be read with the other sign
            parameter.grad = torch._neg_view(-value)
        elif kind == "sparse":
            parameter.grad = value.to_sparse()
        elif kind != "none":
            parameter.grad = value
        gradient = torch.zeros(2, 3) if kind == "none" else value
        if weight == 0:
            gradient = torch.zeros(2, 3)
        expected.append((before[-1] if add else 0) + weight * gradient)
    if weight == 0:
        for _, parameter in parameters:
            if parameter.grad is not None and not parameter.grad.is_sparse:
                parameter.grad.fill_(float("nan"))  # the mean over no rows
        if add:
            for view, value in zip(reversed(bucket.views), before, strict=True):
                view.copy_(value)
    with torch.no_grad():
        Packer(bucket).pack(weight, add=add)
    _assert_equal(list(reversed(bucket.views)), expected)
    assert plan.used.tolist() == [5] * len(parameters)  # the control words are no gradients


KINDS = ["none", "value", "sparse", "negated", "shared", "graph"]
unpacked = st.lists(st.tuples(st.sampled_from(KINDS), st.booleans()), min_size=1, max_size=6)


@hypothesis.given(unpacked, st.sampled_from([0.0, 3.0]), st.sampled_from([torch.float32, torch.float64]), st.booleans())
def test_unpacking(kinds: list[tuple[str, bool]], weight: float, dtype: torch.dtype, has_words: bool) -> None:
    """Each used parameter gets its own average back; where possible, in the memory of its gradient."""
    parameters = [(f"p{index}", nn.Parameter(torch.zeros(2, 3, dtype=dtype))) for index in range(len(kinds))]
    plan = plan_buckets(parameters, 1 << 20, 1 << 20, 2, separate_metadata=False)
    (bucket,) = plan.buckets
    shared = torch.arange(6.0, dtype=dtype)
    for index, ((kind, _), (_, parameter)) in enumerate(zip(kinds, parameters, strict=True)):
        value = torch.arange(6.0, dtype=dtype).view(2, 3) + index
        if kind == "sparse":
            parameter.grad = value.to_sparse()
        elif kind == "negated":
            parameter.grad = torch._neg_view(-value)
        elif kind == "shared":  # as autograd leaves them where a sum of two has one gradient
            parameter.grad = shared.view(2, 3)
        elif kind == "graph":  # as backward(create_graph=True) leaves it
            parameter.grad = value.requires_grad_() * 1
        elif kind == "value":
            parameter.grad = value
    before = [parameter.grad for _, parameter in parameters]
    values = [None if gradient is None else gradient.detach().to_dense().clone() for gradient in before]
    packer = Packer(bucket, plan.used.storage_offset() if has_words else None)
    used = [float(is_used) for _, is_used in kinds]
    with torch.no_grad():
        packer.pack(weight, add=False)
        bucket.values.add_(torch.arange(bucket.values.numel(), dtype=dtype))  # the other rank's
        words = StepMetadata(plan, 0, bytearray(map(int, used)))
        words.write(1.0, 0)
        summed = [view.clone() for view in reversed(bucket.views)]
        packer.unpack(0.25, words)
    names = [kind for kind, _ in kinds]
    in_place = has_words and not {"sparse", "negated", "graph"} & set(names) and names.count("shared") < 2
    for index, (_, parameter) in enumerate(parameters):
        if not used[index]:
            assert parameter.grad is before[index]
            if before[index] is not None and names[index] != "shared":
                assert torch.equal(parameter.grad.detach().to_dense(), values[index])
            continue
        assert torch.equal(parameter.grad, summed[index] * 0.25)
        assert not parameter.grad.requires_grad
        if in_place and before[index] is not None:
            assert parameter.grad is before[index]
        else:
            assert parameter.grad.data_ptr() == list(reversed(bucket.views))[index].data_ptr()


def _assert_equal(got: list[Tensor], expected: list[Tensor]) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        assert torch.equal(mine, theirs), (mine, theirs)
