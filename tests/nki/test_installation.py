"""`import nki` after `install`, in processes of their own."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import RunPython


def test_kernels_import_nki(run_python: RunPython) -> None:
    done = run_python(
        """
        from neuronjax.nki import install
        install(); install()
        import nki
        import nki.collectives
        import nki.isa as nisa
        from nki import language as nl
        import neuronjax.nki
        print(nki is neuronjax.nki, nl.add, nisa.dma_copy.__name__)
        """
    )
    assert done.stdout.split()[0] == "True", done.stderr


def test_another_package_is_left_alone(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "nki.py").write_text("WHO = 'theirs'")
    done = run_python(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        from neuronjax.errors import ConfigurationError
        from neuronjax.nki import install
        try:
            install()
        except ConfigurationError as error:
            print("refused")
        import nki
        print(nki.WHO)
        """
    )
    assert done.stdout.split() == ["refused", "theirs"], done.stderr
