"""Every error a user can meet, in one tree.

Each error also inherits the built-in it is a case of, so that code which knows nothing of neuraxis can
still catch it (`except TimeoutError`, `except ConnectionError`). An error says what happened, where, and
what to do next; what a program may want to act on is an attribute, not only a word in the text.
"""

from __future__ import annotations

from concurrent.futures import CancelledError

__all__ = [
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
    "ModelMismatch",
    "NameTaken",
    "NeuraxisError",
    "NobodyAnswered",
    "NobodyServes",
    "NodeGone",
    "NotInitialized",
    "NotSerializable",
    "PeerLost",
    "RankFailed",
    "RemoteError",
    "RendezvousError",
    "RendezvousTimeout",
    "RequestFailed",
    "RequestTimeout",
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
    """The root of every error that neuraxis raises on purpose."""


# --- you asked for something that cannot be ---------------------------------------------------------


class InvalidArgument(NeuraxisError, ValueError):
    """An argument has a value that the call cannot take; the text names the argument and the value."""


class SpecError(InvalidArgument):
    """A brain's description is wrong. The text is `file: field: reason`.

    Attributes:
        file: the file's path; for a description that is in no file, what it was called.
        field: the path of the field within it ("regions.cortex.config.neurons"); "" if it is none of them.
        reason: what is wrong with it.
        line: the line of the file, from 1, where its syntax is wrong; None if its syntax is right.
    """

    def __init__(self, reason: str, file: str = "", field: str = "", line: int | None = None) -> None:
        self.reason = reason
        self.file = file
        self.field = field
        self.line = line
        place = "" if line is None else f"line {line}"
        super().__init__(": ".join(part for part in (file, field, place, reason) if part))

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.reason, self.file, self.field, self.line))


class InvalidType(NeuraxisError, TypeError):
    """An argument is of a type (or dtype) that the call cannot take."""


class NotSerializable(NeuraxisError, TypeError):
    """An object cannot travel: it would need pickle, which was not allowed, or is too large for a message."""


class BackendUnavailable(NeuraxisError, RuntimeError):
    """A backend cannot be used here. `backend` names it, `reason` says why, `remedy` what to do."""

    def __init__(self, backend: str, reason: str, remedy: str = "") -> None:
        self.backend = backend
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"backend {backend!r} cannot be used here: {reason}" + (f". {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[object, ...]:
        return (BackendUnavailable, (self.backend, self.reason, self.remedy))


# --- the order of calls -----------------------------------------------------------------------------


class NotInitialized(NeuraxisError, RuntimeError):
    """A call needs a distributed context and there is none (not yet, or no longer)."""


class AlreadyInitialized(NeuraxisError, RuntimeError):
    """A second context was started while one is alive in this process."""


class CommunicatorClosed(NeuraxisError, RuntimeError):
    """A group or context was used after it was shut down."""


class ForkedProcess(NeuraxisError, RuntimeError):
    """A forked child used what belongs to its parent: it holds the parent's rank, not one of its own."""


# --- the others -------------------------------------------------------------------------------------


class RendezvousError(NeuraxisError, ConnectionError):
    """The ranks could not find each other. `missing` lists the ranks that did not arrive, where known."""

    def __init__(self, message: str, missing: tuple[int, ...] = ()) -> None:
        self.missing = missing
        super().__init__(message)


class RendezvousTimeout(RendezvousError, TimeoutError):
    """Not every rank had arrived when the time was up; `missing` names them."""


class PeerLost(NeuraxisError, ConnectionError):
    """A rank died, left or stopped answering while others needed it.

    Attributes:
        rank: the lost rank (in the world, not in the group); -1 if the transport does not say.
        exit_code: its exit code, or None if it was killed or the code is not known.
        signal: the signal number that killed it, or None.
        operation: the operation in which this rank noticed, e.g. "all_reduce".
        sequence: the number of that operation in its group, from 0.
        reason: what became of the lost rank, as far as it is known: "raised KeyError: 'x'", "killed by SIGKILL".
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
    ) -> None:
        self.rank = rank
        self.exit_code = exit_code
        self.signal = signal
        self.operation = operation
        self.sequence = sequence
        self.reason = reason
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_peer_lost, (type(self), str(self), self.__dict__))


def _rebuild_peer_lost(kind: type[PeerLost], message: str, fields: dict[str, object]) -> PeerLost:
    error = kind(message)
    error.__dict__.update(fields)
    return error


class CollectiveTimeout(PeerLost, TimeoutError):
    """A rank is alive but did not arrive before the call's deadline (stopped, stuck, or elsewhere)."""


class CollectiveMismatch(NeuraxisError, ValueError):
    """Two ranks made different calls at the same place. `mine` and `theirs` describe both, `rank` is the other."""

    def __init__(self, message: str, *, rank: int = -1, mine: str = "", theirs: str = "") -> None:
        self.rank = rank
        self.mine = mine
        self.theirs = theirs
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_mismatch, (str(self), self.rank, self.mine, self.theirs))


