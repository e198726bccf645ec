"""The rows of the benchmark: models, batches and methods, as data.

A row can be sent to another process, so models and records are functions of a module, with their arguments bound by
`partial`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnomon import methods
from gnomon.models import paper_cnn, resnet20

# Models of Hugging Face have random weights here: nothing is downloaded or reported.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TRANSFORMERS_VERBOSITY="error")

Batch = tuple[Tensor, Tensor]
Records = Callable[[int], Batch]
"""Draws the given number of records."""


# -- models ------------------------------------------------------------------------------------------


class Transformer(nn.Module):
    """A Transformer encoder with a language-model head; by default 4 layers of width 256, 3.4 million parameters."""

    def __init__(self, vocabulary: int = 512, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.embed(x)))


class LanguageModel(nn.Module):
    """The logits of a language model of Hugging Face."""

    explicit_positions = False
    """Whether to look up position embeddings once per record, which engines need that see the batch size in them."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1]).repeat(len(ids), 1) if self.explicit_positions else None
        return self.network(input_ids=ids, position_ids=positions, use_cache=False).logits


class Classifier(nn.Module):
    """The logits of an image classifier of Hugging Face."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network(pixel_values=images).logits


def mlp(*widths: int) -> nn.Module:
    """Build linear layers of the given widths, with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def gpt2(layers: int = 4, width: int = 256, heads: int = 4, vocabulary: int = 2000, tied: bool = True) -> nn.Module:
    """Build GPT-2 of Hugging Face without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocabulary, tie_word_embeddings=tied,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return LanguageModel(GPT2LMHeadModel(config))


def gpt2_lora(rank: int = 8) -> nn.Module:
    """Build GPT-2 with frozen weights and trained LoRA matrices beside the attention."""
    from peft import LoraConfig, get_peft_model

    model = gpt2()
    config = LoraConfig(r=rank, target_modules=["c_attn"], fan_in_fan_out=True, lora_dropout=0.0)
    model.network = get_peft_model(model.network, config)
    return model


def vit(layers: int = 4, width: int = 192, heads: int = 3) -> nn.Module:
    """Build a vision transformer of Hugging Face for images of 32x32, without dropout."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width,
        image_size=32, patch_size=4, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return Classifier(ViTForImageClassification(config))


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each sample; for sequences, the mean over positions."""
    if outputs.dim() == 2:
        return F.cross_entropy(outputs, targets, reduction="none")
    return F.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(1)


# -- records -----------------------------------------------------------------------------------------


def labelled(shape: tuple[int, ...], count: int) -> Batch:
    """Draw records of the given shape with labels of ten classes."""
    return torch.randn(count, *shape), torch.randint(0, 10, (count,))


def texts(length: int, vocabulary: int, count: int) -> Batch:
    """Draw sequences of tokens, with a token to predict at each position."""
    return torch.randint(0, vocabulary, (count, length)), torch.randint(0, vocabulary, (count, length))


# -- methods -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DpSgd:
    """DP-SGD."""

    def build(self, records: Records) -> methods.Method:
        return methods.dp_sgd()


@dataclass(frozen=True)
class Pcdp:
    """PCDP-SGD in the span of the gradients of public records."""

    public: int
    """The number m of public records."""
    rank: int
    """The number k of dimensions."""
    every: int = 1
    """The number of steps between two bases."""

    def build(self, records: Records) -> methods.Method:
        return methods.pcdp(records(self.public), self.rank, every=self.every)


@dataclass(frozen=True)
class DpLsgd:
    """DP-LSGD: local steps of each sample."""

    steps: int = 10
    """The number K of local steps."""
    lr: float = 0.01

    def build(self, records: Records) -> methods.Method:
        return methods.dp_lsgd(self.steps, self.lr)


# -- rows --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One row of the benchmark: what all engines run.

    A row with `run_steps` is a whole run of training, on `dataset` records.
    """

    label: str
    model: Callable[[], nn.Module]
    records: Records
    batch: int
    method: Any = DpSgd()
    threads: int = 1
    max_physical_batch_size: int | None = None
    steps_per_turn: int = 1
    """The number of steps that are timed together; for a basis every n steps, n."""
    memory: bool = True
    large: bool = False
    """Whether the row is measured only on request, because it takes gigabytes and minutes."""
    needs: tuple[str, ...] = ()
    """The optional modules of the model."""
    jax: str | None = None
    """The name of the same model in jax_steps.py."""
    dataset: int = 0
    run_steps: int = 0

    @property
    def name(self) -> str:
        return self.label if self.threads == 1 else f"{self.label}, {self.threads} threads"


