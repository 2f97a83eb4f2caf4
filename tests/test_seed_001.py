"""The API of the document "Distributed Computing" (Neurenix), name by name, against `neuraxis.distributed`.

`REFERENCE` is the document's API reference as data: every signature as it is printed there, and beside it the methods
and properties that are listed with it. `CHANGED_DEFAULTS` and `CHANGED_NAMES` are all that differs, of which
docs/from-neurenix.md tells, too.
The document's tutorials are examples, which the tests of examples run.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import neuraxis.distributed as dist
from tests.test_examples import EXAMPLES

ROOT = Path(__file__).resolve().parents[1]

REFERENCE = {
    'DistributedContext(backend="nccl", init_method=None, world_size=-1, rank=-1, device_id=None, timeout=1800.0)': [
        "initialize()",
        "shutdown()",
        "is_initialized",
        "is_main_process",
    ],
    'init_distributed(backend="nccl", init_method=None, world_size=-1, rank=-1, device_id=None)': [],
    "get_rank()": [],
    "get_world_size()": [],
    "is_main_process()": [],
    "barrier()": [],
    "DataParallel(module, device_ids=None)": [
        "forward(*args, **kwargs)",
        "parameters()",
        "to(device)",
        "train(mode=True)",
        "eval()",
    ],
    'RpcContext(backend="tensorpipe", init_method=None, world_size=-1, rank=-1, timeout=1800.0)': [
        "initialize()",
        "shutdown()",
        "register_function(name, func)",
    ],
    'init_rpc(backend="tensorpipe", init_method=None, world_size=-1, rank=-1)': [],
    "rpc_sync(dst_rank, function_name, *args, **kwargs)": [],
    "rpc_async(dst_rank, function_name, *args, **kwargs)": [],
    "SyncBatchNorm(num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True)": ["forward(x)"],
    'DaskCluster(n_workers=4, threads_per_worker=2, memory_limit="4GB", scheduler_address=None)': [
        "start()",
        "stop()",
        "is_running",
        "map(func, *iterables, **kwargs)",
        "submit(func, *args, **kwargs)",
        "gather(futures)",
        "scatter(data, broadcast=False)",
        "replicate(future)",
        "get_worker_info()",
    ],
    'tensor_to_dask(tensor, chunks="auto")': [],
    "dask_to_tensor(dask_array)": [],
    "CudaContext(device_id=0, enable_profiling=False)": [
        "start()",
        "stop()",
        "is_running",
        "get_kernel(name, source, function_name)",
        "allocate(shape, dtype)",
        "to_gpu(array)",
        "from_gpu(array)",
        "synchronize()",
    ],
    "tensor_to_gpu(tensor)": [],
    "gpu_to_tensor(gpu_array)": [],
}

# Defaults that are others here. The class's documentation says why, and has their word for it.
CHANGED_DEFAULTS = {
    ("DistributedContext", "backend"): "auto",
    ("init_distributed", "backend"): "auto",
    ("RpcContext", "backend"): "zenoh",
    ("init_rpc", "backend"): "zenoh",
}
# Parameters that are called otherwise here.
CHANGED_NAMES = {
    ("rpc_sync", "dst_rank"): "dst",  # it may be a name, too
    ("rpc_async", "dst_rank"): "dst",
    ("rpc_sync", "function_name"): "name",
    ("rpc_async", "function_name"): "name",
    ("SyncBatchNorm.forward", "x"): "input",  # as torch calls it
}
TUTORIALS = {
    "Multi-GPU Training with DataParallel": "17_data_parallel.py",
    "Distributed Training with DistributedContext": "18_distributed_context.py",
    "Using Dask for Distributed Data Processing": "25_dask.py",
    "Using PyCUDA for Custom CUDA Kernels": "26_cuda_kernel.py",
}


@dataclass(frozen=True)
class Documented:
    """A signature as the document prints it: `(name, kind, default)` for each parameter."""

    name: str
    parameters: tuple[tuple[str, Any, Any], ...]

    @classmethod
    def parsed(cls, text: str) -> Documented:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        parameters: list[tuple[str, Any, Any]] = []
        for argument in call.args:
            if isinstance(argument, ast.Starred):
                assert isinstance(argument.value, ast.Name)
                parameters.append((argument.value.id, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.empty))
            else:
                assert isinstance(argument, ast.Name)
                parameters.append((argument.id, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty))
        for keyword in call.keywords:
            if keyword.arg is None:
                assert isinstance(keyword.value, ast.Name)
                parameters.append((keyword.value.id, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.empty))
            else:
                default = ast.literal_eval(keyword.value)
                parameters.append((keyword.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD, default))
        return cls(call.func.id, tuple(parameters))


def check_signature(path: str, documented: Documented, function: Any, skip_self: bool) -> None:
    parameters = list(inspect.signature(function).parameters.values())[1 if skip_self else 0 :]
    if [parameter.kind for parameter in parameters] == [
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    ]:
        return  # it takes anything, and so all that is documented
    for (name, kind, default), parameter in zip(documented.parameters, parameters, strict=False):
        expected = CHANGED_NAMES.get((path, name), name)
        if kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            assert parameter.kind is kind, f"{path}: {parameter} where *{name} is documented"
            continue
        assert parameter.name == expected, f"{path}: {parameter} where {expected} is documented"
        assert parameter.default == CHANGED_DEFAULTS.get((path, name), default), f"{path}: {parameter}"
    assert len(parameters) >= len(documented.parameters), f"{path}: it takes fewer than documented"
    for further in parameters[len(documented.parameters) :]:
        optional = further.default is not inspect.Parameter.empty
        variable = further.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        assert optional or variable, f"{path}: {further} is not documented and has no default"


@pytest.mark.parametrize("signature", REFERENCE, ids=lambda signature: signature.partition("(")[0])
def test_every_name_has_its_documented_signature(signature: str) -> None:
    documented = Documented.parsed(signature)
    thing = getattr(dist, documented.name)
    assert documented.name in dist.__all__
    assert thing.__doc__
    if inspect.isclass(thing):
        check_signature(documented.name, documented, thing.__init__, skip_self=True)
    else:
        check_signature(documented.name, documented, thing, skip_self=False)
    for method in REFERENCE[signature]:
        name, called, _ = method.partition("(")
        found = inspect.getattr_static(thing, name)
        path = f"{documented.name}.{name}"
        assert isinstance(found, property) == (not called), path
        if called:
            check_signature(path, Documented.parsed(method), getattr(thing, name), skip_self=True)


@pytest.mark.parametrize(("name", "parameter"), CHANGED_DEFAULTS)
def test_a_changed_default_is_detected(name: str, parameter: str) -> None:
    default = Documented.parsed(next(text for text in REFERENCE if text.startswith(f"{name}("))).parameters[0][2]
    thing = getattr(dist, name)
    context = thing if inspect.isclass(thing) else getattr(dist, name.replace("init_", "").capitalize() + "Context")
    if not inspect.isclass(thing):
        assert context.__name__ in thing.__doc__, f"{name} does not tell where {parameter} is explained"
    assert f'not "{default}"' in " ".join((context.__doc__ or "").split())


def test_differences_are_listed_in_the_table() -> None:
    table = (ROOT / "docs" / "from-neurenix.md").read_text()
    for name in (Documented.parsed(text).name for text in REFERENCE):
        assert f"`{name}" in table, name
    for (path, name), here in CHANGED_NAMES.items():
        assert f"`{name}`" in table, path
        assert f"`{here}`" in table, path
    for title, example in TUTORIALS.items():
        assert title in table
        assert f"examples/{example}" in table


@pytest.mark.parametrize("title", TUTORIALS)
def test_every_tutorial_is_an_example_that_is_run(title: str) -> None:
    example = TUTORIALS[title]
    assert Path(example).stem in EXAMPLES
    assert f'"{title}"' in (ROOT / "examples" / example).read_text()


def test_every_name_of_the_facade_can_be_loaded() -> None:
    for name in dist.__all__:
        assert getattr(dist, name) is not None
    assert len(set(dist.__all__)) == len(dist.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing_of_the_kind'"):
        dist.nothing_of_the_kind  # noqa: B018


def test_the_utilities_in_one_process() -> None:
    context = dist.init_distributed(backend="auto", world_size=1, rank=0)
    try:
        assert context.is_initialized
        assert context.is_main_process
        assert (dist.get_rank(), dist.get_world_size(), dist.is_main_process()) == (0, 1, True)
        dist.barrier()
        model = dist.DataParallel(torch.nn.Sequential(torch.nn.Linear(3, 4), dist.SyncBatchNorm(4)))
        assert model.train(mode=True).to("cpu").training
        output = model(torch.arange(6.0).reshape(2, 3))
        np.testing.assert_allclose(output.mean(0).detach().numpy(), 0, atol=1e-6)
        assert len(list(model.parameters())) == 4
        assert not model.eval().training
    finally:
        context.shutdown()
    assert not context.is_initialized
