"""Start, supervise and restart N processes, here or on several hosts.

`run(function, n, *args)` runs a function in n processes and returns each rank's value.
`Team(function, n, *args)` keeps n processes that are told by messages what to do.
`launch_script(LaunchOptions(...))` is what the command `neuraxis launch` calls.
"""

from __future__ import annotations

from neuraxis.launch.function import run
from neuraxis.launch.options import LaunchOptions
from neuraxis.launch.script import launch_script
from neuraxis.launch.team import Team
from neuraxis.launch.team_worker import WorkerLine

__all__ = ["LaunchOptions", "Team", "WorkerLine", "launch_script", "run"]
