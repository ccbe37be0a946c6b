"""Settings of fine-tuning; flags have their names."""

from dataclasses import dataclass
from typing import Any

from launch.finetuning.lora import ALL_LINEAR, LoRA
from launch.finetuning.problems import PROBLEMS
from launch.settings import check_settings, setting


@dataclass(frozen=True, kw_only=True)
class TuningSettings:
    """The settings of fine-tuning. Raises SettingsError for values that no run can have."""

    chat_template: str | None = setting(
        None,
        "Jinja file, or the name of one of the model's templates or of a bundled one (chatml); "
        "default: the model's own.",
    )
    lora_rank: int = setting(
        0, "Rank of the LoRA adapters; 0 trains all weights instead.", lowest=0
    )
    lora_alpha: float = setting(
        32.0, "LoRA alpha: adapter outputs are scaled by alpha / rank.", lowest=0.0
    )
    lora_dropout: float = setting(0.05, "Dropout on the adapters' inputs.", lowest=0.0, below=1.0)
    target_modules: str = setting(
        ALL_LINEAR, "Layers to adapt, by their PEFT names, such as q_proj,v_proj."
    )
    use_rslora: bool = setting(False, "Scale adapter outputs by alpha / sqrt(rank) (rsLoRA).")
    merge_lora: bool = setting(
        False, "Write the merged model at the end, instead of adapters in PEFT's layout."
    )
    adapter: str | None = setting(
        None, "Directory of adapters in PEFT's layout to start from, instead of new adapters."
    )
    dpo_beta: float = setting(
        0.1, "DPO's beta: how closely the model stays to the reference model.", lowest=0.0
    )
    dpo_label_smoothing: float = setting(
        0.0,
        "Label smoothing: probability that the labels of a pair are swapped.",
        lowest=0.0,
        below=0.5,
    )
    orpo_lambda: float = setting(0.1, "Weight of ORPO's odds-ratio loss.", lowest=0.0)
    language: str | None = setting(
        None, "Language of the transcripts, such as en; default: the checkpoint's."
    )
    max_duration_in_seconds: float = setting(
        20.0,
        "Longest sound to learn letters from, for ctc-speech-recognition; longer ones are left "
        "out.",
        lowest=0.0,
    )
    tokenizer: str | None = setting(
        None,
        "Directory with a tokenizer.json, for models with random weights; default: that beside "
        "the config.json, or one token per byte.",
    )
    problem_type: str | None = setting(
        None,
        "What a classifier gives, as transformers calls it; default: what the labels say (a "
        "list: several classes; a number with a fraction: numbers), or the model.",
        choices=PROBLEMS,
    )
    mlm_probability: float = setting(
        0.15, "Probability of masking a token, for fill-mask.", lowest=0.0
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def identity(self) -> dict[str, Any]:
        """JSON: equal only for the same parameters and the same place for adapters."""
        names = ["adapter", "lora_rank"]
        if self.lora_rank:
            names += ["lora_alpha", "target_modules", "use_rslora"]
        return {name: getattr(self, name) for name in names}

    @property
    def lora(self) -> LoRA | None:
        """The adapters that are asked for."""
        if not self.lora_rank:
            return None
        return LoRA(
            rank=self.lora_rank,
            alpha=self.lora_alpha,
            dropout=self.lora_dropout,
            targets=self.target_modules,
            rslora=self.use_rslora,
        )
