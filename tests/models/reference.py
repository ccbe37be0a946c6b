"""A Llama decoder in NumPy FP64, written from the papers, one position and one head at a time."""

from collections.abc import Mapping

import numpy as np

from models.decoder.config import DecoderConfig


def rms_norm(x: np.ndarray, scale: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * scale


def rotate(x: np.ndarray, position: int, theta: float) -> np.ndarray:
    """x [H] as H / 2 complex numbers, each multiplied by exp(i · position · wavelength)."""
    half = len(x) // 2
    frequencies = theta ** (-np.arange(half) / half)
    turned = (x[:half] + 1j * x[half:]) * np.exp(1j * position * frequencies)
    return np.concatenate([turned.real, turned.imag])


def attend(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """query [H], keys and values [S, H] -> [H]."""
    scores = keys @ query / np.sqrt(len(query))
    weights = np.exp(scores - scores.max())
    return weights @ values / weights.sum()


def attention(
    x: np.ndarray, weights: Mapping[str, np.ndarray], config: DecoderConfig
) -> np.ndarray:
    length = len(x)
    heads_per_key = config.num_heads // config.num_kv_heads
    query = np.einsum("td,dnh->tnh", x, weights["query"])
    keys = np.einsum("td,dnh->tnh", x, weights["key"])
    values = np.einsum("td,dnh->tnh", x, weights["value"])
    out = np.zeros_like(x)
    for head in range(config.num_heads):
        shared = head // heads_per_key
        turned = np.stack([rotate(keys[s, shared], s, config.rotary.theta) for s in range(length)])
        for t in range(length):
            turned_query = rotate(query[t, head], t, config.rotary.theta)
            mixed = attend(turned_query, turned[: t + 1], values[: t + 1, shared])
            out[t] += mixed @ weights["output"][head]
    return out


def mlp(x: np.ndarray, weights: Mapping[str, np.ndarray]) -> np.ndarray:
    gate = x @ weights["gate"]
    return (gate / (1 + np.exp(-gate)) * (x @ weights["up"])) @ weights["down"]


def decoder(
    tokens: np.ndarray, parameters: Mapping[str, np.ndarray], config: DecoderConfig
) -> np.ndarray:
    """Logits [T, V] of one sequence, tokens [T]."""
    p = {name: np.asarray(value, np.float64) for name, value in parameters.items()}

    def kernels(prefix: str) -> dict[str, np.ndarray]:
        return {
            name.removeprefix(prefix).removesuffix(".kernel"): value
            for name, value in p.items()
            if name.startswith(prefix)
        }

    x = p["embedding.table"][tokens]
    for i in range(config.num_layers):
        block = f"blocks.{i}"
        normed = rms_norm(x, p[f"{block}.attention_norm.scale"], config.norm_eps)
        x = x + attention(normed, kernels(f"{block}.attention."), config)
        normed = rms_norm(x, p[f"{block}.mlp_norm.scale"], config.norm_eps)
        x = x + mlp(normed, kernels(f"{block}.mlp."))
    head = p["embedding.table" if config.tie_embeddings else "head.table"]
    return rms_norm(x, p["norm.scale"], config.norm_eps) @ head.T
