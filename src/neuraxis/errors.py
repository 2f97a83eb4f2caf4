"""Every error that neuraxis raises on purpose, in one tree below `NeuraxisError`.

Each error also inherits the built-in exception that it is a case of, so code that does not know neuraxis can catch it
(`except TimeoutError`, `except ConnectionError`). The text says what happened, where, and what to do; what a program
may act on is an attribute as well.
"""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import Any

__all__ = [
    "AccumulatorOverflow",
    "AlreadyInitialized",
    "BackendUnavailable",
    "CallCancelled",
    "CallRefused",
    "CallTimeout",
    "CalleeDied",
    "CalleeGone",
    "CheckpointError",
    "ClusterClosed",
    "ClusterError",
    "ClusterTimeout",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "CommunicatorClosed",
    "CudaContextClosed",
    "CudaError",
    "DeviceOutOfMemory",
    "DeviceUnavailable",
    "ForkedProcess",
    "InvalidArgument",
    "InvalidType",
    "KernelCompileError",
    "KernelFailed",
    "LaunchError",
    "LaunchTimeout",
    "LineClosed",
    "LineTimeout",
    "MeshClosed",
    "MeshError",
    "MissingDependency",
    "ModelMismatch",
    "MonitoredBarrierTimeout",
    "NameTaken",
    "NetworkInUse",
    "NeuraxisError",
    "NobodyAnswered",
    "NobodyServes",
    "NodeGone",
    "NotInitialized",
    "NotSerializable",
    "NumericalInstability",
    "PeerLost",
    "RankFailed",
    "RemoteError",
    "RendezvousError",
    "RendezvousTimeout",
    "RequestFailed",
    "RequestTimeout",
    "ResourceExhausted",
    "RoundingWarning",
    "RouterLost",
    "RpcError",
    "ShardFailed",
    "SimulationClosed",
    "SpecError",
    "StepInterrupted",
    "TaskLost",
    "UnknownFunction",
    "WorkerFailed",
]


