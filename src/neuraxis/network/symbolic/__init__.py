"""Differential equations as text, compiled to neuron models: `neuraxis.network.equations`."""
