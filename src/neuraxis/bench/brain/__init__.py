"""`neuraxis bench brain`: spiking networks, compared with other simulators."""
