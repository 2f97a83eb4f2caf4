"""Programs that each run one of the benchmark's networks in a process of their own and print what they measured.

`peer_nest.py` and `peer_brian2.py` run under another interpreter and know nothing of neuraxis; `ours.py` is its side.
"""
