"""PJRT_LoadedExecutable_Execute: from lists of buffer handles to a run and back."""

from __future__ import annotations

import ctypes
from itertools import repeat
from typing import Any

import numpy as np

from neuronjax.pjrt import abi
from neuronjax.pjrt.client_state import ClientState
from neuronjax.pjrt.handles import WORDS, array_type, read_int64s, read_pointers
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.pjrt.short_run import Plan
from neuronjax.pjrt.values import RECORD_BYTES, ready_template
from neuronjax.runtime.event import Event
from neuronjax.runtime.executable import LoadedProgram
from neuronjax.runtime.value import Join, ShardedValue

_NOTHING: frozenset[int] = frozenset()


def _word(field: str) -> int:
    return abi.word("LoadedExecutable_Execute", field)


_EXECUTABLE = _word("executable")
_OPTIONS, _ARGUMENTS, _COUNT = _word("options"), _word("argument_lists"), _word("num_args")
_RESULTS, _EVENTS = _word("output_lists"), _word("device_complete_events")


class Bystander:
    """A loaded program without a core of this process: others run it, and a call has no buffers."""

    plan = None

    def run(self, at: int) -> None:
        """Serves one call of ``LoadedExecutable_Execute``."""

    def end(self, at: int, outputs: list[Any]) -> None:
        """Never called: no run begins."""


