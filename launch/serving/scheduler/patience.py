"""When guessing is worth its time: not for a while after guesses that were all wrong."""

from dataclasses import dataclass

MISSES = 16  # steps in a row without a right guess, after which a text is not guessed for a while
FIRST_REST, LONGEST_REST = 16, 512  # tokens


@dataclass(slots=True)
class Patience:
    """The patience with who guesses one text. After a rest it is half of what it was, and the next
    rest is twice as long, until a guess is right."""

    misses: int = 0
    rest: int = FIRST_REST
    resumes: int = 0  # length of the text at which it is guessed again

    def note(self, accepted: int, length: int) -> None:
        """Guesses were checked, and the text has so many tokens now."""
        if accepted:
            self.misses, self.rest = 0, FIRST_REST
            return
        self.misses += 1
        if self.misses >= MISSES:
            self.resumes = length + self.rest
            self.misses, self.rest = MISSES // 2, min(2 * self.rest, LONGEST_REST)
