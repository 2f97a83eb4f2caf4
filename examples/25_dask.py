"""The tutorial "Using Dask for Distributed Data Processing": a data set standardized in chunks, on worker processes.

python examples/25_dask.py

Differences from the tutorial are marked with "instead of" and "added".
"""

import numpy as np
import torch

from neuraxis.distributed import DaskCluster, dask_to_tensor, tensor_to_dask

# What the tutorial leaves out
rows, columns = 4000, 16


def create_data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, columns, generator=generator) * torch.arange(1, columns + 1) + 5


if __name__ == "__main__":  # added: worker processes import this file
    np.save("large_dataset.npy", create_data().numpy())

    # Create Dask cluster
    with DaskCluster(n_workers=2, threads_per_worker=2) as cluster:  # instead of 4 workers: there may be fewer cores
        # Load data
        data = torch.from_numpy(np.load("large_dataset.npy"))  # instead of neurenix.tensor.load

        # Convert to Dask array
        dask_data = tensor_to_dask(data, chunks=(1000, -1))

        # Define processing function
        def process_chunk(chunk):
            # Convert to tensor
            tensor = torch.tensor(chunk)  # instead of neurenix.tensor.Tensor

            # Process tensor
            processed = tensor - tensor.mean(dim=0)
            processed = processed / tensor.std(dim=0)

            return processed.numpy()

        # Process data in parallel
        processed_dask = dask_data.map_blocks(
            process_chunk,
            meta=np.empty((0, 0), np.float32),  # added: Dask would try the function on an array without rows
        )

        # Compute result
        processed_data = dask_to_tensor(processed_dask)

        # Save result
        np.save("processed_dataset.npy", processed_data.numpy())  # instead of processed_data.save

        print(cluster)

    chunks = processed_data.split(1000)
    right = all(
        torch.allclose(chunk.mean(dim=0), torch.zeros(columns), atol=1e-5)
        and torch.allclose(chunk.std(dim=0), torch.ones(columns), atol=1e-5)
        for chunk in chunks
    )
    print(f"{len(chunks)} chunks of {tuple(chunks[0].shape)}, each with mean 0 and deviation 1: {right}")
