"""A page for each command of ``neuronjax``, made from its parser."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from neuronjax.cli.main import COMMANDS, parser

_INDEX = """\
# The command line

`neuronjax COMMAND --help` prints what these pages say. The exit code 2 means that something was
asked for that does not exist; a page names the others.

"""


def pages() -> Mapping[str, str]:
    """Name of a page -> its text in Markdown."""
    commands = _subcommands(parser())
    made = {name: "\n".join(_command(f"neuronjax {name}", commands[name], 1)) for name in COMMANDS}
    rows = "".join(f"* [{name}]({name}.md): {helps(name)}\n" for name in COMMANDS)
    tree = "\n".join(COMMANDS)
    made["index"] = f"{_INDEX}{rows}\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    return made


def write(folder: Path) -> None:
    """Writes the pages that differ, so that Sphinx reads no other one again."""
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        page = folder / f"{name}.md"
        if not page.is_file() or page.read_text() != text:
            page.write_text(text)


def helps(name: str) -> str:
    """The line about a command in the list of all."""
    (action,) = (a for a in parser([name])._actions if isinstance(a, argparse._SubParsersAction))
    return str(action._choices_actions[0].help)


def _subcommands(of: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}


def _command(title: str, command: argparse.ArgumentParser, level: int) -> Iterator[str]:
    """The page of a command, or the section of a subcommand."""
    yield f"{'#' * level} {title}\n"
    yield from _described(command.description or "")
    formatter = argparse.HelpFormatter(command.prog, width=88)
    formatter.add_usage(
        command.usage, command._actions, command._mutually_exclusive_groups, prefix=""
    )
    yield f"```text\n{formatter.format_help().rstrip()}\n```\n"
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction | argparse._HelpAction):
            continue
        called = action.option_strings or [formatter._metavar_formatter(action, action.dest)(1)[0]]
        values = "" if action.nargs == 0 else _values(formatter, action)
        meaning = formatter._expand_help(action) if action.help else "as said above"
        yield f"`{', '.join(called)}{values}`\n: {_escaped(meaning)}\n"
    for name, subcommand in _subcommands(command).items():
        yield from _command(f"{title} {name}", subcommand, level + 1)


def _values(formatter: argparse.HelpFormatter, action: argparse.Action) -> str:
    if not action.option_strings:
        return ""
    return " " + formatter._format_args(action, action.dest.upper())


def _described(text: str) -> Iterator[str]:
    """Paragraphs of a description; examples and what is indented as code."""
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.splitlines()
        if all(line.startswith("  ") for line in lines):
            yield "```text\n" + "\n".join(line[2:] for line in lines) + "\n```\n"
        elif paragraph.startswith("Example"):
            examples = [re.sub(r"^Examples?:\s*", "", line).strip() for line in lines]
            yield "```sh\n" + "\n".join(filter(None, examples)) + "\n```\n"
        else:
            yield _escaped(paragraph) + "\n"


def _escaped(text: str) -> str:
    """Text in which Markdown finds no markup but code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*<_\[\]])", r"\\\1", part) for part in parts
    )
