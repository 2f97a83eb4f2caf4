"""Start, supervise and restart processes.

`run` calls a function in N processes, `Team` keeps N workers that exchange messages with this process, and
`launch_script` runs a script as N ranks, as the command `neuraxis launch` does.

Example::

    from neuraxis import launch

    results = launch.run(function, 4, argument)

The implementation is in `neuraxis.process`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["LaunchOptions", "Team", "WorkerLine", "launch_script", "run"]

if TYPE_CHECKING:
    from neuraxis.process import LaunchOptions, Team, WorkerLine, launch_script, run
else:
    from neuraxis.imports import lazy_names

    __getattr__, __dir__ = lazy_names(__name__, {"neuraxis.process": __all__})
