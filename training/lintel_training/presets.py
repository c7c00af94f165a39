# SPDX-License-Identifier: Apache-2.0
"""Named recipes: an architecture and how to train it."""

from dataclasses import asdict, dataclass, replace
from typing import Optional


MIXTURES = 10  # components of a mixture of logistics, as in the paper


@dataclass(frozen=True)
class Recipe:
    """Everything that determines the weights, apart from the data and the architecture."""

    seed: int = 0
    batch_size: int = 128  # sequences in one forward pass
    accumulate: int = 1  # forward passes in one update
    epochs: Optional[float] = None
    steps: Optional[int] = None  # updates; wins over epochs
    learning_rate: float = 1e-3  # peak
    # Learning rate of the predictor against the rest. Adam moves an output by up to rate * d_model a
    # step; the mean of a narrow logistic must move by less than a pixel (1/128).
    head_rate: float = 1.0
    final_learning_rate: float = 0.01  # of the peak, at the end of the cosine
    warmup_steps: int = 400
    weight_decay: float = 0.05  # of weight matrices only
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0
    ema_decay: float = 0.999
    precision: str = "bf16"  # of matrix products in training: "bf16" (autocast) or "f32"
    dropout: float = 0.0
    shift_augment: float = 0.0  # images: probability of a shift by up to a pixel
    context: int = 512  # text: bytes or tokens in a training window
    carry: bool = False  # text: windows follow each other, and the state goes from one to the next
    valid_count: int = 2000  # images: the last of the training file, for validation
    init_from: Optional[str] = None  # model directory to start from, with any attention
    labels: Optional[str] = None  # images: only those with these labels, "0-4,7"
    image_filter: Optional[str] = None  # images: only those that pass, of selection.FILTERS
    lora_rank: Optional[int] = None  # learn an adapter of this rank; the model stays as it is
    lora_alpha: Optional[float] = None  # the adapter's output is times alpha / rank; None: 1
    lora_modules: Optional[str] = None  # names of linear maps, with commas; None: all but predictor
    limit_train: Optional[int] = None  # images or bytes, for trials

    to_dict = asdict


@dataclass(frozen=True)
class Preset:
    about: str
    config: dict  # as config.json
    recipe: Recipe


def _image(attention, **changes):
    config = {
        "format_version": 1, "vocab_size": 256, "max_length": 783, "d_model": 256, "n_layers": 8,
        "n_heads": 8, "d_head": 32, "d_ff": 1024, "activation": "relu", "norm_placement": "pre",
        "final_norm": True, "layer_norm_eps": 1e-5, "embedding": "value_add_position",
        "position_encoding": "learned", "attention": attention,
        "head": {"type": "mixture_of_logistics", "mixtures": MIXTURES},
        "modality": {"type": "image", "height": 28, "width": 28, "channels": 1, "start_token": 0},
    }
    config.update(changes)
    return config


def _lsh(rounds):
    # 27 chunks of 29 are the 783 positions of an image.
    return {"type": "lsh", "rounds": rounds, "bits": 32, "chunk_size": 29, "mask_self": True,
            "combine": "mean"}


# For images whose rows are 28 pixels: windows of two rows, blocks of a row, four rows of memory.
_OF_SMALL = {
    "favor": ("linear attention over 64 positive random features (Performer)",
              {"type": "linear", "feature_map": "favor", "features": 64}),
    "taylor1": ("linear attention, 1 + cos(q, k) (Li et al. 2020)",
                {"type": "linear", "feature_map": "taylor1"}),
    "efficient": ("Efficient Attention, causal", {"type": "efficient"}),
    "longformer": ("a window of two rows of pixels and one global token",
                   {"type": "longformer", "window": 57, "global_tokens": 1}),
    "sparse": ("Sparse Transformer, strided: the last row of pixels and the column above",
               {"type": "sparse_transformer", "pattern": "strided", "stride": 28}),
    "bigbird": ("BigBird: blocks of a row, two as a window, one global, two random",
                {"type": "bigbird", "block_size": 28, "random_blocks": 2}),
    "linformer": ("Linformer: each earlier row of pixels in four slots",
                  {"type": "linformer", "mode": "blocks", "block_size": 28, "rank": 4}),
    "transformer-xl": ("Transformer-XL: segments of a row, four rows of memory",
                       {"type": "transformer_xl", "segment_length": 28, "memory_length": 112}),
}

_TEXT = {
    "format_version": 1, "vocab_size": 256, "max_length": 0, "d_model": 256, "n_layers": 8,
    "n_heads": 4, "d_head": 64, "d_ff": 1024, "activation": "relu", "norm_placement": "pre",
    "final_norm": True, "layer_norm_eps": 1e-5, "embedding": "value_add_position",
    "position_encoding": "sinusoidal", "attention": {"type": "linear"},
    "head": {"type": "categorical"}, "modality": {"type": "bytes"},
}

