"""The settings of a run's data, whose names are those of the flags."""

from dataclasses import dataclass

from launch.errors import SettingsError
from launch.settings import check_settings, setting

PACKINGS = ("windows", "padded", "first_fit", "concat_then_split")
LONG_DOCUMENTS = ("split", "truncate", "drop")
BAD_RECORDS = ("error", "skip")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The sources of the records, and how rows are made of them.

    Raises SettingsError for invalid values.
    """

    data: str | None = setting(
        None,
        "Comma-separated files, folders, patterns or names of bundled data; PATH:WEIGHT sets a "
        "source's share of the rows. Default: the topics of the Python language reference.",
    )
    data_format: str | None = setting(
        None,
        "text, jsonl, parquet, arrow, images or sounds; default: what the file names say.",
    )
    held_out_data: str | None = setting(
        None, "Like --data, for evaluation; default: a held-out part of --data."
    )
    held_out_fraction: float = setting(0.08, "Fraction of --data to hold out.", lowest=0.0)
    held_out_limit: int = setting(
        1_000,
        "How many held-out documents or windows to evaluate; they are chosen once.",
        lowest=1,
    )
    text_field: str = setting(
        "text", "Field of a record that holds its text, or its tokens as a list of integers."
    )
    packing: str | None = setting(
        None,
        "How documents become rows. windows: windows from anywhere in the concatenated "
        "documents; padded: one row per document; first_fit: as many whole documents as fit, "
        "which do not attend to each other; concat_then_split: the same without padding, "
        "splitting documents where a row is full. Default: windows for plain text, first_fit for "
        "records.",
        choices=PACKINGS,
    )
    long_documents: str = setting(
        "split", "What to do with documents that are longer than a row.", choices=LONG_DOCUMENTS
    )
    document_end: str | None = setting(
        None, "Token to add after each document, such as <|endoftext|>."
    )
    bad_records: str = setting(
        "error",
        "Whether an unreadable record ends the run or is left out.",
        choices=BAD_RECORDS,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.held_out_fraction < 1:
            raise SettingsError(
                f"--held_out_fraction={self.held_out_fraction} leaves nothing to train on: choose "
                "a number below 1."
            )
