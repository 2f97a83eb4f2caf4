"""Programs that each run one of the benchmark's networks in a separate process and print the times.

`peer_nest.py` and `peer_brian2.py` run under another interpreter and do not import neuraxis; `ours.py` runs neuraxis.
"""
