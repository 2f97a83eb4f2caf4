"""The engine on CPU cores: a shard's tables and the compiled kernels that advance them."""
