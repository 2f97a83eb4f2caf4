"""Benchmarks that compare neuraxis with its peers, on one harness.

Every benchmark has the same parts. A *plan* lists what to measure. *Contenders* (processes, ours and the peers') take
turns within each round, so that other load on the machine affects all of them alike, and the median of the rounds
counts. *Results* hold every round, the machine and its load before the start. A *report* holds tables, notes and
targets, and renders itself for a terminal, as plain text, as Markdown and as JSON.

- `harness`: what all benchmarks share: results, targets, the report and its renderer
- `machine`: the hardware and versions that figures belong to, and whether the machine is idle enough to trust them
- `processes`: start and end the processes of a benchmark
- `contenders`, `rank`: groups of ranks that measure what the benchmark requests
- `programs`: find other simulators, and run a program of one
- `collectives`, `brain`, `models`, `mesh`, `rpc`, `training`: what each benchmark measures
"""