class NeuraxisError(Exception):
    """Base class of every error that neuraxis raises on purpose.

    Catch it to catch them all.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restored, (type(self), self.args, self.__dict__))


def _restored(kind: type[NeuraxisError], args: tuple[Any, ...], fields: dict[str, Any]) -> NeuraxisError:
    """Return an error with these arguments and attributes, without its constructor, which composes the text."""
    built_in: Any = kind
    while built_in.__module__ != "builtins":
        built_in = built_in.__base__
    error: NeuraxisError = built_in.__new__(kind, *args)
    error.args = args
    for name, value in fields.items():
        setattr(error, name, value)
    return error


# --- arguments and resources ------------------------------------------------------------------------


class InvalidArgument(NeuraxisError, ValueError):
    """An argument has a value that the call does not accept.

    The text names the argument, its value and the accepted range. Pass a value within it.
    """


class SpecError(InvalidArgument):
    """The description of a brain is invalid. The text is `file: field: reason`.

    Correct that field of the file, or the call of `BrainBuilder` that set it.

    Attributes
    ----------
    file : str
        Path of the file; for a description from no file, its name.
    field : str
        Path of the field in it ("regions.cortex.config.neurons"); "" if the error is not about one field.
    reason : str
        What is wrong with the field.
    line : int or None
        Line of the file, from 1, with a syntax error; None if the syntax is correct.
    """

    def __init__(self, reason: str, file: str = "", field: str = "", line: int | None = None) -> None:
        self.reason = reason
        self.file = file
        self.field = field
        self.line = line
        place = "" if line is None else f"line {line}"
        super().__init__(": ".join(part for part in (file, field, place, reason) if part))


class AccumulatorOverflow(InvalidArgument, OverflowError):
    """The summed weights of the synapses of a neuron exceed the range of the integer that accumulates its input.

    Limit the weights (`high=`), use fewer synapses, or send the strongest ones to another receptor.

    Attributes
    ----------
    population, receptor : str
        Where it happened.
    neuron : int
        Index within the population.
    load : float
        Sum of the weights of its synapses.
    limit : float
        Bound that the sum must stay below.
    """

    def __init__(self, population: str, receptor: str, neuron: int, load: float, limit: float) -> None:
        super().__init__(
            f"receptor {receptor!r} of population {population!r}: the weights of the synapses of neuron {neuron} add "
            f"up to {load:g}, more than its accumulator holds ({limit:g}). Cut the weights with high=, use fewer "
            "synapses, or send the strongest to another receptor."
        )
        self.population, self.receptor, self.neuron, self.load, self.limit = population, receptor, neuron, load, limit


class NetworkInUse(NeuraxisError, RuntimeError):
    """A network was changed while an open simulation, built from it, would not see the change.

    Close the simulation first, or change a copy of the network.
    """


class RoundingWarning(UserWarning):
    """A value was rounded because it cannot be used as given.

    The message names the value and what is used instead. Give a multiple of the step, or a weight within the range of
    the others, to avoid it.
    """


class InvalidType(NeuraxisError, TypeError):
    """An argument has a type (or dtype) that the call does not accept.

    The text names the argument and the accepted types. Convert the value first.
    """


class NotSerializable(NeuraxisError, TypeError):
    """An object cannot be sent to another process: it needs pickle, which is not allowed here, or is too large.

    Send arrays, numbers, strings and containers of them, or allow pickle where the call has an option for it.
    """


class BackendUnavailable(NeuraxisError, RuntimeError):
    """A backend, or another part of neuraxis, cannot be used on this machine or with these ranks.

    Follow the advice in `remedy`, or choose another backend. `neuraxis doctor` lists what this machine can use.

    Attributes
    ----------
    backend : str
        Its name.
    reason : str
        Why it cannot be used.
    remedy : str
        What to do.
    """

    def __init__(self, backend: str, reason: str, remedy: str = "") -> None:
        self.backend = backend
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"backend {backend!r} cannot be used here: {reason}" + (f". {remedy}" if remedy else ""))


class MissingDependency(BackendUnavailable, ImportError):
    """An optional package that a part of neuraxis needs is not installed or cannot be loaded.

    Run the command in `remedy`; it is the one that works for this installation.

    Attributes
    ----------
    backend : str
        The part that needs the package.
    reason : str
        What is wrong with the package.
    remedy : str
        The command that installs it.
    name : str
        The package.
    """

    def __init__(self, purpose: str, reason: str, remedy: str, *, package: str = "") -> None:
        super().__init__(purpose, reason, remedy)
        self.args = (f"{purpose} cannot be used here: {reason}. Run: {remedy}",)
        self.name = package

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restored, (type(self), self.args, {**self.__dict__, "name": self.name}))


class ResourceExhausted(NeuraxisError, OSError):
    """The operating system refuses this process more of a resource: open files, processes, memory.

    Raise the limit that the text names (`ulimit`, the size of /dev/shm), or use fewer groups, processes or nodes.

    Attributes
    ----------
    reason : str
        The resource and its limit.
    remedy : str
        What to do.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        self.reason = reason
        self.remedy = remedy
        super().__init__(reason + (f". {remedy}" if remedy else ""))


# --- order of calls ---------------------------------------------------------------------------------


class NotInitialized(NeuraxisError, RuntimeError):
    """A call needs a distributed context, and this process has none.

    Call `init_distributed()` first, or make the call inside `with DistributedContext():`.
    """


class AlreadyInitialized(NeuraxisError, RuntimeError):
    """A second distributed context was created while the first one is open in this process.

    Use the existing one (`current_context()`), or close it first.
    """


class CommunicatorClosed(NeuraxisError, RuntimeError):
    """A group or context was used after it was closed.

    Make the call before the end of its `with` block, or create a new group.
    """


class ForkedProcess(NeuraxisError, RuntimeError):
    """A forked child process used an object of its parent, such as a group: a child has no rank of its own.

    Start processes with `neuraxis.launch` or with the `spawn` method of multiprocessing, and create the object there.
    """


# --- other ranks ------------------------------------------------------------------------------------


class RendezvousError(NeuraxisError, ConnectionError):
    """The ranks could not find each other at start-up.

    Check that every rank was started, with the same address, port and number of ranks.

    Attributes
    ----------
    missing : tuple of int
        Ranks that did not arrive, where they are known.
    """

    def __init__(self, message: str, missing: tuple[int, ...] = ()) -> None:
        self.missing = missing
        super().__init__(message)


class RendezvousTimeout(RendezvousError, TimeoutError):
    """Some ranks did not arrive before the deadline; `missing` names them.

    Look at the output of those ranks, or allow more time (`timeout=`).
    """


