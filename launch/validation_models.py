"""Models whose times AWS has published, as programs of these models, for `neuronjax validate`.

`MEASUREMENTS` is the table that ``neuronjax validate --models`` takes. Nothing here allocates.

What the sources leave open, and what is taken:

* Weights of Llama are stored as int8 where that was published, one scale per output channel; the
  product is scaled, not the weight (so does transformers-neuronx). Embedding and head stay BF16.
* Weights of the products of BERT and ResNet are constants of traced programs, which the compiler
  casts to BF16 once: they are BF16 arguments here, of which the program makes FP32. So it does
  with the statistics of ResNet's norms, which are in weights and biases here.
* Heads that the cores do not divide are padded: key and value heads are repeated until each core
  has one; Llama-2-7B's 32 heads on 24 cores become 48, its feed-forward layer of 11,008 becomes
  11,016 wide and its vocabulary 32,016 (so does neuronx-distributed). BERT-large's vocabulary is
  padded to a multiple of 128.
* Training casts operands of products to BF16, as models in BF16 do with the gradients of logits.
* BERT's training tutorial sets XLA_DOWNCAST_BF16: its logits and its loss are BF16, as all FP32
  tensors of its program.
* Time to the first token is one prefill over the prompt alone, with logits of its last token, and
  for transformers-neuronx what its host does: it embeds prompts there, and writes them to every
  core, unless it is told otherwise.
* Training is the step of the training job, whole. Llama's settings are those of
  neuronx-distributed's tutorial (`tp_zero1_llama_hf_pretrain`): tensor and sequence parallelism,
  ZeRO-1, one product for queries, keys and values, and scores of attention that are made again in
  the backward pass.
* The classic U-Net is the public sample's: convolutions keep the size, transposed ones go up.
* Stable Diffusion runs the two halves of guidance on the two cores, each its own UNet, as the
  public notebook does.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import AbstractMesh

from launch.classic_unet import ClassicUNet
from launch.source import byte_level
from launch.training.objectives import Batch, Loss, text_batch
from launch.training.parallelism import Parallelism
from launch.training.precision import PRECISIONS
from launch.training.step import make_training
from launch.validation_decoders import DECODERS, Shapes, measurement, part
from launch.workloads import MODELS
from models.clip.config import CLIPConfig, TextConfig, Tower
from models.clip.model import CLIP
from models.decoder.config import DecoderConfig
from models.diffusion.autoencoder import Autoencoder
from models.diffusion.config import AutoencoderConfig, UNetConfig
from models.diffusion.unet import UNet
from models.encoder.config import EncoderConfig
from models.encoder.model import Encoder
from models.layers.conv_norm import ConvNorm
from models.layers.text_heads import TextHeadConfig
from models.parameters import merge, split_abstract
from models.pretrained import Described
from models.registry import ARCHITECTURES
from models.resnet.config import ResNetConfig
from models.resnet.model import ResNet
from models.weights.fields import Fields

BERT_BASE = EncoderConfig(
    vocab_size=28_996, num_layers=12, dim=768, hidden_dim=3072, num_heads=12, num_positions=512,
    embedding_dim=768, type_vocab_size=2, head=TextHeadConfig("text-classification"),
)  # fmt: skip
DISTILBERT_BASE = EncoderConfig(
    vocab_size=30_522, num_layers=6, dim=768, hidden_dim=3072, num_heads=12, num_positions=512,
    embedding_dim=768,
    head=TextHeadConfig("text-classification", act="relu"),
)  # fmt: skip
ALBERT_BASE = EncoderConfig(
    vocab_size=30_000, num_layers=12, dim=768, hidden_dim=3072, num_heads=12, num_positions=512,
    embedding_dim=128, embedding_projection=True, type_vocab_size=2, num_groups=1, act="gelu_new",
    head=TextHeadConfig("text-classification"),
)  # fmt: skip
BERT_LARGE = EncoderConfig(
    vocab_size=30_592, num_layers=24, dim=1024, hidden_dim=4096, num_heads=16, num_positions=512,
    embedding_dim=1024, type_vocab_size=2, dtype="bfloat16", param_dtype="bfloat16",
    head=TextHeadConfig("fill-mask", act="gelu", transform_norm=True),
)  # fmt: skip
RESNET_50 = ResNetConfig(num_labels=1000)
RESNET_34 = replace(
    RESNET_50, stage_channels=(64, 128, 256, 512), depths=(3, 4, 6, 3), bottleneck=False
)
STABLE_DIFFUSION = UNetConfig(sample_size=(64, 64), dtype="bfloat16", param_dtype="bfloat16")
TEXT_ENCODER = CLIPConfig(
    TextConfig(Tower(dim=1024, hidden_dim=4096, num_layers=23, num_heads=16, act="gelu")), None
)


def llama_training(
    mesh: AbstractMesh,
    *,
    config: DecoderConfig,
    length: int,
    micro_batches: int,
    layers: int | None = None,
) -> dict[str, Any]:
    """A step of pre-training, `micro_batches` sequences on each data-parallel group."""
    depth = config.num_layers
    config = replace(config, num_layers=layers or depth, max_seq_len=length)
    parallelism = Parallelism.of(
        mesh.shape,
        zero_1=True,
        recompute="selective",
        fuse_qkv=True,
        gradient_accumulation_steps=micro_batches,
    ).fitted(config)
    rows = micro_batches * mesh.shape["data"]
    training = make_training(
        byte_level(config).model,
        _ADAMW,
        parallelism,
        PRECISIONS["mixed_precision"],
        mesh=parallelism.abstract_mesh(),
        batch=text_batch(rows, length),
        clip_norm=1.0,
        seed=0,
    )
    return {"fn": training.step, "arguments": training.arguments, "layers": depth}


_ADAMW = optax.adamw(1e-4, b2=0.95, weight_decay=0.01)


def bert(
    *, config: EncoderConfig, batch: int = 1, length: int = 128, layers: int | None = None
) -> dict[str, Any]:
    """Logits of sequences with their mask."""
    depth = config.num_layers
    graph, weights = split_abstract(
        lambda: Encoder(replace(config, num_layers=layers or depth), rngs=nnx.Rngs(0))
    )

    def infer(weights: Any, tokens: jax.Array, mask: jax.Array) -> Any:
        return merge(graph, weights)(tokens, real=mask != 0)

    tokens = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    return {"fn": infer, "arguments": (_cast(weights), tokens, tokens), "layers": depth}


def _cast(weights: Shapes) -> Shapes:
    """The shapes with the weights of products in BF16."""
    return {
        path: jax.ShapeDtypeStruct(weight.shape, jnp.bfloat16)
        if path.endswith("kernel")
        else weight
        for path, weight in weights.items()
    }


@dataclass(frozen=True)
class DowncastMaskedLanguage:
    """Cross entropy of masked tokens whose logits are BF16, as everything is that was FP32."""

    def __call__(self, model: Any, batch: Batch, keys: jax.Array | None) -> Loss:
        """`tokens`, `real` and `targets` [B, T]; all of them count."""
        logits = model(batch["tokens"], real=batch["real"] != 0)["logits"].astype(jnp.bfloat16)
        is_target = batch["targets"][..., None] == jnp.arange(logits.shape[-1])
        target = jnp.sum(jnp.where(is_target, logits, jnp.zeros_like(logits)), axis=-1)
        losses = jax.nn.logsumexp(logits, axis=-1) - target
        return Loss(jnp.sum(losses, dtype=jnp.float32), jnp.float32(losses.size), {})


def bert_training(
    mesh: AbstractMesh,
    *,
    config: EncoderConfig,
    batch: int,
    length: int,
    micro_batches: int,
    layers: int | None = None,
) -> dict[str, Any]:
    """A step of pre-training, `micro_batches` of `batch` sequences on each core."""
    depth = config.num_layers
    config = replace(config, num_layers=layers or depth)
    parallelism = Parallelism.of(mesh.shape, gradient_accumulation_steps=micro_batches)
    tokens = jax.ShapeDtypeStruct((micro_batches * batch * mesh.shape["data"], length), jnp.int32)
    training = make_training(
        Described(ARCHITECTURES["BertForMaskedLM"], config, Fields({}, "the published run")),
        _ADAMW,
        parallelism,
        PRECISIONS["bf16SR"],
        mesh=parallelism.abstract_mesh(),
        batch={"tokens": tokens, "real": tokens, "targets": tokens},
        objective=DowncastMaskedLanguage(),
        seed=0,
    )
    return {"fn": training.step, "arguments": training.arguments, "layers": depth}


class Folded(ConvNorm):
    """A convolution and a norm of known statistics: those are in its weights and its bias."""

    def __init__(self, layer: ConvNorm) -> None:
        self.convolution = layer.convolution
        self.bias = nnx.Param(jnp.zeros_like(layer.norm.bias[...]))

    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """Applies the layer as in inference."""
        return self.convolution(x) + self.bias[...]


def _make_folded(config: ResNetConfig) -> ResNet:
    model = ResNet(config, rngs=nnx.Rngs(0))
    model.stem = Folded(model.stem)
    for stage in model.stages:
        for block in stage:
            block.shortcut = block.shortcut and Folded(block.shortcut)
            layers: list[ConvNorm] = [Folded(layer) for layer in block.layers]
            block.layers = nnx.List(layers)
    return model


def resnet(*, config: ResNetConfig = RESNET_50, batch: int = 1) -> dict[str, Any]:
    """Logits of images."""
    graph, weights = split_abstract(partial(_make_folded, config))
    pixels = jax.ShapeDtypeStruct((batch, 224, 224, 3), jnp.float32)
    return {"fn": lambda w, pixels: merge(graph, w)(pixels), "arguments": (_cast(weights), pixels)}


def segmentation() -> dict[str, Any]:
    """Logits of two classes for each pixel of an image, by the classic U-Net."""
    graph, weights = split_abstract(lambda: ClassicUNet(2, rngs=nnx.Rngs(0)))
    pixels = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    return {"fn": lambda w, pixels: merge(graph, w)(pixels), "arguments": (_cast(weights), pixels)}


def unet() -> dict[str, Any]:
    """The denoiser on one latent image: half of a guided step."""
    config = STABLE_DIFFUSION
    graph, weights = split_abstract(lambda: UNet(config, rngs=nnx.Rngs(0)))

    def denoise(weights: Any, latents: jax.Array, time: jax.Array, context: jax.Array) -> Any:
        return merge(graph, weights)(latents, time, context)

    dtype = jnp.bfloat16
    arguments = (
        weights,
        jax.ShapeDtypeStruct((1, *config.sides, config.in_channels), dtype),
        jax.ShapeDtypeStruct((1,), jnp.float32),
        jax.ShapeDtypeStruct((1, 77, config.context_dim), dtype),
    )
    return {"fn": denoise, "arguments": arguments}


def text_encoder(*, layers: int | None = None) -> dict[str, Any]:
    """The prompt of an image."""
    text = TEXT_ENCODER.text
    assert text is not None
    tower = replace(text.tower, num_layers=layers or text.tower.num_layers)
    config = replace(TEXT_ENCODER, text=replace(text, tower=tower))
    graph, weights = split_abstract(lambda: CLIP(config, rngs=nnx.Rngs(0)))
    return {
        "fn": lambda weights, tokens: merge(graph, weights).encode(tokens).hidden,
        "arguments": (weights, jax.ShapeDtypeStruct((1, 77), jnp.int32)),
        "layers": text.tower.num_layers,
    }


def image_decoder() -> dict[str, Any]:
    """The latents' image of 512 by 512 pixels."""
    graph, weights = split_abstract(lambda: Autoencoder(AutoencoderConfig(), rngs=nnx.Rngs(0)))
    latents = jax.ShapeDtypeStruct((1, 64, 64, 4), jnp.float32)
    return {
        "fn": lambda weights, latents: merge(graph, weights).decode(latents),
        "arguments": (_cast(weights), latents),
    }


