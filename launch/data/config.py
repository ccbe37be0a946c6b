"""What a run is trained on: the settings, whose names are those of the flags."""

from dataclasses import dataclass

from launch.errors import SettingsError
from launch.settings import check_settings, setting

PACKINGS = ("windows", "padded", "first_fit", "concat_then_split")
LONG_DOCUMENTS = ("split", "truncate", "drop")
BAD_RECORDS = ("error", "skip")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where records come from and how rows are made of them.

    Raises SettingsError for values that are not known.
    """

    data: str | None = setting(
        None,
        "Files, folders, patterns or names of bundled data, with commas between them; PATH:WEIGHT "
        "draws that part of the rows from it. Default: the topics of the Python language "
        "reference.",
    )
    data_format: str | None = setting(
        None, "text, jsonl, parquet, arrow or images; default: what the names of the files say."
    )
    held_out_data: str | None = setting(
        None, "Like --data, for evaluation; default: a held-out part of --data."
    )
    held_out_fraction: float = setting(0.08, "The share of --data that is held out.", lowest=0.0)
    held_out_limit: int = setting(
        1_000,
        "How many held-out documents or windows are evaluated; they are drawn once.",
        lowest=1,
    )
    text_field: str = setting(
        "text", "Field of a record with its text, or with its tokens as a list of integers."
    )
    packing: str | None = setting(
        None,
        "How documents become rows. windows: windows anywhere in the concatenated "
        "documents; padded: one row per document; first_fit: as many whole documents as "
        "fit, which do not attend to each other; concat_then_split: the same without "
        "padding, cut where a row is full. Default: windows for plain text, first_fit "
        "for records.",
        choices=PACKINGS,
    )
    long_documents: str = setting(
        "split", "What happens to documents that are longer than a row.", choices=LONG_DOCUMENTS
    )
    document_end: str | None = setting(
        None, "Token that is added after each document, such as <|endoftext|>."
    )
    bad_records: str = setting(
        "error",
        "Whether a record that cannot be read ends the run, or is left out.",
        choices=BAD_RECORDS,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.held_out_fraction < 1:
            raise SettingsError(
                f"--held_out_fraction={self.held_out_fraction} leaves nothing to train on: choose "
                "a number below 1."
            )
