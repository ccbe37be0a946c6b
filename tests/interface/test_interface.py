"""What people see of the package before they run it: names, types and completions.

The wheel's stage of continuous integration runs these tests where only the wheel is installed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import neuronjax
from tests.conftest import PROJECT

SCRIPT = Path(__file__).with_name("user_script.py")


def test_declared_names_are_those_that_are_loaded() -> None:
    tree = ast.parse(Path(neuronjax.__file__).read_text())
    declarations = next(node for node in tree.body if isinstance(node, ast.If))
    declared = {}
    for node in declarations.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            room = node.module if node.module != "neuronjax" else f"neuronjax.{alias.name}"
            declared[alias.name] = room
    assert declared == neuronjax._LAZY
    assert neuronjax.__all__ == sorted([*neuronjax._LAZY, "__version__"])
    assert dir(neuronjax) == neuronjax.__all__


@pytest.mark.parametrize("name", neuronjax.__all__)
def test_names(name: str) -> None:
    """Each is there, is told of in the package's docstring, and is used by the typed script."""
    assert getattr(neuronjax, name) is not None
    assert name == "__version__" or f"{name}``" in str(neuronjax.__doc__)
    assert name in SCRIPT.read_text()


CHECKERS = {
    "mypy": ["mypy", "--strict", "--follow-imports=silent", str(SCRIPT)],
    "pyright": [
        "basedpyright", f"--pythonpath={sys.executable}",
        f"--project={SCRIPT.with_name('pyrightconfig.json')}",
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_types(checker: str) -> None:
    """``assert_type`` fails for Any, and the strict mode for a name that is not declared."""
    done = subprocess.run(
        [sys.executable, "-m", *CHECKERS[checker]], capture_output=True, text=True, cwd=PROJECT
    )
    assert done.returncode == 0, done.stdout


COMPLETE = """
import sys, jedi, neuronjax
names = {"neuronjax": neuronjax, "nki": neuronjax.nki}
print(*[found.name for found in jedi.Interpreter("neuronjax.", [names]).complete()])
for text in sys.argv[1:]:
    (signature,) = jedi.Interpreter(text, [names]).get_signatures()
    print(*[parameter.name for parameter in signature.params])
    print(len(signature.docstring(raw=True)) > 100)
"""


def test_an_editor_completes_public_names_and_shows_signatures() -> None:
    asked = ("neuronjax.estimate(", "neuronjax.mx.quantize(", "nki.isa.nc_matmul(")
    done = subprocess.run(
        [sys.executable, "-c", COMPLETE, *asked], capture_output=True, text=True, cwd=PROJECT
    )
    assert done.returncode == 0, done.stderr
    completions, *signatures = done.stdout.splitlines()
    assert sorted(completions.split()) == neuronjax.__all__
    assert [line.split()[:2] for line in signatures[::2]] == [
        ["fn", "arguments"],
        ["x", "element"],
        ["dst", "stationary"],
    ]
    assert signatures[1::2] == ["True", "True", "True"]