CNN = partial(paper_cnn, (1, 28, 28), 10, channels_last=False)
"""The CNN in torch's default memory format, as users write it. A study builds it with channels last."""
DIGITS = partial(labelled, (1, 28, 28))
VECTORS = partial(labelled, (784,))
TEXTS = partial(texts, 64, 512)
GPT2 = ("transformers.models.gpt2.modeling_gpt2",)
VIT = ("transformers.models.vit.modeling_vit",)

_STEPS = (
    Row("DP-SGD, CNN 26k, B = 250", CNN, DIGITS, 250, jax="cnn"),
    Row("DP-SGD, MLP 784-1024-1024-10, B = 256", partial(mlp, 784, 1024, 1024, 10), VECTORS, 256, jax="mlp"),
    Row("DP-SGD, Transformer 3.4M, T = 64, B = 32", Transformer, TEXTS, 32),
)

ROWS = (
    *_STEPS,
    *(replace(row, threads=2, memory=False) for row in _STEPS),
    Row("DP-SGD, GPT-2 tied, T = 64, B = 16", gpt2, partial(texts, 64, 2000), 16, needs=GPT2),
    Row("DP-SGD, GPT-2 untied, T = 64, B = 16", partial(gpt2, tied=False), partial(texts, 64, 2000), 16, needs=GPT2),
    Row("DP-SGD, GPT-2 LoRA rank 8, T = 64, B = 16", gpt2_lora, partial(texts, 64, 2000), 16, needs=(*GPT2, "peft")),
    Row("DP-SGD, ViT, 32x32 images, B = 64", vit, partial(labelled, (3, 32, 32)), 64, needs=VIT),
    *(Row(f"DP-SGD, CNN 26k, B = {batch}", CNN, DIGITS, batch, jax="cnn") for batch in (64, 512, 4096)),
    Row("DP-SGD, CNN 26k, B = 4096 in parts of 512", CNN, DIGITS, 4096, max_physical_batch_size=512),
    Row("PCDP, CNN 26k, B = 250, m = k = 100", CNN, DIGITS, 250, Pcdp(100, 100)),
    Row("PCDP, CNN 26k, B = 250, m = k = 100, every 10", CNN, DIGITS, 250, Pcdp(100, 100, 10), steps_per_turn=10),
    Row("PCDP, MLP 784-2048-2048-10, B = 256, m = k = 100", partial(mlp, 784, 2048, 2048, 10), VECTORS, 256,
        Pcdp(100, 100)),
    Row("PCDP, Transformer 26M, T = 64, B = 16, m = k = 32", partial(Transformer, 512, 512, 8), TEXTS, 16,
        Pcdp(32, 32)),
    Row("PCDP, Transformer 26M, T = 64, B = 16, m = k = 32, every 10", partial(Transformer, 512, 512, 8), TEXTS, 16,
        Pcdp(32, 32, 10), steps_per_turn=10),
    Row("DP-LSGD K = 10, MLP 784-256-256-10, B = 250", partial(mlp, 784, 256, 256, 10), VECTORS, 250, DpLsgd()),
    Row("DP-LSGD K = 10, CNN 26k, B = 250", CNN, DIGITS, 250, DpLsgd()),
    Row("DP-LSGD K = 10, ResNet-20, B = 64", partial(resnet20, (3, 32, 32), 10), partial(labelled, (3, 32, 32)), 64,
        DpLsgd()),
    Row("Overhead, linear model 1k, B = 64", partial(nn.Linear, 99, 10), partial(labelled, (99,)), 64,
        steps_per_turn=20, memory=False),
    Row("Study, CNN 26k, 80 epochs of 10,000 records, B = 250", partial(paper_cnn, (1, 28, 28), 10), DIGITS, 250,
        memory=False, dataset=10_000, run_steps=3200),
    Row("DP-SGD, GPT-2 124M, T = 128, B = 8", partial(gpt2, 12, 768, 12, 50257), partial(texts, 128, 50257), 8,
        needs=GPT2, large=True),
)  # fmt: skip
"""All rows of the benchmark, in the order of the table."""
