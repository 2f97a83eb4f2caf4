"""Every communication pattern run for real, and shown: what each rank held before and after, and what moved.

In the order of reading: `model` (the data of a run), `definitions` (what each pattern must do), `catalogue` (the
patterns in words), `rank` (what one rank does), `collection` (start the ranks, collect, check), and how it is shown:
`text`, `page`, with the drawings `diagram` and `timeline`.
"""
