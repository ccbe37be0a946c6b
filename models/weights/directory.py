"""The tensors of a Hugging Face directory, in one file or several."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from models.errors import WeightsError
from models.weights.pickled import read_pickled
from models.weights.safetensors import StoredTensor, read_header
from models.weights.wrong_directories import held_instead

# Names of weight files before `.safetensors`, by the library that reads them.
STEMS: Mapping[str, str] = {"transformers": "model", "diffusers": "diffusion_pytorch_model"}
_VARIANT = re.compile(
    rf"(?:{'|'.join(STEMS.values())})\.(?:(\w+)\.safetensors|safetensors\.index\.(\w+)\.json)"
)
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_PYTORCH_STEMS = ("pytorch_model", STEMS["diffusers"])  # what stands before `.bin`


def open_tensors(directory: Path) -> dict[str, StoredTensor]:
    """All tensors of the directory by name; only the headers are read.

    Looks for `<stem>.safetensors.index.json`, then `<stem>.safetensors`, where the stem is that of
    transformers or of diffusers; then for the same of a variant, as `<stem>.fp16.safetensors`; then
    for PyTorch's `pytorch_model.bin` or its index, which are read without running what is in them.
    Raises WeightsError if there is none of them, or several variants, a shard is missing, or a file
    is not sound.
    """
    for stem in STEMS.values():
        index = directory / f"{stem}.safetensors.index.json"
        if index.is_file():
            return _open_shards(directory, index)
        single = directory / f"{stem}.safetensors"
        if single.is_file():
            return read_header(single)
    variants = _variants(directory)
    if not variants:
        return _open_pytorch(directory)
    if len(variants) > 1:
        raise WeightsError(
            f"{directory} has weights of the variants {', '.join(sorted(variants))} alone. Leave "
            "one of them in it."
        )
    (file,) = variants.values()
    return _open_shards(directory, file) if file.suffix == ".json" else read_header(file)


def _open_pytorch(directory: Path) -> dict[str, StoredTensor]:
    for stem in _PYTORCH_STEMS:
        index, single = directory / f"{stem}.bin.index.json", directory / f"{stem}.bin"
        if index.is_file():
            return _open_shards(directory, index)
        if single.is_file():
            return read_pickled(single)
    raise WeightsError(_nothing(directory))


def _variants(directory: Path) -> dict[str, Path]:
    """The name of each variant -> its index, or its file."""
    files = sorted(directory.glob("*.safetensors")) + sorted(directory.glob("*.json"))
    return {
        match[1] or match[2]: file for file in files if (match := _VARIANT.fullmatch(file.name))
    }


def _nothing(directory: Path) -> str:
    if not directory.is_dir():
        return f"{directory} is not a directory. Give the directory of a Hugging Face checkpoint."
    instead = held_instead(directory)
    if instead is not None:
        return instead
    pickles = sorted(file.name for pattern in PICKLES for file in directory.glob(pattern))
    if pickles:
        return (
            f"the weights in {directory} are only in pickle files ({', '.join(pickles)}), of which "
            "only pytorch_model.bin is read. Convert them to safetensors, or download them in that "
            "format."
        )
    return (
        f"{directory} has neither model.safetensors nor model.safetensors.index.json. Give the "
        "directory of a complete checkpoint."
    )


def _open_shards(directory: Path, index: Path) -> dict[str, StoredTensor]:
    try:
        weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
        names = sorted(set(weight_map.values()))
        files = [directory / name for name in names]
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise WeightsError(f"{index} cannot be used: {error!r}") from error
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise WeightsError(f"{index} names files outside its directory: {outside}")
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise WeightsError(
            f"{directory} lacks {len(missing)} of the {len(files)} files that {index.name} names: "
            f"{', '.join(missing)}. Download them too."
        )
    tensors = {}
    for file in files:
        stored = read_pickled(file) if file.suffix == ".bin" else read_header(file)
        claimed = {name for name, place in weight_map.items() if place == file.name}
        if not claimed <= set(stored):
            raise WeightsError(
                f"{index.name} and {file} disagree: only the index has "
                f"{sorted(claimed - set(stored))}, only the file has "
                f"{sorted(set(stored) - claimed)}. They belong to different checkpoints."
            )
        tensors.update(stored)
    return tensors
