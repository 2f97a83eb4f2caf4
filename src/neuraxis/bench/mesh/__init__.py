"""`neuraxis bench mesh`: messages compared with raw Zenoh, and brains run by every method."""