class PeerLost(NeuraxisError, ConnectionError):
    """A rank died, left or stopped responding while other ranks needed it.

    Look at the output of that rank: its failure is the cause. Groups that include it cannot be used any more; restart
    the ranks, from a checkpoint if there is one (`neuraxis launch --max-restarts`).

    Attributes
    ----------
    rank : int
        The lost rank (in the world, not in the group); -1 if the transport does not report it.
    exit_code : int or None
        Its exit code; None if a signal killed it or the code is not known.
    signal : int or None
        Number of the signal that killed it, or None.
    operation : str
        Operation in which this rank detected the loss, e.g. "all_reduce".
    sequence : int
        Number of that operation in its group, from 0.
    reason : str
        How the rank ended, as far as it is known: "raised KeyError: 'x'", "killed by SIGKILL".
    gone : tuple of int
        Ranks (in the world) that this rank waited for and that have died or left, where they are known. They may
        have left because of `rank`, which is then not one of them.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int = -1,
        exit_code: int | None = None,
        signal: int | None = None,
        operation: str = "",
        sequence: int = -1,
        reason: str = "",
        gone: tuple[int, ...] = (),
    ) -> None:
        self.rank = rank
        self.exit_code = exit_code
        self.signal = signal
        self.operation = operation
        self.sequence = sequence
        self.reason = reason
        self.gone = gone
        super().__init__(message)


class CollectiveTimeout(PeerLost, TimeoutError):
    """A rank is alive but did not arrive at a collective before the deadline.

    It is stopped, stuck, slower than the timeout, or takes another branch of the program. Make every rank call the same
    operations in the same order, or allow more time (`timeout=`).
    """


class MonitoredBarrierTimeout(CollectiveTimeout, RuntimeError):
    """Ranks did not reach a `monitored_barrier` before the deadline; `ranks` names those that this rank waited for.

    Look at what these ranks do instead. It is a RuntimeError as well, because `torch.distributed.monitored_barrier`
    raises one.
    """

    ranks: tuple[int, ...] = ()


class CollectiveMismatch(NeuraxisError, ValueError):
    """Two ranks made different calls at the same place in the sequence of a group.

    Make every rank call the same operation with the same shape and dtype, in the same order.

    Attributes
    ----------
    rank : int
        The other rank.
    mine, theirs : str
        The calls of this rank and of the other one, as text.
    """

    def __init__(self, message: str, *, rank: int = -1, mine: str = "", theirs: str = "") -> None:
        self.rank = rank
        self.mine = mine
        self.theirs = theirs
        super().__init__(message)


# --- training ---------------------------------------------------------------------------------------


class ModelMismatch(NeuraxisError, ValueError):
    """Ranks that train one model have different models. The text is the same on every rank.

    Build the model in the same way on every rank, before it is wrapped.

    Attributes
    ----------
    parameter : str
        Name of the first parameter or buffer that differs.
    rank : int
        Rank (in the world) whose model differs from that of the first rank.
    mine : str
        What rank 0 has there, e.g. "float32 (10, 256)"; "" if it has nothing.
    theirs : str
        What `rank` has there.
    """

    def __init__(self, message: str, *, parameter: str = "", rank: int = -1, mine: str = "", theirs: str = "") -> None:
        self.parameter = parameter
        self.rank = rank
        self.mine = mine
        self.theirs = theirs
        super().__init__(message)


class StepInterrupted(NeuraxisError, RuntimeError):
    """A training step ended in the middle, after some of its gradients were sent, so the ranks no longer agree.

    Fix the exception that interrupted the step, and resume every rank from the last checkpoint.
    """


# --- processes and simulations ----------------------------------------------------------------------


class LaunchError(NeuraxisError, RuntimeError):
    """The launcher could not start the processes.

    The text has the reason that the system gave: a missing program, no permission, too many processes.
    """


class LaunchTimeout(LaunchError, TimeoutError):
    """Some ranks had not returned before the deadline; the launcher has ended them.

    Look at the output of those ranks, or allow more time (`timeout=`).

    Attributes
    ----------
    ranks : tuple of int
        The ranks that were still running.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        self.ranks = ranks
        super().__init__(message)


class RankFailed(NeuraxisError, RuntimeError):
    """A launched rank ended without an exception of its own: a signal, `os._exit`, or a result that pickle rejects.

    Its output is printed before this error. A rank killed by signal 9 often ran out of memory.

    Attributes
    ----------
    rank : int
        The rank.
    exit_code : int or None
        Its exit code; None if a signal killed it.
    signal : int or None
        Number of that signal, or None.
    """

    def __init__(
        self, message: str, *, rank: int = -1, exit_code: int | None = None, signal: int | None = None
    ) -> None:
        self.rank = rank
        self.exit_code = exit_code
        self.signal = signal
        super().__init__(message)


