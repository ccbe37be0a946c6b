"""Ways to make text against transformers, token by token."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from models import pretrained
from models.beam_search import Beams
from models.constraints import Constraints, Ending
from models.generate import generate
from models.sampling import Sampling
from tests.models.parity.cases import CASES

pytest.importorskip(
    "torch", reason="torch is not installed: the reference needs the extra `parity`"
)
import torch

from tests.models.parity.reference import make_model

NEW, PAD = 20, 4
STOPS = (5, 17, 40, 41, 60)  # enough for random models to come upon one


class Way(NamedTuple):
    """The same by our names and by those of transformers."""

    theirs: dict[str, Any]
    constraints: Constraints = Constraints()
    beams: Beams | None = None
    sequences: int = 1
    stops: tuple[int, ...] = STOPS


WAYS = {
    "greedy": Way({}),
    "repetition penalty": Way(
        {"repetition_penalty": 1.8}, Constraints(repetition_penalty=1.8), stops=()
    ),
    "no repeated pairs": Way({"no_repeat_ngram_size": 2}, Constraints(no_repeat_ngram=2), stops=()),
    "no repeated token": Way({"no_repeat_ngram_size": 1}, Constraints(no_repeat_ngram=1), stops=()),
    "not too short": Way({"min_new_tokens": 9}, Constraints(min_new_tokens=9)),
    "suppressed": Way(
        {"suppress_tokens": [8, 9, 10, 11], "begin_suppress_tokens": list(range(40, 90))},
        Constraints(suppressed=(8, 9, 10, 11), first_suppressed=tuple(range(40, 90))),
    ),
    "beams": Way({"num_beams": 3}, beams=Beams(3)),
    "beams without an end": Way({"num_beams": 3}, beams=Beams(3), stops=()),
    "all beams": Way({"num_beams": 4, "num_return_sequences": 4}, beams=Beams(4), sequences=4),
    "long beams": Way(
        {"num_beams": 4, "length_penalty": 3.0, "early_stopping": "never"},
        beams=Beams(4, 3.0, "never"),
    ),
    "short beams": Way(
        {"num_beams": 2, "length_penalty": -1.0, "num_return_sequences": 2},
        beams=Beams(2, -1.0),
        sequences=2,
    ),
    "beams as of summaries": Way(
        {
            "num_beams": 4,
            "early_stopping": True,
            "no_repeat_ngram_size": 2,
            "repetition_penalty": 1.2,
            "min_new_tokens": 6,
            "forced_eos_token_id": 5,
        },
        Constraints(1.2, 2, 6, forced_last=(5,)),
        Beams(4, early_stopping=True),
    ),
}
# Of encoder-decoders, whose prompt is one token.
FORCED = Way(
    {"num_beams": 3, "forced_bos_token_id": 7, "forced_eos_token_id": 5},
    Constraints(forced_first=7, forced_last=(5,)),
    Beams(3),
    stops=(5,),
)
DECODER, TEXT_TO_TEXT = "LlamaForCausalLM 1 and 2", "BartForConditionalGeneration"
ROWS = (
    *((DECODER, name) for name in WAYS),
    (TEXT_TO_TEXT, "all beams"),
    (TEXT_TO_TEXT, "beams as of summaries"),
    (TEXT_TO_TEXT, "forced"),
)


class Both(NamedTuple):
    """A model of transformers, and the same as ours."""

    theirs: Any
    ours: pretrained.Pretrained


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Both]:
    made = {}
    for name in (DECODER, TEXT_TO_TEXT):
        directory: Path = tmp_path_factory.mktemp("generation")
        theirs = make_model(next(case for case in CASES if case.name == name))
        theirs.save_pretrained(directory)
        made[name] = Both(theirs, pretrained.load(directory))
    return made


def check(both: Both, way: Way) -> None:
    rng = np.random.default_rng(3)
    tokens = rng.integers(6, 96, (3, 9)).astype(np.int32)
    real = np.ones_like(tokens, bool)
    real[1, :4] = False
    is_decoder = both.ours.architecture.task == "text-generation"
    tokens[~real] = PAD  # which no text holds
    config = both.ours.config
    start = np.full((3, 1), both.theirs.generation_config.decoder_start_token_id or 0, np.int32)
    with torch.no_grad():
        everything = both.theirs.generate(
            torch.from_numpy(tokens).long(),
            attention_mask=torch.from_numpy(real).long(),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=list(way.stops) or None,
            pad_token_id=PAD,
            **way.theirs,
        ).numpy()
    expected = everything[:, tokens.shape[1] if is_decoder else 1 :]
    got = generate(
        both.ours.graph,
        both.ours.parameters,
        tokens if is_decoder else start,
        real=real if is_decoder else None,
        inputs=None if is_decoder else {"source": tokens, "real": real},
        max_new_tokens=NEW,
        context=config.max_seq_len,
        sampling=Sampling(temperature=0),
        key=jax.random.key(0),
        ending=Ending(way.stops, PAD),
        constraints=way.constraints,
        beams=way.beams,
        sequences=way.sequences,
    )
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("model", "way"), ROWS)
def test_texts_are_those_of_transformers(models: dict[str, Both], model: str, way: str) -> None:
    check(models[model], {**WAYS, "forced": FORCED}[way])
