"""Programs that each run one case of `neuraxis bench models` in a separate process and print its processor time.

`peer_nest.py` and `peer_brian2.py` run under another interpreter and do not import neuraxis; `ours.py` runs neuraxis.
"""