class WorkerFailed(NeuraxisError, RuntimeError):
    """A worker of a team died, exited or raised, and the team has been closed.

    If the worker raised, its exception is the `__cause__`, provided it could be sent. Fix it and start a new team.

    Attributes
    ----------
    rank : int
        The worker that failed first, not counting those that failed because they lost another one.
    exit_code : int or None
        Its exit code; 1 if it raised; None if a signal ended it.
    signal : int or None
        Number of the signal that killed it, or None.
    traceback : str
        Text of its traceback if it raised, else "".
    last_words : str
        Output of its interpreter at a crash (segmentation fault, abort), else "".
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int = -1,
        exit_code: int | None = None,
        signal: int | None = None,
        traceback: str = "",
        last_words: str = "",
    ) -> None:
        self.rank = rank
        self.exit_code = exit_code
        self.signal = signal
        self.traceback = traceback
        self.last_words = last_words
        super().__init__(message)


class ShardFailed(NeuraxisError, RuntimeError):
    """A worker of a simulation died, exited or raised, and the simulation has been closed. Saved states are intact.

    Fix the cause that the text shows, then restore the last checkpoint into a new simulation.

    Attributes
    ----------
    worker : int
        The worker that failed first; -1 if it is not known.
    shard : str
        The neurons that it simulated, as text.
    step : int
        The last step that it completed.
    exit_code, signal : int or None
        How it ended.
    traceback : str
        Text of its traceback if it raised, else "".
    memory_bytes : int
        Its highest observed memory use; 0 if it is not known.
    log : str
        The last lines of its log.
    """

    def __init__(
        self,
        message: str,
        *,
        worker: int = -1,
        shard: str = "",
        step: int = 0,
        exit_code: int | None = None,
        signal: int | None = None,
        traceback: str = "",
        memory_bytes: int = 0,
        log: str = "",
    ) -> None:
        self.worker = worker
        self.shard = shard
        self.step = step
        self.exit_code = exit_code
        self.signal = signal
        self.traceback = traceback
        self.memory_bytes = memory_bytes
        self.log = log
        super().__init__(message)


class NumericalInstability(NeuraxisError, FloatingPointError):
    """A check found an infinite state or a NaN in a neuron, and the run was stopped.

    States are checked in one step of 16, in the last step of each call that runs some, and before they are saved. So
    the state can have become so up to 30 steps before it was noticed, another neuron can have been the first, and a
    state that is not finite in a few steps only can pass unnoticed.

    Use a smaller step, smaller weights, or bounded parameters. `check_finite=False` turns the check off.

    Attributes
    ----------
    population : str
        Name of the neuron's population.
    neuron : int
        Index in the population: the lowest, of the first population, among those noticed in this step.
    state : str
        Name of the state.
    value : float
        The infinite value, or nan.
    time_ms : float
        Model time of the step in which it was noticed.
    step : int
        Number of that step.
    """

    def __init__(
        self,
        message: str,
        *,
        population: str = "",
        neuron: int = -1,
        state: str = "",
        value: float = float("nan"),
        time_ms: float = 0.0,
        step: int = 0,
    ) -> None:
        self.population = population
        self.neuron = neuron
        self.state = state
        self.value = value
        self.time_ms = time_ms
        self.step = step
        super().__init__(message)


class CheckpointError(NeuraxisError, OSError):
    """A saved state cannot be written or read, or belongs to another network or model.

    The text names the file and the reason: no space, a damaged file, or the first difference between the two networks.
    """


class SimulationClosed(NeuraxisError, RuntimeError):
    """A simulation was used after it was closed, or after the failure of a worker ended it.

    Create a new one; `restore` continues from a saved state.
    """


class LineClosed(NeuraxisError, EOFError):
    """The connection between a team and a worker is closed; no more messages can be sent or received.

    A worker that gets this error while it waits for work should return.
    """


class LineTimeout(NeuraxisError, TimeoutError):
    """No message arrived, or not all could be sent, before the deadline. The connection remains usable.

    Wait again, allow more time (`timeout=`), or look at what the worker is doing.

    Attributes
    ----------
    ranks : tuple of int
        The ranks that did not respond.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        self.ranks = ranks
        super().__init__(message)


