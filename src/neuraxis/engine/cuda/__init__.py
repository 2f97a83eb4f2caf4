"""The engine on a GPU: the same shards, spikes and states, in kernels that are compiled for the network's models."""
