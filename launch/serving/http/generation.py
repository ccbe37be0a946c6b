"""A language model's endpoints."""

from functools import partial
from typing import Any

from launch.serving.http.chat import Chat
from launch.serving.http.completions import Completion
from launch.serving.http.context import Served
from launch.serving.http.site import Endpoint, Site, model_entry


def generation_site(served: Served) -> Site:
    """What is shown of a language model."""
    return Site(
        name=served.name,
        worker=served.service,
        endpoints={
            "/v1/completions": Endpoint(partial(Completion.read, served)),
            "/v1/chat/completions": Endpoint(partial(Chat.read, served)),
        },
        models=lambda: [model_entry(served.name, served.created, max_model_len=served.longest)],
        metrics=served.metrics.text,
        load=partial(_load, served),
    )


def _load(served: Served) -> dict[str, Any]:
    load = served.service.engine.load()
    return {
        "facts": f"texts of up to {served.longest} tokens",
        "running": load.running,
        "waiting": load.waiting,
        "slots": load.slots,
        "blocks_held": load.blocks_held,
        "blocks": load.blocks,
        "generation_tokens": load.counters.generation_tokens,
        "prefix_hits": load.counters.prefix_hits,
        "preemptions": load.counters.preemptions,
    }
