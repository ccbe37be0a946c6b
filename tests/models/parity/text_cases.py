"""Rows of the parity table: encoders of text, and text-to-text models."""

from typing import Any

from tests.models.parity.cases import Case

ENCODER = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 1,
}
DISTILBERT = {
    "vocab_size": 96,
    "dim": 32,
    "hidden_dim": 48,
    "n_layers": 2,
    "n_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 1,
}
FACTORISED = ENCODER | {"embedding_size": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "Bert": ENCODER,
    "Roberta": ENCODER,
    "Camembert": ENCODER | {"type_vocab_size": 1},
    "XLMRoberta": ENCODER | {"type_vocab_size": 1},
    "DistilBert": DISTILBERT,
    "Albert": FACTORISED | {"num_hidden_layers": 3},
    "Electra": FACTORISED,
    "MPNet": ENCODER,
}
HEADS = (
    "Model",
    "ForMaskedLM",
    "ForMultipleChoice",
    "ForQuestionAnswering",
    "ForSequenceClassification",
    "ForTokenClassification",
)
LABELS = {"num_labels": 3}
LABELLED = ("ForSequenceClassification", "ForTokenClassification")

CASES = (
    *(
        Case(family + head, config=config | (LABELS if head in LABELLED else {}))
        for family, config in FAMILIES.items()
        for head in HEADS
    ),
    Case("BertForMaskedLM", "untied", ENCODER | {"tie_word_embeddings": False}),
    Case("BertModel", "relu", ENCODER | {"hidden_act": "relu", "type_vocab_size": 3}),
    Case(
        "AlbertModel",
        "groups",
        FACTORISED | {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
    ),
    Case("ElectraModel", "wide embeddings", ENCODER | {"embedding_size": 32}),
    Case("MPNetModel", "long", ENCODER | {"max_position_embeddings": 256}, length=200),
)