class Runner:
    """A loaded program with everything a call needs prepared."""

    def __init__(self, state: ClientState, loaded: LoadedProgram) -> None:
        self.loaded = loaded
        self._state = state
        self._plugin = state.plugin
        self._values = state.plugin.values
        self._placement = loaded.placement
        self._devices = len(loaded.placement)
        signature = loaded.program.signature
        self._argument_list: Any = array_type(ctypes.c_uint64, len(signature.argument_types))
        self._steps = np.arange(self._devices, dtype=np.uint64)[:, None] * np.uint64(RECORD_BYTES)
        self._templates = [state.template(spec) for spec in loaded.results]
        self._ready_templates = [ready_template(records) for records in self._templates]
        self._donated = signature.donated
        self._ledger = state.client.ledger
        self._ready_event = state.plugin.ready_event
        self._stress = state.client.stress
        self.plan = self._make_plan()

    def _make_plan(self) -> Plan | None:
        """The short way, where machine code can go it: a run that cannot begin is begun again here,
        for its error. Under stress half of the programs go it."""
        plain = self.loaded.plain
        repeatable = not self.loaded.program.callbacks
        if self._values.bare is None or plain is None or not repeatable:
            return None
        if self._stress is not None and self._stress.pretends_pending():
            return None
        (device,) = (self._state.device_handles[core] for core in self._placement.ids)
        return Plan(self.loaded, plain, device, self._ready_templates)

    def run(self, at: int) -> None:
        """Serves one call of ``LoadedExecutable_Execute``; ``at`` is the number of the word at
        which the arguments begin.

        For a program that is nothing but itself on one core this goes without a look at what such
        a program has not, and without further frames below the run: jaxlib makes an object of each
        frame there is, for the tracebacks of its arrays.
        """
        values = self._values
        values.collect()
        plain = self.loaded.plain
        if plain is None or plain.arguments != WORDS[at + _COUNT]:
            return self._run_any(at)
        arrays = []
        if plain.arguments:
            get, placement = values.values.get, self._placement
            first = WORDS[WORDS[at + _ARGUMENTS] >> 3] >> 3
            for handle in WORDS[first : first + plain.arguments]:
                value = get(handle) or values.get(handle)
                if value is None or value.spec.placement is not placement or value.array is None:
                    return self._run_any(at)
                arrays.append(value.array)
        if not plain.claim():
            return self._run_any(at)
        try:
            outputs = plain.start(arrays).consume_with_handlers(plain.handlers)
        except BaseException:
            plain.disclaim()
            raise
        if self.plan is not None:
            self.plan.offer(WORDS[at + _EXECUTABLE])
            values.stock(len(outputs))
        return self.end(at, outputs)

    def end(self, at: int, outputs: list[Any]) -> None:
        """Hands out the results of a run on one core, which has ended or will."""
        values = self._values
        results = map(ShardedValue, outputs, self.loaded.results, repeat(self._ledger))
        if not self._has_succeeded(outputs[0]):
            return self._hand_out(at, list(results), outputs[0], done=False)
        to = WORDS[WORDS[at + _RESULTS] >> 3] >> 3
        for handle in map(values.add, results, self._ready_templates):
            WORDS[to] = handle
            to += 1
        events = WORDS[at + _EVENTS]
        if events:
            WORDS[events >> 3] = self._ready_event
        return None

    def _run_any(self, at: int) -> None:
        lists = WORDS[at + _ARGUMENTS]
        if self._devices == 1:
            handles, values, gathered = self._single(lists, WORDS[at + _COUNT])
        else:
            handles, values, gathered = self._many(read_pointers(lists, self._devices))
        kept = self._find_kept(WORDS[at + _OPTIONS]) if self._donated else _NOTHING
        with_token = WORDS[at + _EVENTS] != 0 and not self._templates
        results, token = self.loaded.execute(values, kept, with_token)
        work = results[0].array if results else token
        failed = results[0].event if results else None
        done = failed is None and (work is None or (token is None and self._has_succeeded(work)))
        for index in self._donated:
            if index not in kept:
                self._consume(handles[index], gathered.get(index))
        self._hand_out(at, results, work, done, failed)

    def _hand_out(
        self,
        at: int,
        results: list[ShardedValue],
        work: Any,
        done: bool,
        failed: Event | None = None,
    ) -> None:
        """Gives results and events of a run to the caller; ``work`` ends when the run does."""
        templates = self._ready_templates if done else self._templates
        bases = list(map(self._values.add, results, templates))
        self._write(WORDS[at + _RESULTS], bases)
        events = WORDS[at + _EVENTS]
        if not done:
            event = failed or self._state.client.when_ready(work)
            self._watch(event, results, bases, events)
        elif events:
            first = events >> 3
            ready = self._plugin.ready_event
            for word in range(first, first + self._devices):
                WORDS[word] = ready

    def _single(
        self, lists: int, count: int
    ) -> tuple[list[int], list[ShardedValue], dict[int, list[int]]]:
        if not count:
            return [], [], {}
        first = WORDS[lists >> 3] >> 3
        handles = WORDS[first : first + count]
        get, placement = self._values.get, self._placement
        values: list[ShardedValue] = []
        gathered = {}
        for handle in handles:
            value = get(handle)
            if value is None or value.spec.placement is not placement:
                gathered[len(values)] = [handle]
                value = self._join_shards([handle])
            values.append(value)
        return handles, values, gathered

    def _many(self, rows: list[int]) -> tuple[list[int], list[ShardedValue], dict[int, list[int]]]:
        """Arguments that are whole values are recognised by evenly spaced handles."""
        kind = self._argument_list
        if not rows or kind._length_ == 0:
            return [], [], {}
        table = np.array([np.frombuffer(kind.from_address(row), np.uint64) for row in rows])
        handles: list[int] = table[0].tolist()
        values: list[Any] = list(map(self._values.get, handles))
        gathered = {}
        placement = self._placement
        uneven = (table != table[0] + self._steps).any(axis=0)
        for index in uneven.nonzero()[0].tolist():
            values[index] = None
        for index, value in enumerate(values):
            if value is None or value.spec.placement is not placement:
                gathered[index] = table[:, index].tolist()
                values[index] = self._join_shards(gathered[index])
        return handles, values, gathered

    def _join_shards(self, column: list[int]) -> ShardedValue:
        """The value made of single shards; kept with the first of them for the next call."""
        first = self._values.get(column[0])
        if first is not None and first.join is not None:
            join = first.join
            if join.handles == column and join.value.spec.placement is self._placement:
                return join.value
        shards = [self._values.find(handle) for handle in column]
        value = self._state.client.gather(shards, self._placement)
        parts = [self._values.get(handle) for handle in column]
        others = [part for part in parts[1:] if part is not None]
        if first is not None and len(others) == len(column) - 1:
            first.join_with(others, Join(column, value))
        return value

    def _find_kept(self, options: int | None) -> frozenset[int]:
        """Arguments that must survive although the program would take them over."""
        if not options:
            return _NOTHING
        record = abi.record("ExecuteOptions").from_address(options)
        count = record.num_non_donatable_input_indices
        return frozenset(read_int64s(record.non_donatable_input_indices, count))

    def _consume(self, handle: int, shards: list[int] | None) -> None:
        """Marks a donated argument's buffers as deleted; ``shards`` if it was joined from some."""
        if shards is None:
            self._values.mark(handle, range(self._devices), "deleted")
            return
        for shard in shards:
            value, index = self._values.find(shard)
            value.delete(index)
            self._values.mark(shard, range(1), "deleted")

    def _write(self, output_lists: int, bases: list[int]) -> None:
        if self._devices == 1:
            for word, base in enumerate(bases, WORDS[output_lists >> 3] >> 3):
                WORDS[word] = base
            return
        rows = read_pointers(output_lists, self._devices)
        table = np.array(bases, np.uint64)[None, :] + self._steps
        start, size = table.ctypes.data, table.strides[0]
        for number, row in enumerate(rows):
            ctypes.memmove(row, start + number * size, size)

    def _watch(
        self, event: Event, results: list[ShardedValue], bases: list[int], events: int | None
    ) -> None:
        """Lets results and completion events become ready when the run has ended."""
        plugin: Plugin = self._plugin
        for value in results:
            value.event = event

        def mark(error: BaseException | None) -> None:
            if error is None:
                for base, value in zip(bases, results, strict=True):
                    self._values.mark_ready(base, value)

        event.on_ready(mark)
        if events:
            out: Any = array_type(ctypes.c_uint64, self._devices).from_address(events)
            out[:] = [plugin.new_event(event) for _ in range(self._devices)]

    def _has_succeeded(self, array: Any) -> bool:
        """Whether a run with this result is over already, and without an error."""
        stress = self._stress
        if not array.is_ready() or (stress is not None and stress.pretends_pending()):
            return False
        try:
            array.block_until_ready()
        except Exception:  # the event of the run will carry it
            return False
        return True
