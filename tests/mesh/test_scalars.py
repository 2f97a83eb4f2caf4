from __future__ import annotations

import numpy as np

from neuraxis.mesh import Node


def test_numbers_of_numpy_are_numbers() -> None:
    with Node("scalars", mesh=f"values-scalars-{np.random.default_rng().integers(2**40)}") as node:
        node.subscribe("other/topic", lambda message: None, depth=np.int64(8), history=np.int32(2))
        node.serve("twice", lambda message: 2 * message.value, threads=np.int64(1))
        assert node.request("scalars", "twice", 21, timeout=np.float32(20.0)) == 42
