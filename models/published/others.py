"""Encoders and models of images, sound and several inputs, as config.json on
https://huggingface.co describes them; fields that are the reference's defaults are left out."""

from collections.abc import Mapping

from models.published.decoders import Fields

_BERT: Fields = {
    "architectures": ["BertForMaskedLM"],
    "model_type": "bert",
    "vocab_size": 30_522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
_VIT: Fields = {
    "architectures": ["ViTForImageClassification"],
    "model_type": "vit",
    "image_size": 224,
    "patch_size": 16,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "num_labels": 1000,
}
_WHISPER: Fields = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "vocab_size": 51_865,
    "num_mel_bins": 80,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "decoder_start_token_id": 50_258,
    "eos_token_id": 50_257,
    "pad_token_id": 50_257,
}
_UNET: Fields = {
    "_class_name": "UNet2DConditionModel",
    "sample_size": 64,
    "in_channels": 4,
    "out_channels": 4,
    "attention_head_dim": 8,
    "block_out_channels": [320, 640, 1280, 1280],
    "cross_attention_dim": 768,
    "layers_per_block": 2,
}
_CLIP_TEXT: Fields = {
    "architectures": ["CLIPTextModel"],
    "model_type": "clip_text_model",
    "vocab_size": 49_408,
    "max_position_embeddings": 77,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "projection_dim": 768,
    "hidden_act": "quick_gelu",
    "eos_token_id": 2,
}
_VAE: Fields = {
    "_class_name": "AutoencoderKL",
    "sample_size": 512,
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
}

OTHERS: Mapping[str, Fields] = {
    "google-bert/bert-base-uncased": _BERT,
    "google-bert/bert-large-uncased": _BERT
    | {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    "FacebookAI/roberta-base": _BERT
    | {
        "architectures": ["RobertaForMaskedLM"],
        "model_type": "roberta",
        "vocab_size": 50_265,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
    },
    "distilbert/distilbert-base-uncased": {
        "architectures": ["DistilBertForMaskedLM"],
        "model_type": "distilbert",
        "vocab_size": 30_522,
        "dim": 768,
        "hidden_dim": 3072,
        "n_layers": 6,
        "n_heads": 12,
        "max_position_embeddings": 512,
    },
    "google-t5/t5-small": {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "vocab_size": 32_128,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 6,
        "num_heads": 8,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
    },
    "google/vit-base-patch16-224": _VIT,
    "microsoft/resnet-50": {
        "architectures": ["ResNetForImageClassification"],
        "model_type": "resnet",
        "embedding_size": 64,
        "hidden_sizes": [256, 512, 1024, 2048],
        "depths": [3, 4, 6, 3],
        "num_labels": 1000,
    },
    "microsoft/swin-tiny-patch4-window7-224": {
        "architectures": ["SwinForImageClassification"],
        "model_type": "swin",
        "image_size": 224,
        "patch_size": 4,
        "embed_dim": 96,
        "depths": [2, 2, 6, 2],
        "num_heads": [3, 6, 12, 24],
        "window_size": 7,
        "num_labels": 1000,
    },
    "openai/whisper-tiny": _WHISPER
    | {
        "d_model": 384,
        "encoder_layers": 4,
        "encoder_attention_heads": 6,
        "encoder_ffn_dim": 1536,
        "decoder_layers": 4,
        "decoder_attention_heads": 6,
        "decoder_ffn_dim": 1536,
    },
    "openai/whisper-large-v3": _WHISPER
    | {
        "vocab_size": 51_866,
        "num_mel_bins": 128,
        "d_model": 1280,
        "encoder_layers": 32,
        "encoder_attention_heads": 20,
        "encoder_ffn_dim": 5120,
        "decoder_layers": 32,
        "decoder_attention_heads": 20,
        "decoder_ffn_dim": 5120,
        "dtype": "float16",
    },
    "stable-diffusion-v1-5/stable-diffusion-v1-5/unet": _UNET,
    "stable-diffusion-v1-5/stable-diffusion-v1-5/text_encoder": _CLIP_TEXT,
    "stable-diffusion-v1-5/stable-diffusion-v1-5/vae": _VAE,
    "stabilityai/stable-diffusion-2-1/unet": _UNET
    | {
        "sample_size": 96,
        "attention_head_dim": [5, 10, 20, 20],
        "cross_attention_dim": 1024,
        "use_linear_projection": True,
    },
    "stabilityai/stable-diffusion-xl-base-1.0/unet": _UNET
    | {
        "sample_size": 128,
        "attention_head_dim": [5, 10, 20],
        "block_out_channels": [320, 640, 1280],
        "cross_attention_dim": 2048,
        "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
        "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
        "transformer_layers_per_block": [1, 2, 10],
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": 2816,
    },
    "stabilityai/stable-diffusion-xl-base-1.0/text_encoder": _CLIP_TEXT,
    "stabilityai/stable-diffusion-xl-base-1.0/text_encoder_2": _CLIP_TEXT
    | {
        "architectures": ["CLIPTextModelWithProjection"],
        "hidden_size": 1280,
        "intermediate_size": 5120,
        "num_hidden_layers": 32,
        "num_attention_heads": 20,
        "projection_dim": 1280,
        "hidden_act": "gelu",
    },
    "stabilityai/stable-diffusion-xl-base-1.0/vae": _VAE
    | {"sample_size": 1024, "scaling_factor": 0.13025},
    "lllyasviel/sd-controlnet-canny": {
        **{name: _UNET[name] for name in _UNET if name not in ("sample_size", "out_channels")},
        "_class_name": "ControlNetModel",
    },
    "PixArt-alpha/PixArt-XL-2-1024-MS/transformer": {
        "_class_name": "PixArtTransformer2DModel",
        "sample_size": 128,
        "caption_channels": 4096,
    },
    "black-forest-labs/FLUX.1-schnell/transformer": {"_class_name": "FluxTransformer2DModel"},
    "black-forest-labs/FLUX.1-dev/transformer": {
        "_class_name": "FluxTransformer2DModel",
        "guidance_embeds": True,
    },
}
