"""Modules of PyTorch, with inputs, that tests run both ways."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn


class Fields(dict[str, object]):
    """A dict that cannot be emptied, as the configs of diffusers."""

    def clear(self) -> None:
        raise TypeError


class Convolutional(nn.Module):
    """Batch norm, a tied weight, a table that is neither a parameter nor a buffer, and a config."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.dense = nn.Linear(128, 10)
        self.embed = nn.Embedding(10, 10)
        self.head = nn.Linear(10, 10, bias=False)
        self.head.weight = self.embed.weight
        self.table = torch.arange(10.0)
        self.config = Fields(width=8)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = F.max_pool2d(F.gelu(self.norm(self.conv(images))), 2)
        return self.head(self.dense(hidden.flatten(1)) + self.table / 10)


class Recurrent(nn.Module):
    """Weights that PyTorch also keeps in a list, and several results."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 4, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(8, 8, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(8, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, (last, _) = self.lstm(x)
        return self.layer(self.gru(hidden)[0]), last


class Attention(nn.Module):
    """In-place writes to slices, upsampling, and a named tuple of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 8, 4, 2, 1)
        self.norm = nn.GroupNorm(2, 8)
        self.heads = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, object]:
        rows = F.silu(self.norm(self.up(x))).flatten(2).transpose(1, 2)
        rows, _ = self.heads(rows, rows, rows)
        shifted = torch.zeros_like(rows)
        shifted[:, 1:] = rows[:, :-1]
        shifted[:, 0] += 1
        return shifted.cumsum(1), torch.topk(rows.mean(2), 3)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutional": (Convolutional, (4, 3, 8, 8)),
    "recurrent": (Recurrent, (2, 3, 8)),
    "attention": (Attention, (2, 4, 4, 4)),
}
"""What makes a module, and the shape of its input."""


def made(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A module and an input, always the same."""
    make, shape = CASES[name]
    torch.manual_seed(0)
    return make(), torch.randn(shape)
