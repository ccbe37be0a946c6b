"""A pytest plugin: loads torchax with the release of torch that this project is tested with, of
which torchax' own import knows too little."""

from __future__ import annotations

from neuronjax.torch import library

library.load()