# --- mesh -------------------------------------------------------------------------------------------


class MeshError(NeuraxisError, ConnectionError):
    """The mesh cannot be reached, or not in the requested way; the text gives the reason and the remedy.

    `neuraxis nodes` shows which nodes can be reached from here.
    """


class MeshClosed(MeshError):
    """A node was used after it was closed.

    Make the call inside the node's `with` block, or create a new node.
    """


class NameTaken(MeshError):
    """Another node of the mesh already has this name.

    Choose another name, or close that node; a node that was killed keeps its name until the others detect the loss.
    """


class NodeGone(MeshError):
    """The node that should answer is not on the mesh, or left before it replied.

    Wait for it (`Node.wait_for`), or check its name with `neuraxis nodes`.

    Attributes
    ----------
    node : str
        Its name.
    """

    def __init__(self, message: str, node: str = "") -> None:
        self.node = node
        super().__init__(message)


class RouterLost(MeshError):
    """The connection of this node to its router is lost, so it cannot know which other nodes are present.

    Do not take the other node for gone. Start the router again, or check the network: the node reconnects by itself,
    and `Node.request(again=)` repeats a request safely.

    Attributes
    ----------
    routers : tuple of str
        Endpoints that the node connects to; empty if its own Zenoh configuration names them.
    """

    def __init__(self, message: str, routers: tuple[str, ...] = ()) -> None:
        self.routers = routers
        super().__init__(message)


class NobodyServes(MeshError, LookupError):
    """The node exists, but serves no such topic.

    Check the topic, and that the node calls `serve` with it before requests arrive.
    """


class RequestTimeout(MeshError, TimeoutError):
    """The node exists, but did not reply before the deadline. It may still handle the request.

    Allow more time (`timeout=`), or look at what the node is doing.
    """


class RequestFailed(MeshError, RuntimeError):
    """The function that serves the request raised an exception; the text is that exception's message.

    Fix it on the serving node, whose log has the traceback.

    Attributes
    ----------
    kind : str
        Name of the type of that exception.
    """

    def __init__(self, message: str, kind: str = "") -> None:
        self.kind = kind
        super().__init__(message)


class NobodyAnswered(MeshError):
    """No node replied for a role.

    Start a node that has the role, or name a default node.

    Attributes
    ----------
    role, topic : str
        What was requested.
    tried : dict of str to str
        For each node that was asked, in order, the reason why it gave no answer.
    """

    def __init__(self, role: str, topic: str, tried: dict[str, str]) -> None:
        self.role = role
        self.topic = topic
        self.tried = tried
        if tried:
            why = "; ".join(f"{name}: {reason}" for name, reason in tried.items())
            text = f"no node of the role {role!r} replied to {topic!r}: {why}"
        else:
            text = (
                f"{topic!r} needs the role {role!r}: no node here has it, and there is no default node. "
                "Start a node that has it, or name a default node."
            )
        super().__init__(text)


# --- GPU --------------------------------------------------------------------------------------------


