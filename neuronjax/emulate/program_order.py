"""Execution in program order: one instruction after the other, as the program lists them.

Code without exchanges becomes plain functions, called in turn. Code that exchanges data with other
ranks, or with other cores of a split, becomes generators, which yield until these have posted their
sides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

from neuronjax.emulate.code import (
    CallCode,
    Code,
    IfCode,
    KernelCode,
    LoopCode,
    SplitCode,
    Step,
    WhileCode,
)
from neuronjax.emulate.fabric import Fabric, Member, Running
from neuronjax.emulate.frame import Values
from neuronjax.emulate.hooks import Hooks
from neuronjax.emulate.unit import Run

Generate = Callable[[Values], Generator[None, None, None]]


@dataclass(frozen=True, slots=True)
class Runner:
    """Executable code: a function, or a generator if it `waits` for other ranks."""

    run: Run | None
    generate: Generate | None = None

    def running(self, values: Values) -> Running:
        """Executes the code; yields while it waits for other ranks."""
        if self.generate is not None:
            yield from self.generate(values)
        elif self.run is not None:
            self.run(values)


@dataclass(frozen=True, slots=True)
class ProgramRunner:
    """Turns code into runners."""

    member: Member
    hooks: Hooks

    def block(self, codes: tuple[Code, ...]) -> Runner:
        """A runner of several pieces of code in turn."""
        runners = [_MAKERS[type(code)](self, code) for code in codes]
        plain = [runner.run for runner in runners if runner.run is not None]
        if len(plain) < len(runners):
            return Runner(None, _in_turn(runners))
        if len(plain) == 1:
            return Runner(plain[0])
        return Runner(_all_of(plain))

    def _step(self, step: Step) -> Runner:
        if step.exchange is not None:
            return Runner(None, self._exchange(step))
        return Runner(self._hooked(step))

    def _hooked(self, step: Step) -> Run:
        run, hooks = step.run, self.hooks
        assert run is not None
        if not hooks.want(step):
            return run

        def hooked(values: Values) -> None:
            hooks.before(step, values)
            run(values)
            hooks.after(step, values)

        return hooked

    def _exchange(self, step: Step) -> Generate:
        exchange, member, hooks = step.exchange, self.member, self.hooks
        assert exchange is not None

        def generate(values: Values) -> Generator[None, None, None]:
            ticket = member.post(step, values)
            while ticket.results is None:
                yield
            exchange.receive(values, ticket.results)
            hooks.after(step, values)

        return generate

    def _loop(self, loop: LoopCode) -> Runner:
        body = self.block(loop.body)
        if body.run is not None:
            run = body.run

            def looped(values: Values) -> None:
                for _ in loop.indices(values):
                    run(values)

            return Runner(looped)

        def generate(values: Values) -> Generator[None, None, None]:
            for _ in loop.indices(values):
                yield from body.running(values)

        return Runner(None, generate)

    def _while(self, node: WhileCode) -> Runner:
        condition, body, register = self.block(node.condition), self.block(node.body), node.register

        def generate(values: Values) -> Generator[None, None, None]:
            while True:
                yield from condition.running(values)
                if not values[register]:
                    return
                yield from body.running(values)

        return Runner(None, generate)

    def _if(self, node: IfCode) -> Runner:
        then, otherwise, register = self.block(node.then), self.block(node.otherwise), node.register
        if then.run is not None and otherwise.run is not None:
            yes, no = then.run, otherwise.run
            return Runner(lambda values: yes(values) if values[register] else no(values))

        def generate(values: Values) -> Generator[None, None, None]:
            yield from (then if values[register] else otherwise).running(values)

        return Runner(None, generate)

    def _kernel(self, node: KernelCode) -> Runner:
        body, hooks = self.block(node.body), self.hooks
        if not hooks.want_kernels:
            return body

        def generate(values: Values) -> Generator[None, None, None]:
            hooks.begin(node)
            yield from body.running(values)

        return Runner(None, generate)

    def _call(self, node: CallCode) -> Runner:
        return self.block(node.body)

    def _split(self, node: SplitCode) -> Runner:
        """Kernels in turn, each up to where it waits for another core or rank."""
        cores = Fabric(len(node.kernels), member="core")
        runners = [
            dataclasses.replace(
                self, member=dataclasses.replace(self.member, cores=cores, core=core)
            ).block((kernel,))
            for core, kernel in enumerate(node.kernels)
        ]

        def generate(values: Values) -> Generator[None, None, None]:
            own = [list(values) for _ in runners]
            running = [runner.running(mine) for runner, mine in zip(runners, own, strict=True)]
            for active in cores.running(running):
                if cores.is_stuck(active):
                    cores.fail(active)
                yield
            values[:] = own[-1]

        return Runner(None, generate)


def _all_of(runs: list[Run]) -> Run:
    def run(values: Values) -> None:
        for step in runs:
            step(values)

    return run


def _in_turn(runners: list[Runner]) -> Generate:
    def generate(values: Values) -> Generator[None, None, None]:
        for runner in runners:
            if runner.run is not None:
                runner.run(values)
            else:
                yield from runner.running(values)

    return generate


_MAKERS: Mapping[type, Callable[..., Runner]] = {
    Step: ProgramRunner._step,
    LoopCode: ProgramRunner._loop,
    WhileCode: ProgramRunner._while,
    IfCode: ProgramRunner._if,
    KernelCode: ProgramRunner._kernel,
    CallCode: ProgramRunner._call,
    SplitCode: ProgramRunner._split,
}
