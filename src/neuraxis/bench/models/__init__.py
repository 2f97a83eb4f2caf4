"""`neuraxis bench models`: the time that a neuron takes for a step, compared with other simulators."""
