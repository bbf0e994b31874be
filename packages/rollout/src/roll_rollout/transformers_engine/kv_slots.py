"""Keys and values of the running rows, in one pair of tensors that all layers share.

The newest tokens of all rows stand in the same column: a row that began later begins further right.
So a step writes one column for all rows, reads one window that is as wide as the longest row, and the
mask of a row never changes while it runs. A prompt of any length is copied in so that it ends at the
current column. `KvSlots` hands out a `transformers.Cache`, to be given to the model while it decodes.

        column    0 1 2 3 4 5 6 7
        row 0         p p t t t          prompt of 2, 3 tokens so far
        row 1               p p          prompt of 2, just admitted
                      low       column
"""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from roll_rollout.transformers_engine.prompts import PromptState

_MIN_COLUMNS = 64


class KvSlots:
    """Slots for the rows of a batch.

    Args:
        windows: One entry a layer with keys of its own: the sliding window in tokens, or None for full
            attention.
        max_rows: Most rows.

    Attributes:
        mask: Of the step that was begun last, see `begin_step`.
    """

    def __init__(self, windows: Sequence[int | None], *, max_rows: int) -> None:
        self.cache = Cache(layers=[_SlotLayer(self, layer) for layer in range(len(windows))])
        self._windows = tuple(windows)
        self._max_rows = max_rows
        self._starts = np.zeros(max_rows, dtype=np.int64)
        self.reset()

    def reset(self) -> None:
        """Frees all rows and their memory."""
        # [layers, rows, heads, columns, width] and [rows, 1, 1, columns]; sized at the first admission.
        self._keys = torch.empty((0, 0, 0, 0, 0))
        self._values = torch.empty((0, 0, 0, 0, 0))
        self._mask = torch.empty((0, 1, 1, 0))
        self._rows = 0
        self._column = 0
        self._low = 0
        self._equal_lengths = True
        self.mask: torch.Tensor | None = None
        self._write: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]] = ((), ())
        self._read: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]] = ((), ())

    @property
    def window(self) -> int:
        """Columns between the start of the longest row and the newest token."""
        return self._column - self._low

    @property
    def capacity(self) -> int:
        """Columns that are allocated."""
        return self._keys.shape[3]

    def admit(self, states: Sequence[PromptState]) -> None:
        """Appends one row a state; the same state several times in a row is copied in one go."""
        first, end = self._rows, self._rows + len(states)
        self._reserve(states[0], rows=end, before=max(state.length for state in states))
        row = first
        while row < end:
            state = states[row - first]
            stop = row + 1
            while stop < end and states[stop - first] is state:
                stop += 1
            start = self._column - state.length
            self._keys[:, row:stop, :, start : self._column] = state.keys.unsqueeze(1)
            self._values[:, row:stop, :, start : self._column] = state.values.unsqueeze(1)
            self._starts[row:stop] = start
            row = stop
        self._rows = end
        self._hide_padding(first)
        self._find_longest()

    def begin_step(self) -> torch.Tensor | None:
        """Makes room for one token a row and returns the mask: additive [B, 1, 1, K], or None for no mask."""
        if self._column == self._keys.shape[3]:
            self._make_room(before=0)
        here = slice(self._column, self._column + 1)
        self._write = (self._columns(self._keys, here), self._columns(self._values, here))
        self._read = self._readable()
        self.mask = None
        if not self._equal_lengths:
            self.mask = self._mask[: self._rows, :, :, self._low : self._column + 1]
        return self.mask

    def end_step(self) -> None:
        """The token of the step is in."""
        self._column += 1

    def append(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the new column of a layer, [B, H, 1, D] each, and returns all that its queries may see."""
        self._write[0][layer].copy_(keys)
        self._write[1][layer].copy_(values)
        return self._read[0][layer], self._read[1][layer]

    def wipe(self, row: int) -> None:
        """Overwrites a row whose contents may not be finite: a NaN spreads even through a mask."""
        self._keys[:, row].zero_()
        self._values[:, row].zero_()

    def keep(self, moves: Sequence[tuple[int, int]], *, rows: int) -> None:
        """Shrinks to the first `rows` rows after copying each source row over its target."""
        used = slice(self._low, self._column)
        for source, target in moves:
            self._keys[:, target, :, used] = self._keys[:, source, :, used]
            self._values[:, target, :, used] = self._values[:, source, :, used]
            self._mask[target] = self._mask[source]
            self._starts[target] = self._starts[source]
        self._rows = rows
        if rows == 0:
            # Batches that start alike are laid out alike, whatever ran before.
            self._column = self._low = 0
        self._find_longest()

    def _reserve(self, like: PromptState, *, rows: int, before: int) -> None:
        """Makes sure of `rows` rows and of `before` columns up to the current one."""
        row_capacity, columns = self._keys.shape[1], self._keys.shape[3]
        if row_capacity == 0:
            layers, heads, _, width = like.keys.shape
            row_capacity = self._row_capacity(rows)
            columns = _power_of_two(max(_MIN_COLUMNS, 2 * before))
            self._keys = like.keys.new_zeros((layers, row_capacity, heads, columns, width))
            self._values = like.values.new_zeros((layers, row_capacity, heads, columns, like.values.shape[3]))
            self._mask = like.keys.new_zeros((row_capacity, 1, 1, columns))
        elif rows > row_capacity:
            self._reallocate(self._row_capacity(rows), columns, self._column)
        if self._rows == 0 and before <= columns:
            self._column = self._low = before
        elif before > self._column:
            self._make_room(before=before)

    def _row_capacity(self, rows: int) -> int:
        return min(self._max_rows, _power_of_two(rows))

    def _make_room(self, *, before: int) -> None:
        """Moves the window so that `before` columns precede the current one, which exists."""
        column, capacity = max(before, self.window), self._keys.shape[3]
        # At most half full after the move, so that the next one is as many steps away as this one costs.
        if column <= self._low and 2 * column <= capacity:
            self._shift(column)
        else:
            self._reallocate(self._keys.shape[1], max(capacity, _power_of_two(2 * column)), column)

    def _shift(self, column: int) -> None:
        """Moves the window left, so that the current column becomes `column`; source and target are apart."""
        source, target = slice(self._low, self._column), slice(column - self.window, column)
        for tensor in (self._keys, self._values):
            tensor[:, : self._rows, :, target] = tensor[:, : self._rows, :, source]
        self._renumber(column)

    def _reallocate(self, rows: int, columns: int, column: int) -> None:
        """Copies the window into larger tensors, so that the current column becomes `column`."""
        source, target = slice(self._low, self._column), slice(column - self.window, column)
        grown = []
        for tensor in (self._keys, self._values):
            layers, _, heads, _, width = tensor.shape
            larger = tensor.new_zeros((layers, rows, heads, columns, width))
            larger[:, : self._rows, :, target] = tensor[:, : self._rows, :, source]
            grown.append(larger)
        self._keys, self._values = grown
        self._mask = self._mask.new_zeros((rows, 1, 1, columns))
        self._renumber(column)

    def _renumber(self, column: int) -> None:
        offset = column - self._column
        self._starts[: self._rows] += offset
        self._low += offset
        self._column = column
        self._hide_padding(0)

    def _hide_padding(self, first: int) -> None:
        """Rewrites the mask of the rows from `first` on: columns before a row's start are hidden."""
        starts = torch.from_numpy(self._starts[first : self._rows]).to(self._mask.device)
        columns = torch.arange(self._mask.shape[3], device=self._mask.device)
        mask = self._mask[first : self._rows, 0, 0]
        mask.zero_().masked_fill_(columns < starts[:, None], torch.finfo(mask.dtype).min)

    def _find_longest(self) -> None:
        if self._rows:
            starts = self._starts[: self._rows]
            self._low = int(starts.min())
            self._equal_lengths = self._low == int(starts.max())

    def _readable(self) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        """Returns the window of every layer, narrowed where attention slides."""
        end = self._column + 1
        full = slice(self._low, end)
        keys, values = self._columns(self._keys, full), self._columns(self._values, full)
        narrow = {
            layer: end - window - self._low
            for layer, window in enumerate(self._windows)
            if window is not None and end - window > self._low
        }
        if narrow:
            keys = [each[:, :, narrow.get(layer, 0) :] for layer, each in enumerate(keys)]
            values = [each[:, :, narrow.get(layer, 0) :] for layer, each in enumerate(values)]
        return keys, values

    def _columns(self, tensor: torch.Tensor, columns: slice) -> Sequence[torch.Tensor]:
        return tensor[:, : self._rows, :, columns].unbind(0)


class _SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call] # of its untyped __init_subclass__
    """One layer of `KvSlots` as the model's attention sees it, between `begin_step` and `end_step`."""

    is_sliding = False

    def __init__(self, slots: KvSlots, layer: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # transformers leaves it untyped
        self._slots = slots
        self._layer = layer
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the slots are allocated when rows are admitted."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the new token of every row and returns the keys and values to attend to."""
        return self._slots.append(self._layer, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns the number of keys and their offset."""
        return self._slots.window + query_length, 0

    def get_seq_length(self) -> int:
        """Returns the tokens held for the longest row."""
        return self._slots.window

    def get_max_length(self) -> int:
        """Returns -1: the slots grow."""
        return -1


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
