"""Prompt lookup: what followed the last few tokens when they stood in the text before (Saxena,
"Prompt Lookup Decoding", 2023)."""

from collections.abc import Sequence


class Lookup:
    """An index of where the n-grams of one text end, the last place of each."""

    def __init__(self, shortest: int = 2, longest: int = 4) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self._known = 0  # tokens whose n-grams are in the index

    def follows(self, tokens: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens that followed the longest end of the text that came before."""
        for end in range(max(self._known, 1), len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._ends[tuple(tokens[end - size : end])] = end
        self._known = max(self._known, len(tokens))
        for size in self._sizes:
            before = self._ends.get(tuple(tokens[-size:])) if size < len(tokens) else None
            if before is not None:
                return list(tokens[before : before + count])
        return []
