"""The letters of transcripts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launch.data.records import Record, RecordError
from launch.errors import DataError
from launch.finetuning.sounds import length_of_sound, transcript_of
from launch.sound_inputs import Waveform
from models.errors import InputError
from models.wav2vec2.letters import Letters, read_letters


@dataclass(frozen=True)
class Spelling:
    """The letters that a model writes, and how many a row holds."""

    letters: Letters
    most: int = 0

    @classmethod
    def of(cls, files: Path, vocab_size: int) -> "Spelling":
        """The spelling that the files of a checkpoint describe. Raises ConfigError if they cannot
        be used, DataError if the model has too few letters."""
        letters = read_letters(files)
        most = max(letters.texts, default=0)
        if most >= vocab_size:
            raise DataError(
                f"{files} has tokens up to {most}, but the model's vocabulary has {vocab_size}. "
                "Put the files that belong to the model into its directory."
            )
        return cls(letters)

    def of_record(self, record: Record) -> list[int]:
        """The letters of the record's transcript. Raises RecordError if some have no token."""
        try:
            return self.letters.encode(transcript_of(record))
        except InputError as error:
            raise RecordError(f"{record.place}: {error}.") from error

    def with_room_for(
        self, records: Sequence[Sequence[Record]], sound: Waveform, *, skips: bool
    ) -> "Spelling":
        """This spelling with rows for the longest transcript of a sound that fits. Raises
        RecordError for a record that cannot be used, unless `skips`."""
        most = 1
        for record in (record for source in records for record in source):
            try:
                if length_of_sound(record, sound.sampling_rate) <= sound.longest:
                    most = max(most, len(self.of_record(record)))
            except RecordError:
                if not skips:
                    raise
        return replace(self, most=most)
