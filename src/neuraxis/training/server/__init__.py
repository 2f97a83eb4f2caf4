"""Parameter server and workers."""
