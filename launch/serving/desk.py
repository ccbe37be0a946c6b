"""Does what the process with the clients asks for, and tells it what becomes of that."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from functools import partial
from typing import Any

from launch.errors import LaunchError
from launch.serving.adapters.host import AdapterHost
from launch.serving.answering import Answering, Deliver
from launch.serving.batcher import Batcher
from launch.serving.channel import Channel
from launch.serving.config import EngineConfig
from launch.serving.errors import ComputingError
from launch.serving.grammar import Grammars
from launch.serving.messages import (
    AskLoad,
    Call,
    Cancel,
    CheckAdapter,
    Compute,
    Outputs,
    Raised,
    Refused,
    Report,
    Returned,
    Stopped,
    Submit,
    Withdraw,
)
from launch.serving.outbox import Outbox
from launch.serving.requests import Output

Action = Callable[[Any], Any]  # a Future is waited for


class Desk:
    """Acts on commands by their types, and on what calls want by its."""

    def __init__(self, commands: Mapping[type, Action], calls: Mapping[type, Action]) -> None:
        self._commands: Mapping[type, Action] = {
            Call: self._call,
            Withdraw: self._withdraw,
            **commands,
        }
        self._calls = calls
        self._channel: Channel | None = None
        self._under_way: dict[int, Future[Any]] = {}

    def work(self, channel: Channel) -> None:
        """Does everything that comes through a channel, until its other end has gone."""
        self._channel = channel
        for command in channel.messages():
            self._commands[type(command)](command)
        self._channel = None

    def tell(self, report: Report) -> None:
        """Tells of a report, from any thread; nobody may listen."""
        channel = self._channel
        if channel is not None:
            channel.send(report)

    def _call(self, call: Call) -> None:
        try:
            result = self._calls[type(call.wanted)](call.wanted)
        except Exception as error:
            self.tell(Raised(call.number, _told(error)))
            return
        if not isinstance(result, Future):
            self.tell(Returned(call.number, result))
            return
        self._under_way[call.number] = result
        result.add_done_callback(lambda done: self._done(call.number, done))

    def _done(self, number: int, future: "Future[Any]") -> None:
        self._under_way.pop(number, None)
        try:
            self.tell(Returned(number, future.result()))
        except CancelledError:
            pass  # nobody waits
        except Exception as error:
            self.tell(Raised(number, _told(error)))

    def _withdraw(self, command: Withdraw) -> None:
        future = self._under_way.get(command.number)
        if future is not None:
            future.cancel()


class EngineDesk(Desk):
    """The desk of an engine, which lives until the end of the `with` block."""

    def __init__(
        self,
        make: Callable[[Deliver], Answering],
        grammars: Grammars,
        host_adapters: Callable[[Answering], AdapterHost] | None = None,
        *,
        delivery_interval: float = EngineConfig.delivery_interval,
    ) -> None:
        commands: dict[type, Action] = {Submit: self._submit, Cancel: self._cancel}
        calls: dict[type, Action] = {AskLoad: lambda _: self.engine.load()}
        super().__init__(commands, calls)
        self._grammars = grammars
        self._outbox = Outbox(lambda outputs: self.tell(Outputs(outputs)), delivery_interval)
        self.engine = make(self._deliver)
        self._adapters: AdapterHost | None = None
        if host_adapters is not None:
            self._adapters = host = host_adapters(self.engine)
            calls[CheckAdapter] = lambda wanted: host.check(wanted.path)

    def __enter__(self) -> "EngineDesk":
        return self

    def __exit__(self, *_: object) -> None:
        if self._adapters is not None:
            self._adapters.close()
        self.engine.close()
        self._outbox.close()

    def _submit(self, command: Submit) -> None:
        request = command.request
        refuse = partial(self._refuse, request.id)
        try:
            if request.is_bounded:
                request = replace(request, grammar=self._grammars.of(request))
            if request.adapter is not None and self._adapters is not None:
                self._adapters.admit(request, self.engine.submit, refuse)
            else:
                self.engine.submit(request)
        except Exception as error:  # others' commands go on
            refuse(error)

    def _refuse(self, request_id: str, error: Exception) -> None:
        self.tell(Refused(request_id, _told(error)))

    def _cancel(self, command: Cancel) -> None:
        self.engine.cancel(command.request_id, command.reason)
        self._leave(command.request_id)

    def _leave(self, request_id: str) -> None:
        if self._adapters is not None:
            self._adapters.leave(request_id)

    def _deliver(self, outputs: Sequence[Output]) -> None:
        self._outbox.put(outputs)
        for output in outputs:
            if output.finished is not None:
                self._leave(output.id)
        is_error = not outputs or outputs[0].finished == "error"
        if is_error and self.engine.failure is not None:
            self.tell(Stopped(str(self.engine.failure)))


class BatchDesk(Desk):
    """The desk before what computes in groups."""

    def __init__(self, batcher: Batcher[Any, Any]) -> None:
        super().__init__(
            {},
            {
                AskLoad: lambda _: batcher.load(),
                Compute: lambda wanted: batcher.submit(wanted.items),
            },
        )


def _told(error: Exception) -> LaunchError:
    """An error as it is told to another process, which may not know its type; it stands in the log
    then."""
    if isinstance(error, LaunchError):
        return error
    traceback.print_exception(error)
    return ComputingError(f"{type(error).__name__}: {error}")
