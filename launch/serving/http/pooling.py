"""The endpoints of models of whole texts."""

from functools import partial
from typing import Any

from launch.serving.http.embeddings import Embeddings
from launch.serving.http.pooled import Pooled
from launch.serving.http.scores import Classes, Ranking, Scores
from launch.serving.http.site import Endpoint, Site, model_entry

SCORES = ("/score", "/v1/score")
RANKINGS = ("/rerank", "/v1/rerank", "/v2/rerank")


def pooling_site(pooled: Pooled, width: int) -> Site:
    """What is shown of a model of vectors with `width` dimensions, or of classes."""
    endpoints = {}
    if pooled.labels:
        endpoints["/classify"] = Endpoint(partial(Classes.read, pooled))
    else:
        endpoints["/v1/embeddings"] = Endpoint(partial(Embeddings.read, pooled, width))
    if len(pooled.labels) < 2:
        endpoints |= dict.fromkeys(SCORES, Endpoint(partial(Scores.read, pooled)))
        endpoints |= dict.fromkeys(RANKINGS, Endpoint(partial(Ranking.read, pooled)))
    return Site(
        name=pooled.name,
        worker=pooled.batcher,
        endpoints=endpoints,
        models=lambda: [model_entry(pooled.name, pooled.created, max_model_len=pooled.longest)],
        metrics=pooled.metrics.text,
        load=partial(_load, pooled, width),
    )


def _load(pooled: Pooled, width: int) -> dict[str, Any]:
    load = pooled.batcher.load()
    made = f"{width} classes" if pooled.labels else f"vectors of {width} dimensions"
    return {
        "facts": f"{made} of texts of up to {pooled.longest} tokens",
        "running": load.running,
        "waiting": load.waiting,
        "computed": load.computed,
        "groups": load.groups,
    }
