"""Neuron models of the brain's regions, written like those of `neuraxis.network.models`."""
