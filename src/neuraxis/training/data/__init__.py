"""Samplers and loaders that distribute a data set over the ranks."""
