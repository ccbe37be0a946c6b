"""`/score`, `/rerank` and `/classify` by vLLM's names and bodies; `/rerank` is Jina's and Cohere's.

A model with one class says how well two texts go together; of a model of vectors it is the cosine
of the angle between theirs.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from launch.pooling.text import Text
from launch.serving.errors import RequestError
from launch.serving.http.bodies import Body
from launch.serving.http.pooled import Pooled, check_count, usage_of
from launch.serving.http.site import WholeAnswer


@dataclass(frozen=True)
class Pairs:
    """Pairs of texts to score: one text for each pair, or all first texts and then the second
    ones' vectors."""

    pooled: Pooled
    texts: Sequence[Text]
    firsts: Sequence[int]  # of each pair: the place among the texts; empty if they are pairs
    seconds: Sequence[int]

    @classmethod
    def of(
        cls, pooled: Pooled, firsts: Sequence[str], seconds: Sequence[str], names: tuple[str, str]
    ) -> "Pairs":
        """Pairs of each first text with the second one in its place, or of one first text with all.

        Raises RequestError for texts that are too long.
        """
        check_count(len(seconds), names[1])
        if pooled.labels:
            repeated = list(firsts) * (len(seconds) if len(firsts) == 1 else 1)
            pairs = zip(repeated, seconds, strict=True)
            return cls(pooled, [pooled.text(a, names[1], b) for a, b in pairs], (), ())
        texts = [pooled.text(text, names[0]) for text in firsts]
        texts += [pooled.text(text, names[1]) for text in seconds]
        places = [0] * len(seconds) if len(firsts) == 1 else list(range(len(firsts)))
        return cls(pooled, texts, places, range(len(firsts), len(texts)))

    async def scores(self) -> list[float]:
        """The score of each pair."""
        made = await self.pooled.compute(self.texts)
        if self.pooled.labels:
            return [float(_sigmoid(logits)[0]) for logits in made]
        return [
            _cosine(made[first], made[second])
            for first, second in zip(self.firsts, self.seconds, strict=True)
        ]


@dataclass(frozen=True)
class Scores(WholeAnswer):
    """The parsed body of `/score`."""

    pairs: Pairs

    @classmethod
    def read(cls, pooled: Pooled, body: Body) -> "Scores":
        """Raises RequestError or HTTPError for a body that cannot be answered."""
        pooled.check_model(body)
        names = ("text_1", "text_2")
        firsts, seconds = (_texts(body, name) for name in names)
        if len(firsts) not in (1, len(seconds)):
            raise RequestError(
                f"text_1 has {len(firsts)} texts and text_2 {len(seconds)}: give as many, or one "
                "as text_1",
                "text_1",
            )
        return cls(Pairs.of(pooled, firsts, seconds, names))

    async def whole(self) -> dict[str, Any]:
        """The score of each pair."""
        pooled = self.pairs.pooled
        scores = await self.pairs.scores()
        return {
            "id": pooled.new_id("score"),
            "object": "list",
            "created": int(time.time()),
            "model": pooled.name,
            "data": [
                {"index": index, "object": "score", "score": score}
                for index, score in enumerate(scores)
            ],
            "usage": usage_of(self.pairs.texts),
        }


@dataclass(frozen=True)
class Ranking(WholeAnswer):
    """The parsed body of `/rerank`."""

    pairs: Pairs
    documents: Sequence[str]
    most: int  # results
    with_documents: bool

    @classmethod
    def read(cls, pooled: Pooled, body: Body) -> "Ranking":
        """Raises RequestError or HTTPError for a body that cannot be answered."""
        pooled.check_model(body)
        query = body.text("query")
        if not query:
            raise body.fail("query", "a string that is not empty")
        documents = [_document(body, entry) for entry in body.list("documents")]
        if not documents:
            raise body.fail("documents", "a list with at least one text")
        most = body.integer("top_n", 0)
        if most < 0:
            raise body.fail("top_n", "a number of results; 0 = all")
        pairs = Pairs.of(pooled, [query], documents, ("query", "documents"))
        return cls(pairs, documents, most or len(documents), body.flag("return_documents", True))

    async def whole(self) -> dict[str, Any]:
        """The best documents, the best first."""
        pooled = self.pairs.pooled
        scores = np.array(await self.pairs.scores())
        best = np.argsort(-scores, kind="stable")[: self.most].tolist()
        return {
            "id": pooled.new_id("rerank"),
            "model": pooled.name,
            "usage": usage_of(self.pairs.texts),
            "results": [self._result(place, float(scores[place])) for place in best],
        }

    def _result(self, place: int, score: float) -> dict[str, Any]:
        document = {"document": {"text": self.documents[place]}} if self.with_documents else {}
        return {"index": place, **document, "relevance_score": score}


@dataclass(frozen=True)
class Classes(WholeAnswer):
    """The parsed body of `/classify`."""

    pooled: Pooled
    texts: Sequence[Text]

    @classmethod
    def read(cls, pooled: Pooled, body: Body) -> "Classes":
        """Raises RequestError or HTTPError for a body that cannot be answered."""
        pooled.check_model(body)
        return cls(pooled, pooled.texts(body, "input"))

    async def whole(self) -> dict[str, Any]:
        """The likeliest class and all probabilities, of each text."""
        logits = await self.pooled.compute(self.texts)
        return {
            "id": self.pooled.new_id("classify"),
            "object": "list",
            "created": int(time.time()),
            "model": self.pooled.name,
            "data": [self._entry(index, values) for index, values in enumerate(logits)],
            "usage": {**usage_of(self.texts), "completion_tokens": 0},
        }

    def _entry(self, index: int, logits: np.ndarray) -> dict[str, Any]:
        alone = self.pooled.independent or len(logits) == 1
        chances = _sigmoid(logits) if alone else _softmax(logits)
        return {
            "index": index,
            "label": self.pooled.labels[int(np.argmax(chances))],
            "probs": chances.tolist(),
            "num_classes": len(chances),
        }


def _texts(body: Body, name: str) -> list[str]:
    texts = body.texts(name, most=1 << 30)
    if not texts:
        raise body.fail(name, "a string, or a list of strings that are not empty")
    return texts


def _document(body: Body, entry: Any) -> str:
    text = entry.get("text") if isinstance(entry, dict) else entry
    if not isinstance(text, str) or not text:
        raise body.fail("documents", "a list of texts that are not empty")
    return text


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-logits.astype(np.float64))))


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(weights / weights.sum())


def _cosine(first: np.ndarray, second: np.ndarray) -> float:
    a, b = first.astype(np.float64), second.astype(np.float64)
    return float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12))
