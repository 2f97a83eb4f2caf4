"""What a brain did, as one page: how it learned, one trial's spikes, who talks to whom, and what the workers did.

In the order of reading: `model` (the data), `page` (the whole page, and writing it), and its figures: `curve`,
`raster`, `graph` (with `layering` and `routing`, which find the places) and `load`. `markup` has what they share,
`marks` the flags on a time axis; `curve_figure` draws the learning curve for a paper, with matplotlib.
"""
