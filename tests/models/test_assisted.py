"""Assisted decoding makes the text that generation makes, in fewer steps."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

from models.assisted import DraftModel, PromptLookup, generate_assisted
from models.beam_search import Beams
from models.constraints import Constraints, Ending
from models.errors import GenerationError
from models.generate import generate
from models.sampling import Sampling
from tests.models.test_decoder import build

PROMPT = np.array([[3, 5, 7, 3, 5]], np.int32)
NEW, GUESSES = 30, 4
GREEDY = {"sampling": Sampling(temperature=0.0)}
DRAWN = {"sampling": Sampling(temperature=0.7, top_k=9)}
RULES = {"constraints": Constraints(repetition_penalty=1.4, min_new_tokens=6), **GREEDY}


class Oracle:
    """Knows the text, and says something else at every third place if it is to be wrong."""

    def __init__(self, text: np.ndarray, *, is_right: bool) -> None:
        self._text, self._is_right, self.asked = text[0].tolist(), is_right, 0

    def guess(self, text: Sequence[int], count: int) -> list[int]:
        self.asked += 1
        begin = len(text) - PROMPT.shape[1]
        true = self._text[begin : begin + count]
        places = range(begin, begin + len(true))
        return [
            token if self._is_right or i % 3 else (token + 1) % 32
            for i, token in zip(places, true, strict=True)
        ]


def settings(**options: Any) -> dict[str, Any]:
    common = {"max_new_tokens": NEW, "context": 64, "key": jax.random.key(5)}
    return {**common, **options}


@pytest.fixture(scope="module")
def model() -> tuple[Any, Any]:
    _, graph, parameters = build(max_seq_len=64)
    return graph, parameters


@pytest.mark.parametrize("options", [GREEDY, DRAWN, RULES], ids=["greedy", "drawn", "rules"])
def test_the_text_is_that_of_generation(model: tuple[Any, Any], options: dict[str, Any]) -> None:
    expected = generate(*model, PROMPT, **settings(**options))
    right, wrong = (Oracle(expected, is_right=is_right) for is_right in (True, False))
    draft = DraftModel(*model, context=25)  # ends before the text does
    for assistant in (right, wrong, PromptLookup(), draft):
        got = generate_assisted(*model, PROMPT, assistant, guesses=GUESSES, **settings(**options))
        np.testing.assert_array_equal(got, expected)
    assert right.asked == NEW / (GUESSES + 1)
    assert right.asked < wrong.asked < NEW


def test_a_model_that_assists_itself_is_always_right(model: tuple[Any, Any]) -> None:
    pieces: list[np.ndarray] = []
    draft = DraftModel(*model, context=64)
    arguments = settings(**GREEDY, on_tokens=pieces.append)
    generate_assisted(*model, PROMPT, draft, guesses=GUESSES, **arguments)
    assert [piece.shape for piece in pieces] == [(1, GUESSES + 1)] * (NEW // (GUESSES + 1))


def test_a_text_ends_after_its_first_stop_token(model: tuple[Any, Any]) -> None:
    whole = generate(*model, PROMPT, **settings(**GREEDY))
    ending = Ending(stop_tokens=(int(whole[0, 7]),))
    expected = generate(*model, PROMPT, **settings(**GREEDY, ending=ending))
    oracle = Oracle(whole, is_right=True)
    arguments = settings(**GREEDY, ending=ending)
    got = generate_assisted(*model, PROMPT, oracle, guesses=GUESSES, **arguments)
    np.testing.assert_array_equal(got, expected)
    assert got.shape[1] < NEW


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequences": 2}, "one text without beams"),
        ({"beams": Beams(2)}, "one text without beams"),
        ({"guesses": 16}, "guesses=16, but 1 to 15"),
        ({"context": 20}, "do not fit into the model's context of 20"),
        ({"boundaries": (16,)}, "neither beam search nor assisted decoding continues past 16"),
    ],
)
def test_what_cannot_be_assisted_is_refused(
    model: tuple[Any, Any], options: dict[str, Any], message: str
) -> None:
    arguments = {"guesses": GUESSES, **settings(**GREEDY), **options}
    with pytest.raises(GenerationError, match=message):
        generate_assisted(*model, PROMPT, PromptLookup(), **arguments)
