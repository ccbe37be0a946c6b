"""The flags of programs that generate text."""

from typing import Any

from absl import flags

from models.sampling import Sampling
from models.weights.generation import Generation

flags.disclaim_key_flags()

_SAMPLING = Sampling()
_FILE = "default: as generation_config.json says"
_FIELDS = (
    "max_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "stop_strings",
    "no_repeat_ngram_size",
    "num_beams",
    "length_penalty",
    "num_return_sequences",
)
"""Flags that have the names of generation_config.json."""


def define(temperature: float, max_new_tokens: int) -> None:
    """Defines them with these defaults, which a checkpoint's files override."""
    flags.DEFINE_integer("max_new_tokens", max_new_tokens, "Tokens to generate.", lower_bound=1)
    flags.DEFINE_float(
        "temperature",
        temperature,
        "Divisor of the logits; 0: always take the most likely token.",
        lower_bound=0.0,
    )
    flags.DEFINE_integer(
        "top_k",
        _SAMPLING.top_k,
        "Sample from the k most likely tokens; 0: from all.",
        lower_bound=0,
    )
    flags.DEFINE_float(
        "top_p",
        _SAMPLING.top_p,
        "Sample from the smallest set of tokens whose probabilities add up to this.",
        lower_bound=1e-6,
        upper_bound=1.0,
    )
    flags.DEFINE_float(
        "min_p",
        _SAMPLING.min_p,
        "Sample from tokens with at least this fraction of the most likely token's probability.",
        lower_bound=0.0,
        upper_bound=1.0,
    )
    flags.DEFINE_float(
        "repetition_penalty",
        None,
        f"Divisor of positive logits of tokens that are already in the text; {_FILE}.",
        lower_bound=1e-6,
    )
    flags.DEFINE_float(
        "presence_penalty",
        None,
        f"Penalty on the logits of tokens that were already generated; {_FILE}.",
    )
    flags.DEFINE_float(
        "frequency_penalty",
        None,
        f"Penalty on a token's logit for each time it was generated; {_FILE}.",
    )
    flags.DEFINE_multi_string(
        "stop_strings", None, f"Text that ends the answer; may be given several times; {_FILE}."
    )
    flags.DEFINE_integer(
        "no_repeat_ngram_size",
        None,
        f"Length of token sequences that may not occur twice; 0: no limit; {_FILE}.",
        lower_bound=0,
    )
    flags.DEFINE_integer(
        "num_beams", None, f"Number of beams in beam search; {_FILE}.", lower_bound=1
    )
    flags.DEFINE_float(
        "length_penalty",
        None,
        f"Exponent of the length that a beam's log probability is divided by; {_FILE}.",
    )
    flags.DEFINE_integer(
        "num_return_sequences", None, f"Number of texts for each prompt; {_FILE}.", lower_bound=1
    )
    flags.DEFINE_integer("seed", 0, "Seed for sampling tokens.", lower_bound=0)


def given() -> dict[str, Any]:
    """What the command line sets, by the names of generation_config.json."""
    return {name: flags.FLAGS[name].value for name in _FIELDS if flags.FLAGS[name].present}


def generation() -> Generation:
    """The defaults for what neither the command line nor the checkpoint sets."""
    values = flags.FLAGS
    sampling = Sampling(values.temperature, values.top_k, values.top_p, values.min_p)
    return Generation(sampling, values.max_new_tokens)
