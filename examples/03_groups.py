"""Some of the ranks, while the others go on: rows and columns of a grid, and a reduction along each.

neuraxis launch -n 4 examples/03_groups.py
"""

import numpy as np

import neuraxis.distributed as dist

with dist.DistributedContext() as context:
    columns = 2 if context.world_size % 2 == 0 else 1
    rows = context.world_size // columns
    row, column = divmod(context.rank, columns)

    # Every rank takes part in making every group, in the same order; it is a member of two of them.
    row_groups = [dist.new_group([r * columns + c for c in range(columns)]) for r in range(rows)]
    column_groups = [dist.new_group([r * columns + c for r in range(rows)]) for c in range(columns)]

    along_row = np.array([float(context.rank)])
    along_column = along_row.copy()
    dist.all_reduce(along_row, group=row_groups[row])
    dist.all_reduce(along_column, group=column_groups[column])
    print(f"rank {context.rank} at ({row}, {column}): row sum {along_row[0]:g}, column sum {along_column[0]:g}")
