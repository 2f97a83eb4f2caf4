"""Start, supervise and restart N processes, here or on several hosts.

`run(function, n, *args)` runs a function in n processes and returns each rank's value.
`launch_script(LaunchOptions(...))` is what the command `neuraxis launch` calls.
"""

from __future__ import annotations

from neuraxis.launch.function import run
from neuraxis.launch.options import LaunchOptions
from neuraxis.launch.script import launch_script

__all__ = ["LaunchOptions", "launch_script", "run"]
