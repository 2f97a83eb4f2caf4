"""Projections as rows of words for the kernels that draw synapses, with what these rows point to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.cuda.device import Device, Memory, Program
from neuraxis.engine.cuda.grid import Grid, first_places
from neuraxis.engine.cuda.words import word
from neuraxis.engine.encoding import Drawn, encode_rule
from neuraxis.engine.neurons import NeuronPart
from neuraxis.engine.random import normal_table
from neuraxis.network import Network, Projection
from neuraxis.network.rules import FixedTotalNumber

__all__ = ["Jobs", "double", "most_threads", "usual_threads", "wide_grid"]

_THREADS = 256
_BLOCKS_FOR_EACH_MULTIPROCESSOR = 8


def usual_threads(device: Device) -> int:
    return _THREADS if device.warp == 32 else 4 * device.warp


def most_threads(device: Device) -> int:
    """For kernels whose blocks stand for the blocks of the grid, so that there are no more of them."""
    return 1024 if device.warp == 32 else 4 * device.warp


def wide_grid(device: Device) -> int:
    return device.multiprocessors * _BLOCKS_FOR_EACH_MULTIPROCESSOR


class Jobs:
    """Projections to draw; the memory that belongs to them is kept as long as this is."""

    def __init__(self, network: Network, parts: list[NeuronPart], grid: Grid, device: Device, program: Program) -> None:
        self.device, self.program = device, program
        self._network, self._grid = network, grid
        self._first_places = first_places(parts)
        self._kept: list[Memory] = []
        self._words: list[dict[str, int]] = []
        self._trees: list[tuple[Projection, Memory]] = []
        self._normal = self.put(normal_table())

    def add(self, projection: Projection, part: NeuronPart, words: dict[str, int]) -> None:
        """A projection onto the neurons of a part; `words` are those of the kernels that it is meant for."""
        self._words.append(self._drawing_words(projection, part) | words)

    def put(self, array: NDArray[Any]) -> int:
        """The address of a copy on the device; 0 for nothing."""
        if array.size == 0:
            return 0
        self._kept.append(self.device.put(array))
        return self._kept[-1].address

    def describe(self, common: dict[str, int]) -> list[int]:
        """The addresses of the rows, with these words in all of them. There is one if there is no projection, too."""
        table = np.zeros((max(1, len(self._words)), word("JOB_WORDS")), np.int64)
        for values, row in zip(self._words or [{}], table, strict=True):
            for name, value in (values | common).items():
                row[word(f"J_{name}")] = value
        first = self.put(table)
        return [first + 8 * word("JOB_WORDS") * i for i in range(len(table))]

    def draw_in_degrees(self) -> None:
        """Draw the in-degrees of fixed totals, level by level down their trees."""
        if not self._trees:
            return
        device = self.device
        table = np.array([[one.index, one.post.n, memory.address] for one, memory in self._trees], np.int64)
        trees = device.put(table)
        threads = usual_threads(device)
        job = device.empty(8 * word("D_WORDS"))
        for level in range(int(table[:, word("DT_N_POST")].max()).bit_length()):
            words = np.zeros(word("D_WORDS"), np.int64)
            words[word("D_LEVEL")], words[word("D_PROJECTIONS")] = level, len(table)
            words[word("D_TREES")], words[word("D_SEED")] = trees.address, _signed(self._network.seed)
            device.write(job, words)
            warps = len(table) << level
            blocks = min(device.multiprocessors * 16, -(-warps * device.warp // threads))
            self.program.launch("split_nodes", blocks, threads, 8 * threads, [job.address])

    def _drawing_words(self, projection: Projection, part: NeuronPart) -> dict[str, int]:
        """What all kernels that draw synapses need to know."""
        network = self._network
        rule = encode_rule(projection, part.part, network.seed, totals=False)
        kind, index, n_pre, no_self, distinct, share, groups, n_post = (int(one) for one in rule.words)
        weight, delay = Drawn.of(projection.weight), Drawn.of(projection.delay_ms)
        counts = self.put(rule.counts)
        if isinstance(projection.rule, FixedTotalNumber) and projection.rule.multapses:
            in_degrees = np.zeros(n_post, np.int64)
            in_degrees[0] = projection.rule.n
            memory = self.device.put(in_degrees)
            self._trees.append((projection, memory))
            counts = memory.address + 8 * part.part.first
        words = {
            "KIND": kind, "PROJECTION": index, "N_PRE": n_pre, "N_POST": n_post, "NO_SELF": no_self,
            "DISTINCT": distinct, "SHARE": share, "GROUPS": groups, "SEED": _signed(network.seed),
            "FIRST": part.part.first, "LAST": part.part.last, "FIRST_PLACE": self._first_places[part.part.population],
            "COUNTS": counts, "LISTED": self.put(rule.listed), "LISTED_FIRST": self.put(rule.listed_first),
            "LISTED_ORDER": self.put(rule.listed_order), "WEIGHT_KIND": weight.kind,
            "WEIGHT_VALUES": self.put(weight.values), "DELAY_KIND": delay.kind,
            "DELAY_VALUES": self.put(delay.values),
            "DT": double(network.dt_ms), "LONGEST": network.delay_bounds_steps(projection)[1],
            "BLOCKS": self._grid.blocks, "CELLS": self._grid.cells, "NORMAL_TABLE": self._normal,
        }  # fmt: skip
        for i, (w, d) in enumerate(zip(weight.parameters, delay.parameters, strict=True)):
            words["WEIGHT" + (f"_{i}" if i else "")] = double(float(w))
            words["DELAY" + (f"_{i}" if i else "")] = double(float(d))
        return words


def double(value: float) -> int:
    """A float64 as the word that has its bits."""
    return int(np.float64(value).view(np.int64))


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
