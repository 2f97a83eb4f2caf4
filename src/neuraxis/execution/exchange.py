"""Carry spikes between shards that share no memory, by an all-gather for each window of steps: the shortest delay.

Ranks with residents also carry letters. A letter is posted before the step of its spike, so whatever was posted since
the last window goes with this one, and is there before its spike can be heard.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from neuraxis.comm import Communicator
from neuraxis.engine.outboxes import LONGEST_LAG
from neuraxis.engine.packing import pack_steps, unpack_steps
from neuraxis.engine.shard import Shard
from neuraxis.errors import ShardFailed
from neuraxis.execution.resident import Letter, OwnMail
from neuraxis.execution.tensors import packed, unpacked

__all__ = ["ON_ALL_RANKS", "Exchange", "RankMail", "on_all_ranks"]

ON_ALL_RANKS = "(raised on all ranks)"  # a note on errors that are, so that one rank can tell them for all

Error = TypeVar("Error", bound=Exception)

_FAILED, _LENGTH, _LETTERS = range(3)  # what a rank says when it meets the others
_SAID = 3
_AT_ONCE = 509  # numbers that go with it


class RankMail(OwnMail):
    """Mail that waits for the next window.

    Args:
        abroad: the marks that residents of other ranks hear.
    """

    def __init__(self, abroad: Collection[int]) -> None:
        super().__init__()
        self._abroad = frozenset(abroad)
        self.outgoing: list[list[Any]] = []

    def post(self, letter: Letter) -> None:
        super().post(letter)
        if letter.source in self._abroad:
            # Packed here, so that it is the sender who is told that something cannot travel.
            content = packed(self.letters[letter.source, letter.step])
            self.outgoing.append([letter.source, letter.step, content])

    def keep(self, letters: list[list[Any]]) -> None:
        for source, step, content in letters:
            self.letters[source, step] = unpacked(content)


class Exchange:
    """Fills this process's copies of the others' outboxes with what they sent.

    All ranks run as far as they can without news and then stop at the same step, so each call is one meeting.
    """

    def __init__(self, shard: Shard, communicator: Communicator, mail: RankMail) -> None:
        self._shard = shard
        self._communicator = communicator
        self._mail = mail
        network = shard.network
        self._first_ids = np.array([p.first_id for p in network.populations] + [network.neuron_count], np.int64)
        self._window = int(np.delete(shard.lags, shard.me).min(initial=LONGEST_LAG))
        self._known = 0  # the last step that was exchanged
        self.failed = False  # whether all ranks know that a region of one of them failed

    def __call__(self) -> None:
        """Exchange the spikes of the steps since the last time."""
        self._carry(self._known)

    def begin_at(self, step: int) -> None:
        """After a state was restored: exchange the spikes of the window before it. (Letters are in the state.)"""
        self._mail.outgoing.clear()
        self._carry(max(0, step - self._window))

    def end(self, error: ShardFailed | None = None) -> None:
        """Meet at the end of a run, or earlier because a region here failed: then all raise ShardFailed.

        Every rank meets the others at the end of each window and of each run, so who fails can tell the others instead
        of leaving them waiting.
        """
        self._meet(np.zeros(0, np.int32), 0, error)

    def _carry(self, after: int) -> None:
        shard, now = self._shard, self._shard.step
        steps, ids = pack_steps(shard.outboxes, shard.me, len(shard.network.populations), after + 1, now)
        letters, self._mail.outgoing = self._mail.outgoing, []
        everybody, letters_sent = self._meet(np.concatenate([steps.astype(np.int32), ids]), len(letters))
        for other, theirs in enumerate(everybody):
            if other != shard.me:
                steps, ids = theirs[: theirs.size // 2].astype(np.uint16), theirs[theirs.size // 2 :]
                unpack_steps(shard.outboxes, other, self._first_ids, after + 1, now, steps, ids, after + 1)
            ctypes.c_int64.from_address(int(shard.outboxes.done[other])).value = now
        if letters_sent:
            sent: list[Any] = [None] * self._communicator.size
            self._communicator.all_gather_object(sent, letters)
            for other, posted in enumerate(sent):
                if other != shard.me:
                    self._mail.keep(posted)
        self._known = now

    def _meet(
        self, flat: NDArray[np.int32], letters: int, error: ShardFailed | None = None
    ) -> tuple[list[NDArray[np.int32]], bool]:
        """(What each rank sends; whether any has letters.)

        What is short goes at once, since most windows hold few spikes; only the rest of what is longer goes after it.
        """
        size = self._communicator.size
        said = np.zeros((size, _SAID + _AT_ONCE), np.int32)
        mine = np.zeros(_SAID + _AT_ONCE, np.int32)
        mine[:_SAID] = error is not None, flat.size, letters
        mine[_SAID : _SAID + flat.size] = flat[:_AT_ONCE]
        self._communicator.all_gather_into_tensor(said.reshape(-1), mine)
        if said[:, _FAILED].any():
            self.failed = True
            told: list[Any] = [None] * size
            self._communicator.all_gather_object(told, None if error is None else _as_plain(error))
            raise on_all_ranks(error or _as_error(next(one for one in told if one is not None)))
        rows = said[:, _SAID:]
        missing = int(said[:, _LENGTH].max()) - _AT_ONCE
        if missing > 0:
            rest = np.zeros((size, missing), np.int32)
            mine = np.zeros(missing, np.int32)
            mine[: max(0, flat.size - _AT_ONCE)] = flat[_AT_ONCE:]
            self._communicator.all_gather_into_tensor(rest.reshape(-1), mine)
            rows = np.concatenate([rows, rest], axis=1)
        return [row[:length] for row, length in zip(rows, said[:, _LENGTH], strict=True)], bool(said[:, _LETTERS].any())


def on_all_ranks(error: Error) -> Error:
    """An error that every rank raises, noted as such."""
    error.add_note(ON_ALL_RANKS)
    return error


def _as_plain(error: ShardFailed) -> list[Any]:
    return [str(error), error.worker, error.shard, error.step, error.traceback]


def _as_error(told: list[Any]) -> ShardFailed:
    text, worker, shard, step, traceback = told
    return ShardFailed(text, worker=worker, shard=shard, step=step, traceback=traceback)
