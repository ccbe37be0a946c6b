"""The endpoints of models of whole texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from launch.serving.http.batch_metrics import BatchMetrics
from launch.serving.http.computing import Computing
from launch.serving.http.embeddings import Embeddings
from launch.serving.http.link import Link
from launch.serving.http.pooled import Pooled
from launch.serving.http.scores import Classes, Ranking, Scores
from launch.serving.http.site import Endpoint, Site, model_entry
from launch.text import find_tokenizer

SCORES = ("/score", "/v1/score")
RANKINGS = ("/rerank", "/v1/rerank", "/v2/rerank")


@dataclass(frozen=True)
class PoolingModel:
    """The `Recipe` of a model of vectors, or of classes."""

    name: str
    files: Path  # directory of the tokenizer, if there is one
    vocab_size: int
    longest: int  # text, in tokens
    width: int  # dimensions of a vector, or classes
    created: int  # Unix time of the start
    labels: Sequence[str]  # of classes, if it has any
    lower: bool  # texts are brought to lower case
    independent: bool  # classes do not exclude each other

    def open(self, link: Link) -> Site:
        """What is shown of a model of vectors, or of classes."""
        pooled = Pooled(
            name=self.name,
            computing=Computing(link),
            metrics=BatchMetrics(self.name),
            tokenizer=find_tokenizer(self.files, self.vocab_size),
            vocab_size=self.vocab_size,
            longest=self.longest,
            created=self.created,
            labels=self.labels,
            lower=self.lower,
            independent=self.independent,
        )
        entry = model_entry(self.name, self.created, max_model_len=self.longest)
        return Site(
            name=self.name,
            worker=link,
            endpoints=_endpoints(pooled, self.width),
            models=lambda: [entry],
            metrics=partial(_metrics, pooled),
            load=partial(_load, pooled, self.width),
        )


def _endpoints(pooled: Pooled, width: int) -> dict[str, Endpoint]:
    # By vLLM's name: of models with classes their logits.
    vectors = partial(Embeddings.read, pooled, width, kind="pooling", field="data")
    endpoints = {"/pooling": Endpoint(vectors)}
    if pooled.labels:
        endpoints["/classify"] = Endpoint(partial(Classes.read, pooled))
    else:
        endpoints["/v1/embeddings"] = Endpoint(partial(Embeddings.read, pooled, width))
    if len(pooled.labels) < 2:
        endpoints |= dict.fromkeys(SCORES, Endpoint(partial(Scores.read, pooled)))
        endpoints |= dict.fromkeys(RANKINGS, Endpoint(partial(Ranking.read, pooled)))
    return endpoints


async def _metrics(pooled: Pooled) -> bytes:
    return pooled.metrics.text(await pooled.computing.load())


async def _load(pooled: Pooled, width: int) -> dict[str, Any]:
    load = await pooled.computing.load()
    made = f"{width} classes" if pooled.labels else f"vectors of {width} dimensions"
    return {
        "facts": f"{made} of texts of up to {pooled.longest} tokens",
        "running": load.running,
        "waiting": load.waiting,
        "computed": load.computed,
        "groups": load.groups,
    }
