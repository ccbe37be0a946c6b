"""One request on its way through the scheduler."""

from collections.abc import Collection
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from launch.serving.cache.prefixes import (
    ROOT,
    Key,
    adapter_root,
    salted_root,
    source_root,
    text_keys,
)
from launch.serving.requests import FinishReason, Logprobs, Request
from launch.serving.scheduler.patience import Patience


@dataclass(slots=True, eq=False)
class Sequence:
    """A text that grows.

    `tokens` are those that the host knows; what the device has made since then is counted in
    `Slots.length`.
    """

    id: str
    tokens: list[int]
    limit: int  # length at which it ends, in tokens
    stop_tokens: Collection[int] = ()
    priority: int = 0  # lower numbers go first
    client: str = ""  # who asks
    turn: float = 0.0  # its place among those of other clients that wait
    one_by_one: bool = False  # each token must be known before the next one is planned
    speculates: bool = False  # tokens that are guessed may be checked several at once
    number: int = -1  # order of arrival; negative: it has not been submitted
    request: Request | None = None
    prompt_length: int = field(init=False)
    slot: int | None = None  # None = it waits
    root: Key = ROOT  # of the prefixes that it may share: those of the same adapter
    _keys: list[Key] = field(default_factory=list)  # of its first blocks
    cached_tokens: int = 0  # found in the cache when it first got a slot
    preemptions: int = 0
    finished: FinishReason | None = None
    prompt_logprobs: dict[int, Logprobs] = field(default_factory=dict)  # by position
    patience: Patience = field(default_factory=Patience)  # with who guesses its tokens
    queued: float = 0.0  # seconds of this machine's clock
    arrived: float = 0.0  # seconds of the device's clock, if its time is simulated
    waited: float | None = None  # seconds of either until its first step

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @classmethod
    def of(cls, request: Request, *, speculation: bool = False) -> "Sequence":
        """The text of a request; with speculation, one whose tokens are guessed if that can be
        done."""
        speculates = speculation and request.can_speculate
        sequence = cls(
            id=request.id,
            tokens=list(request.prompt),
            limit=len(request.prompt) + request.max_tokens,
            stop_tokens=request.stop_tokens,
            priority=request.priority,
            client=request.client,
            one_by_one=request.grammar is not None or speculates,
            speculates=speculates,
            request=request,
            root=root_of(request),
        )
        sequence.prompt_length -= request.answered
        return sequence

    @property
    def scores_prompt(self) -> bool:
        """Whether the model's logits after every token of the prompt are wanted."""
        return self.request is not None and self.request.prompt_logprobs is not None

    @property
    def rank(self) -> tuple[int, int]:
        """The lower one goes first."""
        return self.priority, self.number

    def keys(self, count: int, block_size: int) -> list[Key]:
        """Returns the keys of the first `count` blocks, whose tokens are known."""
        there = len(self._keys)
        if there < count:
            parent = self._keys[-1] if self._keys else self.root
            text = self.tokens[there * block_size : count * block_size]
            self._keys.extend(text_keys(text, block_size, parent))
        return self._keys if len(self._keys) == count else self._keys[:count]

    @property
    def answer(self) -> Items[int]:
        """The tokens that were made."""
        return self.tokens[self.prompt_length :]


def root_of(request: Request) -> Key:
    """Returns the key that the keys of a request's text begin with."""
    if len(request.source):
        root = source_root(request.source)
    else:
        root = ROOT if request.adapter is None else adapter_root(request.adapter.number)
    return salted_root(root, request.cache_salt)
