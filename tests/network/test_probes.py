from __future__ import annotations

import pickle

import numpy as np
import pytest

from neuraxis.errors import InvalidArgument, InvalidType
from tests.network.neurons import pair


def test_spikes_of_all_by_default():
    probe = pair().record("E")
    assert (probe.what, probe.every_ms, probe.subset, probe.n) == ("spikes", None, None, 8)


def test_a_state_is_recorded_every_step_by_default():
    assert pair(dt_ms=0.25).record("E", "v_mv").every_ms == 0.25
    assert pair().record("E", "v_mv", every_ms=2).every_ms == 2.0


@pytest.mark.parametrize(
    ("subset", "ids"),
    [
        (3, [0, 1, 2]),
        (np.int64(8), [0, 1, 2, 3, 4, 5, 6, 7]),
        (slice(2, None, 3), [2, 5]),
        (slice(None, None, -4), [7, 3]),
        ([7, 0], [7, 0]),
        (np.array([4], dtype=np.uint8), [4]),
        (range(1, 3), [1, 2]),
    ],
)
def test_subsets(subset, ids):
    probe = pair().record("E", subset=subset)
    assert probe.subset.tolist() == ids
    assert probe.subset.dtype == np.int64
    assert probe.n == len(ids)
    copy = pickle.loads(pickle.dumps(probe))
    assert copy == probe
    assert hash(copy) == hash(probe)
    assert not copy.subset.flags.writeable


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"what": "v"}, "what='v'.*'spikes', 'v_mv', 'refractory'"),
        ({"what": ""}, "what=''"),
        ({"every_ms": 1.0}, r"every_ms=1\.0: applies to states"),
        ({"what": "v_mv", "every_ms": 0.0}, r"every_ms=0\.0"),
        ({"what": "v_mv", "every_ms": 0.05}, r"every_ms=0\.05.*dt_ms=0\.1"),
        ({"what": "v_mv", "every_ms": float("nan")}, "every_ms=nan"),
        ({"what": "v_mv", "every_ms": 1e300}, "every_ms"),
        ({"subset": 0}, "subset=0"),
        ({"subset": 9}, "subset=9"),
        ({"subset": []}, "no neuron of 'E'"),
        ({"subset": slice(8, None)}, "no neuron of 'E'"),
        ({"subset": slice(None, None, 0)}, "subset=slice"),
        ({"subset": [0, 8]}, r"subset\[1\]=8"),
        ({"subset": [-1]}, r"subset\[0\]=-1"),
        ({"subset": [1, 1]}, "more than once"),
        ({"population": "e"}, "population='e'"),
    ],
)
def test_probes_that_cannot_be(arguments, message):
    network = pair()
    with pytest.raises(InvalidArgument, match=message):
        network.record(**{"population": "E"} | arguments)
    assert network == pair()


@pytest.mark.parametrize(
    "arguments",
    [
        {"what": None},
        {"what": 1},
        {"what": "v_mv", "every_ms": "1"},
        {"subset": True},
        {"subset": 2.0},
        {"subset": "3"},
        {"subset": [True, False]},
        {"subset": [0.0]},
        {"subset": {1, 2}},
    ],
)
def test_probes_of_the_wrong_type(arguments):
    network = pair()
    with pytest.raises(InvalidType, match=list(arguments)[-1]):
        network.record(**{"population": "E"} | arguments)
    assert network == pair()
