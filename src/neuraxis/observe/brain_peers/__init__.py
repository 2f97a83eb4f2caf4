"""Other simulators running the networks of `neuraxis bench brain`: programs, not modules to import.

Each file is run by the interpreter that has the simulator (see benchmarks/peers.sh), knows nothing of neuraxis, takes
its options as one JSON object or as `--option value`, and prints one JSON object as its last line.
"""
