"""`neuraxis bench collectives`: communication patterns, compared with gloo and Open MPI."""
