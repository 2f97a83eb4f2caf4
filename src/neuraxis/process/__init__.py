"""Start, supervise and restart processes, on this machine or on several hosts.

`run(function, n, *args)` runs a function in n processes and returns the value of each rank.
`Team(function, n, *args)` keeps n worker processes and exchanges messages with them.
`launch_script(LaunchOptions(...))` implements the command `neuraxis launch`.

Users import these names from `neuraxis.launch`.
"""

from __future__ import annotations

from neuraxis.process.function import run
from neuraxis.process.script import LaunchOptions, launch_script
from neuraxis.process.team import Team
from neuraxis.process.team_worker import WorkerLine

__all__ = ["LaunchOptions", "Team", "WorkerLine", "launch_script", "run"]