def _rebuild_mismatch(message: str, rank: int, mine: str, theirs: str) -> CollectiveMismatch:
    return CollectiveMismatch(message, rank=rank, mine=mine, theirs=theirs)


# --- learning together --------------------------------------------------------------------------------


class ModelMismatch(NeuraxisError, ValueError):
    """Ranks that train one model have different ones. The text is the same on every rank.

    Attributes:
        parameter: the name of the first parameter or buffer that differs.
        rank: the rank (in the world) whose model differs from that of the first rank.
        mine: what rank 0 has there, e.g. "float32 (10, 256)"; "" where it has nothing.
        theirs: what `rank` has there.
    """

    def __init__(self, message: str, *, parameter: str = "", rank: int = -1, mine: str = "", theirs: str = "") -> None:
        self.parameter = parameter
        self.rank = rank
        self.mine = mine
        self.theirs = theirs
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_model_mismatch, (str(self), self.__dict__))


def _rebuild_model_mismatch(message: str, fields: dict[str, object]) -> ModelMismatch:
    error = ModelMismatch(message)
    error.__dict__.update(fields)
    return error


class StepInterrupted(NeuraxisError, RuntimeError):
    """A training step was left in the middle, with some of its gradients sent: the ranks no longer agree."""


# --- the launcher -----------------------------------------------------------------------------------


class LaunchError(NeuraxisError, RuntimeError):
    """Processes could not be started."""


class LaunchTimeout(LaunchError, TimeoutError):
    """Not every rank had returned when the time was up; `ranks` names those that were still running."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        self.ranks = ranks
        super().__init__(message)


class RankFailed(NeuraxisError, RuntimeError):
    """A launched rank died without an exception of its own (signal, `os._exit`, unpicklable result)."""

    def __init__(
        self, message: str, *, rank: int = -1, exit_code: int | None = None, signal: int | None = None
    ) -> None:
        self.rank = rank
        self.exit_code = exit_code
        self.signal = signal
        super().__init__(message)


class WorkerFailed(NeuraxisError, RuntimeError):
    """A worker of a team died, exited or raised; the team has been ended with it.

    Where the worker raised, the exception itself is the `__cause__`, if it could be sent.

    Attributes:
        rank: the worker that failed first, of those that did not merely lose another one.
        exit_code: its exit code, 1 if it raised, or None if a signal ended it.
        signal: the signal number that killed it, or None.
        traceback: the text of its traceback if it raised, else "".
        last_words: what its interpreter wrote when it crashed (a segmentation fault, an abort), else "".
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
    """A worker of a simulation died, exited or raised, and the simulation ended with it. What was saved is intact.

    Attributes:
        worker: which one failed first; -1 if that is not known.
        shard: the neurons that it had, as text.
        step: the last step that it had completed.
        exit_code, signal: how it ended.
        traceback: the text of its traceback if it raised, else "".
        memory_bytes: the most memory that it was seen to have; 0 if that is not known.
        log: the last lines of its log.
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

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_shard_failed, (str(self), self.__dict__))


def _rebuild_shard_failed(message: str, fields: dict[str, object]) -> ShardFailed:
    error = ShardFailed(message)
    error.__dict__.update(fields)
    return error


class CheckpointError(NeuraxisError, OSError):
    """A saved state cannot be written, read, or does not belong to this network or model; the text names the file."""


class SimulationClosed(NeuraxisError, RuntimeError):
    """A simulation was used after it was closed, or after a worker's failure ended it."""


class LineClosed(NeuraxisError, EOFError):
    """The other end of the line between a team and its worker was closed, in good order: nothing more comes."""


