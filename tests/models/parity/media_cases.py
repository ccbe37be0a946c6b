"""Rows of the parity table: models of images and sound."""

from typing import Any

from tests.models.parity.case import DOUBLED, Case

TOWER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
VISION = TOWER | {"image_size": 24, "patch_size": 8}
TEXT = TOWER | {
    "vocab_size": 96,
    "max_position_embeddings": 16,
    "pad_token_id": 1,
    "bos_token_id": 94,
    "eos_token_id": 95,
}
RESNET = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [2, 1]}
BEIT_POSITIONS = {
    "use_absolute_position_embeddings": True,
    "use_shared_relative_position_bias": True,
    "use_mean_pooling": False,
}
CONVNEXT = {"hidden_sizes": [8, 16], "depths": [2, 1], "num_stages": 2, "patch_size": 2}
SWIN = {
    "image_size": 24,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [2, 1],
    "num_heads": [2, 4],
    "window_size": 3,
}
MOBILENET = {
    "image_size": 24,
    "depth_multiplier": 0.25,
    "depth_divisible_by": 4,
    "min_depth": 4,
    "expand_ratio": 2.0,
    "finegrained_output": False,
}
CVT = {
    "patch_sizes": [7, 3],
    "patch_stride": [4, 2],
    "patch_padding": [2, 1],
    "embed_dim": [8, 16],
    "num_heads": [2, 4],
    "depth": [1, 2],
    "cls_token": [False, True],
    "drop_rate": [0.0, 0.0],
}
EFFICIENTNET = {
    "image_size": 32,
    "width_coefficient": 0.25,
    "depth_coefficient": 1.1,
    "in_channels": [32, 16, 24],
    "out_channels": [16, 24, 40],
    "kernel_sizes": [3, 5, 3],
    "strides": [1, 2, 2],
    "num_block_repeats": [1, 2, 1],
    "expand_ratios": [1, 4, 6],
    "hidden_dim": 320,
}
LEVIT = {
    "image_size": 48,
    "hidden_sizes": [16, 24, 32],
    "num_attention_heads": [2, 2, 4],
    "depths": [1, 1, 1],
    "key_dim": [4, 4, 8],
}
DPT = VISION | {
    "backbone_out_indices": [0, 1],
    "reassemble_factors": [2, 0.5],
    "neck_hidden_sizes": [8, 12],
    "fusion_hidden_size": 12,
}
HYBRID = TOWER | {
    "is_hybrid": True,
    "image_size": 32,
    "patch_size": 16,
    "num_hidden_layers": 3,
    "backbone_out_indices": [0, 1, 2],
    "reassemble_factors": [1, 1, 0.5],
    "neck_hidden_sizes": [16, 32, 8],
    "fusion_hidden_size": 4,
    "use_batch_norm_in_fusion_residual": True,  # else 40 convolutions amplify FP32's last digits
    "backbone_featmap_shape": [1, 64, 2, 2],
    "backbone_config": {
        "model_type": "bit",
        "global_padding": "same",
        "layer_type": "bottleneck",
        "depths": [1, 2, 1],
        "hidden_sizes": [16, 32, 64],
        "embedding_size": 8,
        "num_groups": 4,
        "out_features": ["stage1", "stage2", "stage3"],
        "embedding_dynamic_padding": True,
    },
}
YOLOS = TOWER | {"image_size": [16, 24], "patch_size": 8, "num_detection_tokens": 3}
AST = TOWER | {
    "patch_size": 4,
    "frequency_stride": 3,
    "time_stride": 2,
    "max_length": 11,
    "num_mel_bins": 8,
}
SPEECH = TOWER | {
    "num_hidden_layers": 1,
    "conv_dim": [6, 8],
    "conv_kernel": [5, 3],
    "conv_stride": [3, 2],
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": 12,
    "classifier_proj_size": 10,
}
STABLE = {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True}
XVECTOR = {
    "tdnn_dim": [10, 12],
    "tdnn_kernel": [3, 2],
    "tdnn_dilation": [1, 2],
    "xvector_output_dim": 14,
    "num_labels": 5,
}
ADAPTER = {"add_adapter": True, "num_adapter_layers": 1, "conv_stride": [2, 1]}
WAVLM = {"num_buckets": 8, "max_bucket_distance": 6}
PATCHTST = {
    "num_input_channels": 3,
    "context_length": 21,
    "prediction_length": 5,
    "patch_length": 6,
    "patch_stride": 4,
    "d_model": 32,
    "ffn_dim": 48,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
}
MOBILEVIT = {
    "image_size": 40,
    "hidden_sizes": [8, 12, 16],
    "neck_hidden_sizes": [4, 4, 8, 8, 12, 12, 16],
    "num_attention_heads": 2,
    "expand_ratio": 2.0,
    "aspp_out_channels": 8,
    "atrous_rates": [1, 2, 3],
}
BOTH = {"text_config": TEXT, "vision_config": VISION, "projection_dim": 24}
WHISPER = {
    "vocab_size": 96,
    "num_mel_bins": 8,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_source_positions": 12,
    "max_target_positions": 32,
    "pad_token_id": 90,
    "bos_token_id": 90,
    "eos_token_id": 90,
    "decoder_start_token_id": 91,
}
UNET = {
    "sample_size": 8,
    "block_out_channels": [16, 32],
    "layers_per_block": 1,
    "cross_attention_dim": 24,
    "norm_num_groups": 8,
    "attention_head_dim": [2, 4],
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "use_linear_projection": True,
}
SDXL = {
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2],
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 6 * 8 + 24,
}
CONTROL = {
    **{
        name: value for name, value in UNET.items() if name not in ("sample_size", "up_block_types")
    },
    "conditioning_embedding_out_channels": [6, 8],
    "controlnet_conditioning_channel_order": "bgr",
}
PIXART = {
    "sample_size": 16,
    "num_attention_heads": 4,
    "attention_head_dim": 6,
    "num_layers": 2,
    "cross_attention_dim": 24,
    "caption_channels": 20,
}
FLUX = {
    "in_channels": 16,
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 12,
    "num_attention_heads": 2,
    "joint_attention_dim": 20,
    "pooled_projection_dim": 24,
    "axes_dims_rope": [4, 2, 6],
}
AUTOENCODER = {
    "sample_size": 16,
    "block_out_channels": [16, 32],
    "layers_per_block": 1,
    "latent_channels": 4,
    "norm_num_groups": 8,
    "down_block_types": ["DownEncoderBlock2D"] * 2,
    "up_block_types": ["UpDecoderBlock2D"] * 2,
}


