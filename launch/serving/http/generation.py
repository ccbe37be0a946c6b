"""A language model's endpoints."""

from functools import partial
from typing import Any

from launch.serving.http.adapters import adapter_endpoints
from launch.serving.http.chat import Chat
from launch.serving.http.completions import Completion
from launch.serving.http.context import Served
from launch.serving.http.site import Endpoint, Site, model_entry


def generation_site(served: Served) -> Site:
    """What is shown of a language model."""
    endpoints = {
        "/v1/completions": Endpoint(partial(Completion.read, served)),
        "/v1/chat/completions": Endpoint(partial(Chat.read, served)),
    }
    if served.adapters is not None:
        endpoints |= adapter_endpoints(served.adapters)
    return Site(
        name=served.name,
        worker=served.service,
        endpoints=endpoints,
        models=partial(_models, served),
        metrics=served.metrics.text,
        load=partial(_load, served),
    )


def _models(served: Served) -> list[dict[str, Any]]:
    """The model, and its adapters."""
    model = model_entry(served.name, served.created, max_model_len=served.longest)
    return [
        model,
        *(
            {**model, "id": adapter.name, "root": str(adapter.path), "parent": served.name}
            for adapter in served.service.registry.adapters
        ),
    ]


def _load(served: Served) -> dict[str, Any]:
    load = served.service.engine.load()
    return {
        "facts": f"texts of up to {served.longest} tokens",
        "running": load.running,
        "waiting": load.waiting,
        "slots": load.slots,
        "lengths": list(load.lengths),
        "longest": served.longest,
        "blocks_held": load.blocks_held,
        "blocks": load.blocks,
        "generation_tokens": load.counters.generation_tokens,
        "prefix_hits": load.counters.prefix_hits,
        "preemptions": load.counters.preemptions,
    }
