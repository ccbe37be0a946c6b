"""Files of sentence-transformers beside a model's."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDERS = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}


def write_modules(
    directory: Path, pooling: Mapping[str, Any], folders: Mapping[str, str] = FOLDERS
) -> None:
    """modules.json, and the config.json of its pooling; texts have up to nine tokens."""
    modules = [{"path": path, "type": f"models.{kind}"} for path, kind in folders.items()]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (directory / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
