"""A language model's endpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from launch.chat_template import BUNDLED, ChatTemplate, read_chat_template
from launch.images_in_text import ImageReading
from launch.serving.adapters.registry import Registry
from launch.serving.http.adapters import adapter_endpoints, refusing_endpoints
from launch.serving.http.budgets import Budgets
from launch.serving.http.chat import Chat
from launch.serving.http.completions import Completion
from launch.serving.http.context import Served
from launch.serving.http.errors import MESSAGES
from launch.serving.http.link import Link
from launch.serving.http.messages_api import Message
from launch.serving.http.metrics import Metrics
from launch.serving.http.pictures import Pictures
from launch.serving.http.responses import Response, response_resources
from launch.serving.http.service import Service
from launch.serving.http.site import Endpoint, Site, model_entry
from launch.serving.http.tokens import token_endpoints
from launch.serving.parsers import (
    NO_PARSER,
    REASONING_PARSERS,
    TOOL_PARSERS,
    choose_parser,
)
from launch.serving.scheduler.limits import SchedulerLimits
from launch.text import find_tokenizer


@dataclass(frozen=True)
class LanguageModel:
    """The recipe of a language model."""

    name: str
    files: Path  # directory of tokenizer and chat template, if there are any
    chat_template: str | None  # instead of the model's own
    vocab_size: int
    stop_tokens: Sequence[int]
    limits: SchedulerLimits
    created: int  # Unix time of the start
    has_adapters: bool = False  # there is room for some
    adapters: Mapping[str, Path] | None = None  # those that are known from the start
    adapter_folders: Sequence[Path] = ()  # from which clients may have others loaded
    opening: Sequence[int] = ()  # of every answer, if an encoder reads the prompts
    reading: ImageReading | None = None  # of images in conversations
    max_images: int = 0  # of one conversation
    tokens_per_minute: int | None = None  # of a client
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"

    def open(self, link: Link) -> Site:
        """Makes the site of a language model."""
        served = self._make_served(link)
        endpoints = {"/v1/completions": Endpoint(partial(Completion.read, served))}
        if not self.opening:
            endpoints["/v1/chat/completions"] = Endpoint(partial(Chat.read, served))
            endpoints["/v1/responses"] = Endpoint(partial(Response.read, served))
            endpoints[MESSAGES] = Endpoint(partial(Message.read, served))
        endpoints |= token_endpoints(served)
        if self.has_adapters:
            endpoints |= adapter_endpoints(served.service, self.adapter_folders)
        else:
            endpoints |= refusing_endpoints()
        return Site(
            name=self.name,
            worker=link,
            endpoints=endpoints,
            models=partial(_models, served),
            metrics=partial(metrics_of, served.service, served.metrics),
            load=partial(load_of, served.service),
            resources=() if self.opening else response_resources(served),
        )

    def _make_served(self, link: Link) -> Served:
        registry = Registry(self.name)
        for name, path in (self.adapters or {}).items():
            registry.add(name, path)
        tokenizer = find_tokenizer(self.files, self.vocab_size)
        template = read_chat_template(self.files, self.chat_template)
        template = template or ChatTemplate(BUNDLED["chatml"], "models without one", {})
        return Served(
            name=self.name,
            service=Service(link, self.limits, tokenizer, registry),
            metrics=Metrics(self.limits, self.name),
            template=template,
            vocab_size=self.vocab_size,
            stop_tokens=self.stop_tokens,
            created=self.created,
            opening=self.opening,
            pictures=None
            if self.reading is None
            else Pictures(self.reading, self.max_images, self.vocab_size),
            budgets=Budgets(self.tokens_per_minute),
            tool_parser=choose_parser(
                TOOL_PARSERS, self.tool_call_parser, template.source, TOOL_PARSERS["hermes"]
            ),
            reasoning_parser=choose_parser(
                REASONING_PARSERS, self.reasoning_parser, template.source, NO_PARSER
            ),
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


async def metrics_of(service: Service, metrics: Metrics) -> bytes:
    """The page of `/metrics`."""
    return metrics.text(await service.load())


async def load_of(service: Service) -> dict[str, Any]:
    """Tells the page how busy the engine is."""
    load, longest = await service.load(), service.limits.longest
    return {
        "facts": f"texts of up to {longest} tokens",
        "running": load.running,
        "waiting": load.waiting,
        "slots": load.slots,
        "lengths": list(load.lengths),
        "longest": longest,
        "blocks_held": load.blocks_held,
        "blocks": load.blocks,
        "generation_tokens": load.counters.generation_tokens,
        "device_seconds": load.device_seconds,
        "prefix_hits": load.counters.prefix_hits,
        "preemptions": load.counters.preemptions,
    }
