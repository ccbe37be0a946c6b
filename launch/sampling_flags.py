"""The flags of programs that make text."""

from absl import flags

from models.sampling import Sampling

flags.disclaim_key_flags()

_SAMPLING = Sampling()


def define(temperature: float, max_new_tokens: int) -> None:
    """Defines them with these defaults."""
    flags.DEFINE_integer("max_new_tokens", max_new_tokens, "Tokens to make.", lower_bound=1)
    flags.DEFINE_float(
        "temperature",
        temperature,
        "Divides the logits; 0 = always the likeliest token.",
        lower_bound=0.0,
    )
    flags.DEFINE_integer(
        "top_k", _SAMPLING.top_k, "Draw from the k likeliest tokens; 0 = all.", lower_bound=0
    )
    flags.DEFINE_float(
        "top_p",
        _SAMPLING.top_p,
        "Draw from the fewest tokens that reach this probability.",
        lower_bound=1e-6,
        upper_bound=1.0,
    )
    flags.DEFINE_integer("seed", 0, "Seed of the draws.", lower_bound=0)


def sampling() -> Sampling:
    """What the flags say."""
    values = flags.FLAGS
    return Sampling(values.temperature, values.top_k, values.top_p)
