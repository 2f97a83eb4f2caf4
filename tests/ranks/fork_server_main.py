"""Main program of a fork server: import modules, then fork a process on each request."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import multiprocessing.connection as mpc
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from neuraxis.comm.backends.shm.backend import _warm_up


def _serve(connection: Any) -> tuple[str, str, tuple[Any, ...]] | None:
    """Serve requests. Return None when the connection closes, and the call to make in each forked process."""
    children: set[int] = set()
    while True:
        try:
            kind, *order = connection.recv()
        except EOFError:
            for pid in children:  # of tests that were interrupted
                os.kill(pid, signal.SIGKILL)
            return None
        try:
            if kind == "fork":
                module, function, arguments, environment, log = order
                importlib.import_module(module)
                assert len(os.listdir("/proc/self/task")) == 1, f"{module} has started threads"
                gc.freeze()  # otherwise the collector of each child touches, and so copies, every loaded page
                pid = os.fork()
                if pid == 0:
                    connection.close()
                    _become(environment, log)
                    return module, function, arguments
                children.add(pid)
                connection.send(pid)
            elif kind == "load":
                importlib.import_module(order[0])
                connection.send(None)
            else:
                pid, status = os.waitpid(order[0], os.WNOHANG)
                children.discard(pid)
                connection.send(os.waitstatus_to_exitcode(status) if pid else None)
        except Exception as error:
            connection.send(error)


def _become(environment: dict[str, str], log: str) -> None:
    """Give this forked process its own environment variables, output and SIGINT handler."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    if environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()


def _main(descriptor: int, modules: Sequence[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test process handles Ctrl-C and closes the connection
    for module in modules:
        importlib.import_module(module)
    _warm_up()  # load the compiled kernels once as well
    connection = mpc.Connection(descriptor)
    connection.send("ready")
    call = _serve(connection)
    if call is not None:
        module, function, arguments = call
        getattr(sys.modules[module], function)(*arguments)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