def _vit(architecture: str, variant: str = "", **changes: Any) -> Case:
    return Case(architecture, variant, VISION | changes)


def _resnet(architecture: str, variant: str = "", **changes: Any) -> Case:
    return Case(architecture, variant, RESNET | changes)


def _convnext(architecture: str, **changes: Any) -> Case:
    return Case(architecture, "", CONVNEXT | changes, unsharded_only=DOUBLED)


def _mobilenet(architecture: str, **changes: Any) -> Case:
    return Case(architecture, "", MOBILENET | changes, unsharded_only=DOUBLED)


def _cvt(architecture: str, variant: str = "", **changes: Any) -> Case:
    return Case(architecture, variant, CVT | changes, unsharded_only=DOUBLED)


def _speech(architecture: str, variant: str = "", **changes: Any) -> Case:
    return Case(architecture, variant, SPEECH | changes)


SPEECH_CASES = (
    _speech("Wav2Vec2Model"),
    _speech("Wav2Vec2Model", "norms first", **STABLE),
    _speech("Wav2Vec2ForCTC"),
    _speech("Wav2Vec2ForCTC", "adapters of languages", **STABLE, adapter_attn_dim=6),
    _speech("Wav2Vec2Model", "adapter behind", **ADAPTER),
    _speech("Wav2Vec2ForXVector", "adapter behind", **XVECTOR, **ADAPTER),
    _speech("Wav2Vec2ForSequenceClassification", num_labels=5, use_weighted_layer_sum=True),
    _speech("Wav2Vec2ForAudioFrameClassification", num_labels=5),
    _speech("Wav2Vec2ForXVector", **XVECTOR),
    _speech("HubertModel", feat_proj_layer_norm=False, num_conv_pos_embeddings=5),
    _speech("HubertForCTC", conv_pos_batch_norm=True),
    _speech("HubertForSequenceClassification", **STABLE, num_labels=5),
    _speech("UniSpeechModel", **STABLE),
    _speech("UniSpeechForCTC"),
    _speech("UniSpeechForSequenceClassification", num_labels=5),
    _speech("UniSpeechSatModel"),
    _speech("UniSpeechSatForCTC", **STABLE),
    _speech("UniSpeechSatForSequenceClassification", num_labels=5),
    _speech("UniSpeechSatForAudioFrameClassification", num_labels=5),
    _speech("UniSpeechSatForXVector", **XVECTOR),
    _speech("WavLMModel", **WAVLM, num_hidden_layers=2, **STABLE),
    _speech("WavLMForCTC", **WAVLM),
    _speech("WavLMForCTC", "adapter behind", **WAVLM, **ADAPTER, output_hidden_size=16),
    _speech("WavLMForSequenceClassification", **WAVLM, num_labels=5),
    _speech("WavLMForAudioFrameClassification", **WAVLM, num_labels=5),
    _speech("WavLMForXVector", **WAVLM, **XVECTOR, use_weighted_layer_sum=True, **STABLE),
)
CASES = (
    *SPEECH_CASES,
    Case("PatchTSTForPrediction", "", PATCHTST),
    Case(
        "PatchTSTForPrediction",
        "norms behind",
        PATCHTST
        | {
            "norm_type": "layernorm",
            "pre_norm": False,
            "bias": False,
            "positional_encoding_type": "random",
            "pooling_type": None,
            "scaling": "mean",
            "channel_attention": True,
        },
    ),
    Case(
        "PatchTSTForPrediction", "class token", PATCHTST | {"use_cls_token": True, "scaling": None}
    ),
    Case("PatchTSTForPrediction", "embeddings of series", PATCHTST | {"share_embedding": False}),
    _vit("ViTModel"),
    _vit("ViTForImageClassification", num_labels=5, qkv_bias=False, image_size=[16, 24]),
    _vit("DeiTModel"),
    _vit("DeiTForImageClassification", num_labels=5, hidden_act="gelu_new"),
    _vit("DeiTForImageClassificationWithTeacher", num_labels=5),
    _vit("BeitModel", use_relative_position_bias=True),
    _vit("BeitModel", "first token", **BEIT_POSITIONS, layer_scale_init_value=0.0),
    _vit("BeitForImageClassification", num_labels=5, use_relative_position_bias=True),
    _resnet("ResNetModel"),
    _resnet("ResNetForImageClassification", num_labels=5, downsample_in_bottleneck=True),
    _resnet(
        "ResNetForImageClassification",
        "basic blocks",
        num_labels=5,
        layer_type="basic",
        downsample_in_first_stage=True,
    ),
    _convnext("ConvNextModel", layer_scale_init_value=0.0),
    _convnext("ConvNextForImageClassification", num_labels=5),
    _convnext("ConvNextV2Model"),
    _convnext("ConvNextV2ForImageClassification", num_labels=5),
    Case("SwinModel", "", SWIN | {"qkv_bias": False}),
    Case(
        "SwinForImageClassification",
        "padded windows",
        SWIN
        | {"image_size": 18, "window_size": 4, "use_absolute_embeddings": True, "num_labels": 5},
    ),
    Case("DonutSwinForImageClassification", "", SWIN | {"num_labels": 5}),
    Case("DonutSwinModel", "", SWIN | {"mlp_ratio": 1.5}),
    _mobilenet("MobileNetV2ForImageClassification", num_labels=5),
    _mobilenet(
        "MobileNetV2ForSemanticSegmentation",
        num_labels=3,
        output_stride=8,
        image_size=[20, 27],
        first_layer_is_expansion=False,
    ),
    _mobilenet("MobileNetV2Model", tf_padding=False),
    Case("EfficientNetForImageClassification", "", EFFICIENTNET | {"num_labels": 5}),
    Case(
        "EfficientNetModel",
        "",
        EFFICIENTNET | {"depthwise_padding": [1, 3], "width_coefficient": 0.5, "hidden_dim": 640},
    ),
    _cvt("CvtModel", qkv_bias=[True, False]),
    _cvt("CvtForImageClassification", num_labels=5, mlp_ratio=[1.5, 2.0]),
    _cvt(
        "CvtForImageClassification",
        "wide windows",
        num_labels=5,
        kernel_qkv=[5, 3],
        padding_q=[2, 1],
        stride_kv=[1, 2],
    ),
    Case("LevitModel", "", LEVIT | {"attention_ratio": [2, 1, 3], "mlp_ratio": [1, 2, 2]}),
    Case("LevitForImageClassification", "", LEVIT | {"num_labels": 5}),
    Case("LevitForImageClassificationWithTeacher", "", LEVIT | {"num_labels": 5}),
    Case("DPTModel", "", VISION),
    Case("DPTForDepthEstimation", "", DPT),
    Case(
        "DPTForSemanticSegmentation",
        "",
        DPT
        | {
            "num_labels": 3,
            "readout_type": "add",
            "use_batch_norm_in_fusion_residual": True,
            "head_in_index": 0,
        },
    ),
    Case("DPTForDepthEstimation", "hybrid", HYBRID),
    Case("YolosModel", "", YOLOS | {"use_mid_position_embeddings": False}),
    Case("YolosForObjectDetection", "", YOLOS | {"num_labels": 5}),
    Case(
        "YolosForObjectDetection",
        "parts of patches",
        YOLOS | {"num_labels": 5, "image_size": [17, 27], "use_mid_position_embeddings": False},
    ),
    Case("ASTModel", "", AST),
    Case("ASTForAudioClassification", "", AST | {"num_labels": 5, "qkv_bias": False}),
    Case("MobileViTModel", "", MOBILEVIT, unsharded_only=DOUBLED),
    Case(
        "MobileViTForImageClassification",
        "",
        MOBILEVIT | {"num_labels": 5, "conv_kernel_size": 5, "output_stride": 16},
        unsharded_only=DOUBLED,
    ),
    Case(
        "MobileViTForSemanticSegmentation",
        "",
        MOBILEVIT | {"num_labels": 3, "output_stride": 8},
        unsharded_only=DOUBLED,
    ),
    Case("CLIPModel", "", BOTH),
    Case("CLIPModel", "old end token", BOTH | {"text_config": TEXT | {"eos_token_id": 2}}),
    Case("CLIPTextModel", "", TEXT | {"hidden_act": "gelu"}),
    Case("CLIPTextModelWithProjection", "", TEXT | {"projection_dim": 24}),
    Case("CLIPVisionModel", "", VISION),
    Case("CLIPVisionModelWithProjection", "", VISION | {"projection_dim": 24}),
    Case("WhisperForConditionalGeneration", "", WHISPER),
    Case("UNet2DConditionModel", "Stable Diffusion 2", UNET),
    Case(
        "UNet2DConditionModel",
        "Stable Diffusion 1",
        UNET | {"use_linear_projection": False, "attention_head_dim": 4, "layers_per_block": 2},
    ),
    Case("UNet2DConditionModel", "SDXL", UNET | SDXL),
    Case("ControlNetModel", "", CONTROL),
    Case("PixArtTransformer2DModel", "", PIXART | {"out_channels": 4, "attention_bias": False}),
    Case("PixArtTransformer2DModel", "told sizes", PIXART | {"use_additional_conditions": True}),
    Case("FluxTransformer2DModel", "dev", FLUX | {"guidance_embeds": True}),
    Case("FluxTransformer2DModel", "schnell", FLUX),
    Case("AutoencoderKL", "", AUTOENCODER),
)
