"""Rows of the parity table: encoders of text, and text-to-text models."""

from typing import Any

from tests.models.parity.case import DOUBLED, Case

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
MODERNBERT = ENCODER | {
    "num_hidden_layers": 3,
    "global_attn_every_n_layers": 2,
    "local_attention": 4,
    "eos_token_id": 2,
    "bos_token_id": 0,
    "cls_token_id": 0,
    "sep_token_id": 2,
}
BIASES = dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True)
FAMILIES: dict[str, dict[str, Any]] = {
    "Bert": ENCODER,
    "Roberta": ENCODER,
    "Camembert": ENCODER | {"type_vocab_size": 1},
    "XLMRoberta": ENCODER | {"type_vocab_size": 1},
    "DistilBert": DISTILBERT,
    "Albert": FACTORISED | {"num_hidden_layers": 3},
    "Electra": FACTORISED,
    "MPNet": ENCODER,
    "RoFormer": FACTORISED,
    "ModernBert": MODERNBERT,
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

T5 = {
    "vocab_size": 96,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 48,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
}
T5_1_1 = T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}

DEBERTA = ENCODER | {
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["c2p", "p2c"],
    "max_relative_positions": 12,
}
DEBERTA_V2 = DEBERTA | {
    "pos_att_type": "p2c|c2p",
    "position_buckets": 6,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
}
XLM = {
    "vocab_size": 96,
    "emb_dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 1,
}
XLM_HEADS = (
    "Model",
    "WithLMHeadModel",
    "ForMultipleChoice",
    "ForQuestionAnsweringSimple",
    "ForSequenceClassification",
    "ForTokenClassification",
)
BART = {
    "vocab_size": 96,
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 32,
    "forced_eos_token_id": None,  # the reference's greedy text is the model's own
}
MARIAN = BART | {
    "activation_function": "swish",
    "scale_embedding": True,
    "decoder_start_token_id": 1,
    "pad_token_id": 1,
    "eos_token_id": 0,
}
MOBILEBERT = FACTORISED | {"intra_bottleneck_size": 24, "num_feedforward_networks": 3}
CONVBERT = FACTORISED | {"conv_kernel_size": 3}
ESM = ENCODER | {"mask_token_id": 5}
ESM_2 = ESM | {"position_embedding_type": "rotary", "token_dropout": True}
ESM_HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")

CASES = (
    *(
        Case(family + head, config=config | (LABELS if head in LABELLED else {}))
        for family, config in (
            ("MobileBert", MOBILEBERT),
            ("DebertaV2", DEBERTA_V2),
            ("Deberta", DEBERTA),
        )
        for head in HEADS
        if family + head != "DebertaForMultipleChoice"
    ),
    *(
        Case(family + head, config=config | (LABELS if head in LABELLED else {}))
        for family, config in (("XLM", XLM), ("Flaubert", XLM | {"gelu_activation": False}))
        for head in XLM_HEADS
    ),
    *(
        Case(
            "ConvBert" + head,
            config=CONVBERT | (LABELS if head in LABELLED else {}),
            unsharded_only=DOUBLED,
        )
        for head in HEADS
    ),
    *(
        Case(
            f"DebertaV2{head}",
            "convolution",
            DEBERTA_V2 | {"conv_kernel_size": size, "conv_act": act},
        )
        for head, size, act in (("Model", 3, "gelu"), ("ForMaskedLM", 5, "tanh"))
    ),
    *(
        Case(f"XLM{head}", "languages", XLM | {"n_langs": 3})
        for head in ("Model", "WithLMHeadModel", "ForMultipleChoice")
    ),
    *(
        Case(f"Flaubert{head}", "norms in front", XLM | {"pre_norm": True})
        for head in ("Model", "ForTokenClassification")
    ),
    *(
        Case(f"ConvBert{head}", "groups", CONVBERT | {"num_groups": 2}, unsharded_only=DOUBLED)
        for head in ("Model", "ForTokenClassification")
    ),
    Case(
        "DebertaV2Model",
        "keys of positions alone",
        DEBERTA | {"pos_att_type": ["c2p"], "position_biased_input": True, "type_vocab_size": 2},
    ),
    *(
        Case("Esm" + head, variant, config | (LABELS if head in LABELLED else {}))
        for variant, config in (("1b", ESM | {"emb_layer_norm_before": True}), ("2", ESM_2))
        for head in ESM_HEADS
    ),
    *(
        Case(family + head, config=config | (LABELS if head in LABELLED else {}))
        for family, config in FAMILIES.items()
        for head in HEADS
    ),
    Case("BertModel", "relu", ENCODER | {"hidden_act": "relu", "type_vocab_size": 3}),
    Case(
        "AlbertModel",
        "groups",
        FACTORISED | {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
    ),
    Case("ElectraModel", "wide embeddings", ENCODER | {"embedding_size": 32}),
    Case(
        "ModernBertForMaskedLM",
        "biases",
        MODERNBERT | BIASES | {"decoder_bias": False, "classifier_activation": "silu"},
    ),
    *(
        Case(f"ModernBert{head}", "mean", MODERNBERT | {"classifier_pooling": "mean"})
        for head in ("ForSequenceClassification", "ForMultipleChoice")
    ),
    Case("T5ForConditionalGeneration", "1.0", T5, length=16),
    Case("T5ForConditionalGeneration", "1.1", T5_1_1, untied=True),
    Case("T5ForConditionalGeneration", "1.1, tied", T5_1_1),
    Case("BartForConditionalGeneration", config=BART),
    Case("BartForConditionalGeneration", "scaled", BART | {"scale_embedding": True}),
    Case("MarianMTModel", config=MARIAN),
    Case("T5EncoderModel", "1.0", T5, length=16),
    Case("T5EncoderModel", "1.1", T5_1_1),
    Case("MPNetModel", "long", ENCODER | {"max_position_embeddings": 256}, length=200),
)