# Configurations as transformers writes them. No id ends a text: training data has no end.
_RWKV7 = {
    "architectures": ["Rwkv7ForCausalLM"], "model_type": "rwkv7", "vocab_size": 1024, "hidden_size": 256,
    "num_hidden_layers": 4, "head_dim": 64, "num_heads": 4, "intermediate_size": 1024,
    "decay_low_rank_dim": 32, "a_low_rank_dim": 32, "v_low_rank_dim": 16, "gate_low_rank_dim": 64,
    "norm_eps": 1e-5, "norm_bias": True, "tie_word_embeddings": False, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": None, "dtype": "bfloat16", "wkv_state_dtype": "float32",
}
_QWEN3_5 = {
    "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "vocab_size": 1024,
    "hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 640, "hidden_act": "silu",
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "linear_num_key_heads": 4,
    "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "attention_bias": False,
    "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                              "partial_rotary_factor": 0.25},
    "max_position_embeddings": 32768, "tie_word_embeddings": True, "bos_token_id": None,
    "eos_token_id": None, "dtype": "bfloat16",
}

_FAMILY_RECIPE = Recipe(epochs=6, batch_size=4, context=256, learning_rate=2e-3, warmup_steps=200,
                        final_learning_rate=0.02, weight_decay=0.1, dropout=0.15, ema_decay=0.997)

# head_rate: after 500 updates at this rate, 1.36 bits/dim against 1.57 with 0.02; the full rate was
# still at 1.50 after 800.
_IMAGE_RECIPE = Recipe(epochs=250, dropout=0.05, head_rate=0.1)

_SMALL_RECIPE = Recipe(epochs=3.5, batch_size=8, learning_rate=1.5e-3, warmup_steps=300,
                       ema_decay=0.999)


def _small(attention):
    # Categorical: with a mixture of logistics the gradient has heavy tails (a narrow component that
    # misses is very steep), and the first epoch, all that a CPU can do, is spent on them.
    return _image(attention, d_model=128, n_layers=4, n_heads=4, d_ff=512,
                  head={"type": "categorical"})


PRESETS = {
    "mnist-linear": Preset("MNIST, linear attention, the paper's size (8 layers, 8 heads of 32)",
                           _image({"type": "linear"}), _IMAGE_RECIPE),
    "mnist-softmax": Preset("the same with softmax attention",
                            _image({"type": "softmax"}), _IMAGE_RECIPE),
    "mnist-lsh1": Preset("the same with LSH attention, one hash round",
                         _image(_lsh(1)), _IMAGE_RECIPE),
    "mnist-lsh4": Preset("the same with LSH attention, four hash rounds",
                         _image(_lsh(4)), _IMAGE_RECIPE),
    "mnist-linear-small": Preset("MNIST, linear attention, small enough for a CPU",
                                 _small({"type": "linear"}), _SMALL_RECIPE),
    "mnist-softmax-small": Preset("the same with softmax attention",
                                  _small({"type": "softmax"}), _SMALL_RECIPE),
    "mnist-lsh1-small": Preset("the same with LSH attention, one hash round",
                               _small(_lsh(1)), _SMALL_RECIPE),
    "mnist-lsh4-small": Preset("the same with LSH attention, four hash rounds",
                               _small(_lsh(4)), _SMALL_RECIPE),
    **{f"mnist-{name}-small": Preset(f"the same with {about}", _small(attention), _SMALL_RECIPE)
       for name, (about, attention) in _OF_SMALL.items()},
    "text-linear": Preset("bytes of text, linear attention, unbounded length", _TEXT,
                          Recipe(epochs=60, batch_size=64, dropout=0.2)),
    "text-rwkv7-small": Preset("tokens of text, RWKV-7, 4 layers, as a Hugging Face directory", _RWKV7,
                               replace(_FAMILY_RECIPE, carry=True)),
    "text-qwen3_5-small": Preset("the same, Qwen3.5: three gated delta layers and one of softmax", _QWEN3_5,
                                 _FAMILY_RECIPE),
    "text-linear-small": Preset("the same with 4 layers, small enough for a CPU",
                                dict(_TEXT, n_layers=4),
                                Recipe(epochs=24, batch_size=8, context=256, learning_rate=2e-3,
                                       warmup_steps=200, final_learning_rate=0.05, dropout=0.1,
                                       ema_decay=0.998)),
}


def override(recipe, **changes):
    """A recipe with those of `changes` that are not None."""
    return replace(recipe, **{k: v for k, v in changes.items() if v is not None})