class LineTimeout(NeuraxisError, TimeoutError):
    """Nothing came, or not all could be sent, in time; the line stays usable. `ranks` names who kept us waiting."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        self.ranks = ranks
        super().__init__(message)


# --- on the mesh --------------------------------------------------------------------------------------


class MeshError(NeuraxisError, ConnectionError):
    """The mesh cannot be reached, or not in the way that was asked for; the text says why and what to do."""


class MeshClosed(MeshError):
    """A node was used after it was closed."""


class NameTaken(MeshError):
    """A node of that name is on the mesh already."""


class NodeGone(MeshError):
    """A node that was asked is not on the mesh, or left while it was answering. `node` is its name."""

    def __init__(self, message: str, node: str = "") -> None:
        self.node = node
        super().__init__(message)


class NobodyServes(MeshError, LookupError):
    """A node that was asked is there, and serves nothing under that topic."""


class RequestTimeout(MeshError, TimeoutError):
    """A node that was asked is there, and has not answered in time."""


class RequestFailed(MeshError, RuntimeError):
    """What serves a request raised; the text is what it said. `kind` is the name of its exception."""

    def __init__(self, message: str, kind: str = "") -> None:
        self.kind = kind
        super().__init__(message)


class NobodyAnswered(MeshError):
    """No node answered for a role. `tried` is who was asked, in order, and why each has not answered."""

    def __init__(self, role: str, topic: str, tried: dict[str, str]) -> None:
        self.role = role
        self.topic = topic
        self.tried = tried
        if tried:
            why = "; ".join(f"{name}: {reason}" for name, reason in tried.items())
            text = f"{topic!r} was asked of the role {role!r}, and nobody answered: {why}"
        else:
            text = f"{topic!r} was asked of the role {role!r}: no node here has it, and there is no default node"
        super().__init__(text)

    def __reduce__(self) -> tuple[object, ...]:
        return (NobodyAnswered, (self.role, self.topic, self.tried))


# --- on a GPU -----------------------------------------------------------------------------------------


class DeviceUnavailable(NeuraxisError, RuntimeError):
    """There is no GPU to use here, or not that one. `reason` says what is missing, `remedy` what to do."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"CUDA cannot be used here: {reason}" + (f". {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[object, ...]:
        return (DeviceUnavailable, (self.reason, self.remedy))


class CudaContextClosed(NeuraxisError, RuntimeError):
    """A CUDA context, or an array of it, was used before the context was started or after it was stopped."""


class KernelCompileError(InvalidArgument):
    """The source of a CUDA kernel does not compile; the text shows each error with the line it is about.

    Attributes:
        kernel: the name that the kernel was asked for by.
        line: the line of the source, from 1, of the first error; None if the compiler named none.
        source_line: the text of that line.
        log: all that the compiler said.
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
    """A call into CUDA failed. `status` is CUDA's number for the reason."""

    def __init__(self, message: str, *, status: int = -1) -> None:
        self.status = status
        super().__init__(message)


class KernelFailed(CudaError):
    """A kernel failed while it ran (an illegal address, an assertion): this process can use CUDA no longer.

    It is raised, too, for a network whose kernels cannot run on a device at all (there is no room for them, or they do
    not compile); CUDA stays usable then.

    Attributes:
        kernels: those that may have failed: all that were launched since the device was last waited for.
        status: CUDA's number for the reason.
    """

    def __init__(self, message: str, *, kernels: tuple[str, ...] = (), status: int = -1) -> None:
        self.kernels = kernels
        super().__init__(message, status=status)


class DeviceOutOfMemory(NeuraxisError, MemoryError):
    """A GPU has not as much memory free as was asked for; the text says how much it has."""


# --- remote calls -------------------------------------------------------------------------------------


class RpcError(NeuraxisError):
    """A remote call has no result. `callee` is who was called, by name; "" where that is not known."""

    def __init__(self, message: str, callee: str = "") -> None:
        self.callee = callee
        super().__init__(message)


class UnknownFunction(RpcError, LookupError):
    """The callee has registered no function, factory or object of that name; nothing has run."""


class CalleeGone(RpcError, ConnectionError):
    """The callee was not there when it was to be called; nothing has run."""


class CalleeDied(RpcError, ConnectionError):
    """The callee died, left or was cut off during the call, which may or may not have run."""


class CallTimeout(RpcError, TimeoutError):
    """The callee has not answered in time; it may still run the call, once."""


class CallRefused(RpcError, PermissionError):
    """The callee has not run this call: pickle, a private method, too many calls waiting, or it is shutting down."""


class CallCancelled(RpcError, CancelledError):
    """The call was cancelled where it was made, or its context was shut down; it may or may not have run."""


class RemoteError(RpcError, RuntimeError):
    """The called function raised something that is neither a built-in exception nor one of neuraxis.

    Or a remote call of its own failed: that failure is the `__cause__`, so that it does not look like one of this call.

    Attributes:
        kind: the name of the exception's type, with its module.
        remote_traceback: the text of its traceback, where it was raised.
    """

    def __init__(self, message: str, callee: str = "", kind: str = "", remote_traceback: str = "") -> None:
        self.kind = kind
        self.remote_traceback = remote_traceback
        super().__init__(message, callee)

    def __reduce__(self) -> tuple[object, ...]:
        return (RemoteError, (str(self), self.callee, self.kind, self.remote_traceback))


# --- on a Dask cluster --------------------------------------------------------------------------------


class ClusterError(NeuraxisError, ConnectionError):
    """A Dask cluster cannot be started or reached, or its scheduler was lost; the text says which and what to do."""


class ClusterClosed(ClusterError):
    """A cluster was used before it was started, or after it was stopped."""


class ClusterTimeout(ClusterError, TimeoutError):
    """A cluster has not answered in time, or what was asked for was not there yet when the time was up."""


class TaskLost(NeuraxisError, RuntimeError):
    """Every worker that ran a task died of it; the text says how many. `task` is Dask's name for it."""

    def __init__(self, message: str, task: str = "") -> None:
        self.task = task
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (TaskLost, (str(self), self.task))
