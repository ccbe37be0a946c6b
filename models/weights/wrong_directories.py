"""Directories that are given by mistake in place of a checkpoint's."""

from pathlib import Path

ADAPTER_FILE = "adapter_config.json"


def held_instead(directory: Path) -> str | None:
    """What a directory without a model's files holds instead, and what to do; None: unknown."""
    snapshots = sorted(directory.glob("snapshots/*/config.json"))
    if snapshots:
        return (
            f"{directory} is a repository in the cache of Hugging Face. Give one of its "
            f"checkpoints: {', '.join(str(file.parent) for file in snapshots)}."
        )
    if (directory / ADAPTER_FILE).is_file():
        return (
            f"{directory} holds a LoRA adapter ({ADAPTER_FILE}) and not the model that it belongs "
            "to. Give the model's directory; launch.serve takes adapters with --lora_modules."
        )
    quantised = sorted(file.name for file in directory.glob("*.gguf"))
    if quantised:
        return (
            f"{directory} holds GGUF files ({', '.join(quantised)}), which are not supported. Give "
            "a checkpoint with config.json and safetensors."
        )
    return None