MATMULT_BF16 = "--auto-cast=matmult --auto-cast-type=bf16"


def _bert(target: str, batch: int, config: EncoderConfig = BERT_BASE) -> dict[str, Any]:
    return part(bert, target, config=config, batch=batch, flags=MATMULT_BF16)


def _resnet(batch: int, config: ResNetConfig = RESNET_50) -> dict[str, Any]:
    return part(resnet, "inf2.xlarge", config=config, batch=batch, flags=MATMULT_BF16)


MEASUREMENTS: tuple[dict[str, Any], ...] = (
    measurement("M1", "BERT-base, sequence 128, Trn1 core", 0.943, _bert("trn1.2xlarge", 1)),
    measurement("M2", "the same, Inf2 core", 0.999, _bert("inf2.xlarge", 1)),
    # 2674 and 4393 inferences/s over two cores, each with its own batches of 8.
    measurement("M2 batch 8", "8 sequences", 2 * 8e3 / 2674, _bert("inf2.xlarge", 8)),
    measurement("M3", "ResNet-50, 224 by 224, Inf2 core", 0.830, _resnet(1)),
    measurement("M3 batch 8", "8 images", 2 * 8e3 / 4393, _resnet(8)),
    # 47.95 sequences/s; 1024 sequences on 32 data-parallel groups are 32 micro batches of one.
    measurement(
        "M7", "Llama-3.1-8B pre-training, 8192 tokens, a step", 1024e3 / 47.95,
        part(
            llama_training, "trn1.32xlarge", config=MODELS["8b"], mesh="data=32,model=32",
            length=8192, micro_batches=32, flags=MATMULT_BF16,
        ),
    ),
    # 3826.6 sequences/s; 16384 sequences on 32 cores are 32 micro batches of 16.
    measurement(
        "M8", "BERT-large pre-training, 128 tokens, a step", 16384e3 / 3826.6,
        part(
            bert_training, "trn1.32xlarge", config=BERT_LARGE, mesh="data=32", batch=16,
            length=128, micro_batches=32, flags=MATMULT_BF16,
        ),
    ),
    measurement(
        "M9", "Stable Diffusion 2.1, 512 by 512, 50 steps", 1680,
        part(text_encoder, "inf2.xlarge"),
        part(unet, "inf2.xlarge", times=50),
        part(image_decoder, "inf2.xlarge", flags=MATMULT_BF16),
    ),
    measurement(
        "M10", "DistilBERT-base, sequence 128, Trn1 core", 0.543,
        _bert("trn1.2xlarge", 1, DISTILBERT_BASE),
    ),
    measurement(
        "M11", "ALBERT-base-v2, sequence 128, Trn1 core", 0.860,
        _bert("trn1.2xlarge", 1, ALBERT_BASE),
    ),
    measurement("M12", "ResNet-34, 224 by 224, Inf2 core", 0.718, _resnet(1, RESNET_34)),
    measurement(
        "M13", "U-Net, 224 by 224, Inf2 core", 2.232,
        part(segmentation, "inf2.xlarge", flags=MATMULT_BF16),
    ),
    *DECODERS,
)  # fmt: skip
"""The measurements of `neuronjax validate --models`; times in ns, of one core's program."""