class DeviceUnavailable(NeuraxisError, RuntimeError):
    """No usable GPU on this machine, or not the requested one.

    Follow the advice in `remedy`, or run on the CPU. `neuraxis doctor` checks the driver and the packages.

    Attributes
    ----------
    reason : str
        What is missing.
    remedy : str
        What to do.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"CUDA cannot be used here: {reason}" + (f". {remedy}" if remedy else ""))


class CudaContextClosed(NeuraxisError, RuntimeError):
    """A CUDA context, or an array of it, was used before the context was started or after it was closed.

    Use it inside the context's `with` block.
    """


class KernelCompileError(InvalidArgument):
    """The source of a CUDA kernel does not compile; the text shows each error with its line.

    Correct the source at that line.

    Attributes
    ----------
    kernel : str
        Name of the kernel.
    line : int or None
        Line of the source, from 1, of the first error; None if the compiler gave none.
    source_line : str
        Text of that line.
    log : str
        The whole output of the compiler.
    """

    def __init__(
        self, message: str, *, kernel: str = "", line: int | None = None, source_line: str = "", log: str = ""
    ) -> None:
        self.kernel = kernel
        self.line = line
        self.source_line = source_line
        self.log = log
        super().__init__(message)


class CudaError(NeuraxisError, RuntimeError):
    """A call into CUDA failed.

    The text has CUDA's own message. `nvidia-smi` shows whether the device works.

    Attributes
    ----------
    status : int
        CUDA's error number.
    """

    def __init__(self, message: str, *, status: int = -1) -> None:
        self.status = status
        super().__init__(message)


class KernelFailed(CudaError):
    """A kernel failed while it ran (an illegal address, an assertion), and this process cannot use CUDA any more.

    Check the indices and sizes that the kernel uses, then start a new process. Simulations also raise this error for a
    network whose kernels cannot run on a device at all (they do not compile or do not fit); CUDA remains usable then.

    Attributes
    ----------
    kernels : tuple of str
        Kernels that may have failed: all that were launched since the last synchronization.
    status : int
        CUDA's error number.
    """

    def __init__(self, message: str, *, kernels: tuple[str, ...] = (), status: int = -1) -> None:
        self.kernels = kernels
        super().__init__(message, status=status)


class DeviceOutOfMemory(NeuraxisError, MemoryError):
    """A GPU has less free memory than was requested; the text says how much it has.

    Free arrays, end other programs on the device, or use a smaller network or batch.
    """


# --- remote calls -------------------------------------------------------------------------------------


class RpcError(NeuraxisError):
    """A remote call has no result; the subclass gives the reason.

    Catch it to catch every failure of a call. The subclass says if the call may have run.

    Attributes
    ----------
    callee : str
        Name of the process that was called; "" if it is not known.
    """

    def __init__(self, message: str, callee: str = "") -> None:
        self.callee = callee
        super().__init__(message)


class UnknownFunction(RpcError, LookupError):
    """The callee has registered no function, factory or object of that name; nothing has run.

    Register it there with `@remote`, in a module that the callee has imported.
    """


class CalleeGone(RpcError, ConnectionError):
    """The callee was not there when the call was made; nothing has run.

    Start it first, or check its name. The call can be repeated safely.
    """


class CalleeDied(RpcError, ConnectionError):
    """The callee died, left or lost its connection during the call, which may or may not have run.

    Repeat the call only if the function is idempotent.

    Attributes
    ----------
    newest : int
        Highest number of a call that the callee has received from this caller; 0 if it is not known.
    """

    newest: int = 0


class CallTimeout(RpcError, TimeoutError):
    """The callee did not reply before the deadline. It may still run the call, once.

    Allow more time (`timeout=`), or repeat the call if the function is idempotent.
    """


class CallRefused(RpcError, PermissionError):
    """The callee refused the call and has not run it.

    The text has the reason: pickle is not allowed, the method is private, its queue is full, or it is shutting down.
    """


class CallCancelled(RpcError, CancelledError):
    """The caller cancelled the call, or closed its context; the call may or may not have run.

    Wait for the results that you need before you close the context.
    """


class RemoteError(RpcError, RuntimeError):
    """The called function raised an exception that is neither built in nor from neuraxis.

    Fix it where the function runs; `remote_traceback` shows the place. If a remote call that the function made failed,
    that failure is the `__cause__`, so that it does not look like a failure of this call.

    Attributes
    ----------
    kind : str
        Name of the type of the exception, with its module.
    remote_traceback : str
        Text of the traceback on the callee.
    """

    def __init__(self, message: str, callee: str = "", kind: str = "", remote_traceback: str = "") -> None:
        self.kind = kind
        self.remote_traceback = remote_traceback
        super().__init__(message, callee)


# --- Dask cluster -----------------------------------------------------------------------------------


class ClusterError(NeuraxisError, ConnectionError):
    """A Dask cluster cannot be started or reached, or its scheduler was lost.

    The text says which of these it is, and what to do.
    """


class ClusterClosed(ClusterError):
    """A cluster was used before it was started or after it was closed.

    Use it inside its `with` block.
    """


class ClusterTimeout(ClusterError, TimeoutError):
    """A cluster did not respond, or what was requested was not available, before the deadline.

    Check that its scheduler and workers run, or allow more time (`timeout=`).
    """


class TaskLost(NeuraxisError, RuntimeError):
    """Every worker that ran a task died of it; the text says how many.

    The task most likely exhausts the memory of a worker or crashes its interpreter: give it smaller parts.

    Attributes
    ----------
    task : str
        Dask's name of the task.
    """

    def __init__(self, message: str, task: str = "") -> None:
        self.task = task
        super().__init__(message)


def __dir__() -> list[str]:
    return __all__
