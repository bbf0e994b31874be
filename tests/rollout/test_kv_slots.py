"""Slots show each row exactly its own keys and values, whatever enters, leaves, moves or grows."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_rollout.transformers_engine.kv_slots import KvSlots
from roll_rollout.transformers_engine.prompts import PromptState

LAYERS, HEADS, WIDTH = 2, 2, 3


class PlainRows:
    """Keys of every row as a list of columns: what the slots must agree with."""

    def __init__(self, windows: Sequence[int | None], max_rows: int) -> None:
        self.windows = windows
        self.slots = KvSlots(windows, max_rows=max_rows)
        self.rows: list[list[torch.Tensor]] = []
        self.next_value = 0.0

    def fresh(self, *shape: int) -> torch.Tensor:
        """Values that were never used before."""
        count = torch.Size(shape).numel()
        values = torch.arange(count) + self.next_value + 1.0
        self.next_value += count
        return values.reshape(shape)

    def admit(self, lengths: list[int], copies: int) -> None:
        states = []
        for length in lengths:
            keys = self.fresh(LAYERS, HEADS, length, WIDTH)
            state = PromptState(keys=keys, values=-keys, logits=torch.zeros(1))
            states.extend([state] * copies)
        for state in states:
            self.rows.append(list(state.keys.unbind(2)))
        self.slots.admit(states)

    def step(self) -> None:
        mask = self.slots.begin_step()
        new = self.fresh(LAYERS, len(self.rows), HEADS, 1, WIDTH)
        for layer in range(LAYERS):
            keys, values = self.slots.cache.update(new[layer], -new[layer], layer)
            assert torch.equal(keys, -values)
            for row, columns in enumerate(self.rows):
                expected = torch.stack([*(each[layer] for each in columns), new[layer, row, :, 0]], dim=1)
                window = self.windows[layer]
                expected = expected if window is None else expected[:, -window:]
                seen = torch.ones(keys.shape[2], dtype=torch.bool)
                if mask is not None:
                    seen = mask[row, 0, 0, -keys.shape[2] :] == 0
                assert torch.equal(keys[row][:, seen], expected)
        for row, columns in enumerate(self.rows):
            columns.append(new[:, row, :, 0])
        self.slots.end_step()
        assert self.slots.window == max(map(len, self.rows))

    def remove(self, gone: set[int]) -> None:
        size = len(self.rows) - len(gone)
        targets = sorted(row for row in gone if row < size)
        sources = [row for row in range(size, len(self.rows)) if row not in gone]
        moves = list(zip(sources, targets, strict=True))
        for source, target in moves:
            self.rows[target] = self.rows[source]
        del self.rows[size:]
        self.slots.keep(moves, rows=size)


events = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.lists(st.integers(1, 90), min_size=1, max_size=3), st.integers(1, 3)),
        st.tuples(st.just("step"), st.integers(1, 14)),
        st.tuples(st.just("remove"), st.sets(st.integers(0, 20), max_size=6)),
    ),
    max_size=10,
)


@settings(max_examples=30, deadline=None)
@given(events=events, window=st.sampled_from([None, 5, 30]))
def test_every_row_sees_its_own_tokens_and_no_others(events, window):
    plain = PlainRows([None, window], max_rows=20)
    for event in events:
        match event:
            case ("admit", lengths, copies):
                if len(plain.rows) + copies * len(lengths) <= 20:
                    plain.admit(lengths, copies)
            case ("step", count):
                for _ in range(count if plain.rows else 0):
                    plain.step()
            case ("remove", gone) if plain.rows:
                plain.remove({row for row in gone if row < len(plain.rows)})


def test_rows_of_equal_length_need_no_mask():
    slots = KvSlots([None], max_rows=4)
    state = PromptState(keys=torch.ones(1, 1, 3, 2), values=torch.ones(1, 1, 3, 2), logits=torch.zeros(1))
    slots.admit([state, state])
    assert slots.begin_step() is None


def test_memory_follows_the_longest_row_and_not_the_number_of_steps():
    slots = KvSlots([None], max_rows=2)
    one = torch.ones(1, 1, 1, 2)
    state = PromptState(keys=one, values=one, logits=torch.zeros(1))
    widest = 0
    for _ in range(300):
        slots.admit([state, state])
        for _ in range(5):
            slots.begin_step()
            slots.append(0, torch.ones(2, 1, 1, 2), torch.ones(2, 1, 1, 2))
            slots.end_step()
        slots.keep([(1, 0)], rows=1)
        slots.keep([], rows=0)
        widest = max(widest, slots.capacity)
    assert widest <= 64


def test_long_run_with_overlapping_rows_stays_within_twice_the_longest():
    plain = PlainRows([None] * LAYERS, max_rows=3)
    plain.admit([4], 2)
    for _ in range(60):
        for _ in range(10):
            plain.step()
        plain.remove({0})
        plain.admit([4], 1)
    assert plain.slots.capacity <= 64


@pytest.mark.parametrize("query_length", [1, 4])
def test_cache_reports_its_sizes_to_transformers(query_length):
    plain = PlainRows([None] * LAYERS, max_rows=3)
    plain.admit([7, 3], 1)
    plain.step()
    assert plain.slots.cache.get_seq_length() == 8
    assert plain.slots.cache.get_mask_sizes(query_length, 0) == (8 + query_length, 0)
    assert plain.slots.cache.get_max_length() == -1


def test_wiped_row_leaves_no_nan_behind():
    slots = KvSlots([None], max_rows=2)
    bad = torch.full((1, 1, 3, 2), float("nan"))
    slots.admit([PromptState(keys=bad, values=bad, logits=torch.zeros(1))])
    slots.wipe(0)
    slots.keep([], rows=0)
    good = torch.ones(1, 1, 1, 2)
    long = torch.ones(1, 1, 5, 2)
    slots.admit([PromptState(keys=each, values=each, logits=torch.zeros(1)) for each in (good, long)])
    slots.begin_step()
    keys, values = slots.append(0, torch.ones(2, 1, 1, 2), torch.ones(2, 1, 1, 2))
    assert torch.isfinite(keys).all() and torch.isfinite(values).all()
