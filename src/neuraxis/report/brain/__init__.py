"""The HTML report of a brain: learning curve, spikes of one trial, graph of the regions, and load of the workers.

Modules in reading order: `model` (the data), `task_report` (collects it from a brain), `page` (the page), its figures
`curve`, `raster`, `graph` and `load`, and `markup` (their common helpers).
"""
