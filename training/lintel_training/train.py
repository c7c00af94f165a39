# SPDX-License-Identifier: Apache-2.0
"""Trains a model of a preset and writes a run directory.

    python3 -m lintel_training.train --preset mnist-linear --data DIR --out runs/mnist-linear

The run directory holds
    model/            the model directory to serve (averaged weights, bfloat16); with --lora-rank
                      adapter/ instead, the files of a LoRA adapter as PEFT writes them
    result.json       test and validation figures, recipe, data, hardware, time
    log.jsonl         one JSON object for each log line; curve.png drawn from it
    samples-STEP.png  samples
    checkpoint.pt     all that is needed to resume
    lock              held by the process that trains here

The same command again continues an interrupted run exactly where its last checkpoint was. SIGTERM
and SIGINT save one and exit with status 0.

--data is, for images, a directory with MNIST's two image files (or use --train-images and
--test-images), and for text a file.
"""

import time

_BEGAN = time.monotonic()  # before the slow imports: a time budget includes them

import argparse  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from dataclasses import fields, replace  # noqa: E402

import torch  # noqa: E402

from . import data, families  # noqa: E402
from .attention import module_of  # noqa: E402
from .attention_config import ATTENTION_FLAGS  # noqa: E402
from .config import ConfigError, ModelConfig  # noqa: E402
from .lora import DEFAULT_MODULES, MAX_RANK, parse_modules  # noqa: E402
from .models import is_family  # noqa: E402
from .presets import MIXTURES, PRESETS, Recipe, override  # noqa: E402
from .selection import FILTERS, parse_labels  # noqa: E402
from .tasks import ImageTask, TextTask  # noqa: E402
from .token_task import TokenTask  # noqa: E402
from .trainer import Options, Trainer  # noqa: E402


def make_parser():
    presets = "\n".join(f"    {name:20}{p.about}" for name, p in PRESETS.items())
    parser = argparse.ArgumentParser(
        prog="python3 -m lintel_training.train", description=f"{__doc__}\npresets:\n{presets}",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", required=True, choices=list(PRESETS))
    parser.add_argument("--out", required=True, help="run directory")
    parser.add_argument("--data", help="MNIST directory or text file")
    parser.add_argument("--train-images", help="IDX file")
    parser.add_argument("--test-images", help="IDX file")

    length = parser.add_argument_group("length of the run (default: the preset's epochs)")
    length.add_argument("--epochs", type=float)
    length.add_argument("--steps", type=int, help="updates")
    length.add_argument("--time-budget", type=float, metavar="SECONDS",
                        help="measure the speed, then fix the number of steps so that everything "
                             "ends within this time; the number is kept for resuming")

    recipe = parser.add_argument_group("recipe (default: the preset's)")
    recipe.add_argument("--seed", type=int)
    recipe.add_argument("--batch-size", type=int)
    recipe.add_argument("--accumulate", type=int, help="batches in an update")
    recipe.add_argument("--learning-rate", "--lr", type=float, help="peak")
    recipe.add_argument("--head-rate", type=float, help="the predictor's rate, as a fraction")
    recipe.add_argument("--final-learning-rate", type=float, help="as a fraction of the peak")
    recipe.add_argument("--warmup-steps", type=int)
    recipe.add_argument("--weight-decay", type=float)
    recipe.add_argument("--clip-norm", type=float)
    recipe.add_argument("--ema-decay", type=float)
    recipe.add_argument("--precision", choices=["bf16", "f32"],
                        help="of matrix products in training (a CPU without AMX or AVX-512 BF16 "
                             "wants f32)")
    recipe.add_argument("--dropout", type=float)
    recipe.add_argument("--shift-augment", type=float, metavar="P",
                        help="images: probability of a shift by up to a pixel each way")
    recipe.add_argument("--context", type=int, help="text: bytes or tokens in a window")
    recipe.add_argument("--valid-count", type=int, help="images taken from training")
    recipe.add_argument("--init-from", metavar="DIR",
                        help="start from this model's weights; its attention may be another, and "
                             "its sizes smaller (README.md says which)")
    recipe.add_argument("--labels", metavar="0-4,7", help="images with these labels only, by the label "
                        "files beside the images")
    recipe.add_argument("--image-filter", choices=list(FILTERS),
                        help="images that pass only; thin: with thin strokes")
    recipe.add_argument("--limit-train", type=int, help="first images or bytes only")
    recipe.add_argument("--limit-test", type=int, help="first images only")

    lora = parser.add_argument_group(
        "LoRA: what --init-from holds stays as it is, and the run writes adapter/ instead of model/")
    lora.add_argument("--lora-rank", type=int, metavar="R")
    lora.add_argument("--lora-alpha", type=float, metavar="A",
                      help="what is added is times A / R (default: A is R)")
    lora.add_argument("--lora-modules", metavar="NAMES",
                      help=f"with commas (default: {','.join(DEFAULT_MODULES)}; predictor can be, too)")

    model = parser.add_argument_group("architecture (default: the preset's)")
    for name in ("n-layers", "n-heads", "d-model", "d-head", "d-ff", "mixtures"):
        model.add_argument("--" + name, type=int)
    model.add_argument("--vocab-size", type=int, help="of a tokenizer that is trained from the text")
    model.add_argument("--head", choices=["mixture_of_logistics", "categorical"],
                       help=f"a mixture has {MIXTURES} components unless --mixtures says otherwise")
    model.add_argument("--activation", choices=["relu", "gelu"])
    for key, docs in ATTENTION_FLAGS.items():
        model.add_argument("--" + key.replace("_", "-"), type=int, help="; ".join(
            f"{kind}: {doc}" for kind, doc in docs.items()))

    run = parser.add_argument_group("how to run")
    run.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    run.add_argument("--threads", type=int, help="CPU threads")
    run.add_argument("--compile", choices=["layers", "model", "none"], default="layers",
                     help="what torch.compile sees on a GPU: one layer, shared by all (starts "
                          "sooner), or the model and loss as one graph")
    run.add_argument("--no-compile", action="store_const", const="none", dest="compile")
    run.add_argument("--cuda-graphs", action="store_true", help="with --compile model")
    run.add_argument("--checkpointing", action="store_true",
                     help="recompute layers in the backward pass: less memory, more time")
    run.add_argument("--log-every", type=int, help="steps (default 50, on a CPU 10)")
    run.add_argument("--validations", type=int, default=6, help="during the run")
    run.add_argument("--save-seconds", type=float, default=120.0, help="between checkpoints")
    run.add_argument("--sample-every", type=int, help="steps (default: at the end only)")
    run.add_argument("--sample-count", type=int,
                     help="images in a grid (default: 64 for linear attention, else none)")
    run.add_argument("--stop-after", type=int, help="steps, then save and exit, to be resumed")
    return parser


def _make_head(args, usual):
    """The head that the flags ask for, `usual` where they do not."""
    kind = args.head or usual["type"]
    if kind == "categorical":
        if args.mixtures is not None:
            raise ConfigError("--mixtures: the head is categorical, which has none; add --head "
                              "mixture_of_logistics")
        return {"type": kind}
    mixtures = usual.get("mixtures", MIXTURES) if args.mixtures is None else args.mixtures
    return {"type": kind, "mixtures": mixtures}


_ARCHITECTURE = ("n_layers", "n_heads", "d_model", "d_head", "d_ff", "mixtures", "vocab_size", "head",
                 "activation", *ATTENTION_FLAGS)


def make_config(args):
    """The preset's architecture with the overrides of the command line.

    ConfigError naming the flag or key that does not fit.
    """
    config = dict(PRESETS[args.preset].config)
    if families.is_family(config):
        given = {flag: getattr(args, flag) for flag in _ARCHITECTURE if getattr(args, flag) is not None}
        return families.config_of(families.overridden(config, given))
    if args.vocab_size is not None:
        raise ConfigError("--vocab-size: the preset is a model of pixels or bytes, which has 256")
    for key in ("n_layers", "n_heads", "d_model", "d_head", "d_ff", "activation"):
        if getattr(args, key) is not None:
            config[key] = getattr(args, key)
    config["head"] = _make_head(args, config["head"])
    given = {key: getattr(args, key) for key in ATTENTION_FLAGS if getattr(args, key) is not None}
    kind = config["attention"]["type"]
    for key in given:
        if kind not in ATTENTION_FLAGS[key]:
            raise ConfigError(f"--{key.replace('_', '-')}: the preset has {kind} attention, this is "
                              f"for {' and '.join(ATTENTION_FLAGS[key])}")
    config["attention"] = dict(config["attention"], **given)
    config = ModelConfig.from_dict(config)
    if config.modality.type == "bytes":
        config = replace(config, trained_length=make_recipe(args).context)
    return config


def make_recipe(args):
    """The preset's recipe with the overrides of the command line."""
    return override(PRESETS[args.preset].recipe,
                    **{field.name: getattr(args, field.name, None) for field in fields(Recipe)})


def check_recipe(recipe, is_family=False):
    """ConfigError naming a flag that makes no sense without another, or at all."""
    if recipe.labels is not None:
        parse_labels(recipe.labels)
    if is_family and recipe.lora_rank is not None:
        raise ConfigError("--lora-rank: the preset is a model of a Hugging Face directory, which takes no adapter")
    if recipe.lora_rank is None:
        for flag in ("lora_alpha", "lora_modules"):
            if getattr(recipe, flag) is not None:
                raise ConfigError(f"--{flag.replace('_', '-')}: is for --lora-rank")
        return
    if recipe.init_from is None:
        raise ConfigError("--lora-rank: needs --init-from, the model that is adapted")
    if not 1 <= recipe.lora_rank <= MAX_RANK:
        raise ConfigError(f"--lora-rank: is {recipe.lora_rank}, must be from 1 to {MAX_RANK}")
    if recipe.lora_modules is not None:
        parse_modules(recipe.lora_modules)


def make_task(args, config, recipe):
    if config.modality.type == "tokens":
        return TokenTask(config, recipe, args.device, args.data)
    if config.modality.type == "bytes":
        return TextTask(config, recipe, args.device, args.data)
    train = args.train_images or data.find_images(args.data, "train")
    test = args.test_images or (data.find_images(args.data, "t10k") if args.data else None)
    labels = {}
    if recipe.labels is not None and args.data:
        labels = {kind: data.find_labels(args.data, kind) for kind in ("train", "t10k")}
    return ImageTask(config, recipe, args.device, train, test, args.limit_test, labels)


def make_trainer(args, began=None):
    """The Trainer that the parsed flags describe; it has loaded its checkpoint, if there is one.

    began: time.monotonic() from which a time budget counts.
    """
    on_cuda = args.device.startswith("cuda")
    config = make_config(args)
    recipe = make_recipe(args)
    if args.checkpointing and is_family(config):
        raise ConfigError("--checkpointing: not for models of a Hugging Face directory")
    if args.cuda_graphs and recipe.accumulate > 1:
        raise ConfigError("--cuda-graphs: not with --accumulate, whose passes would write over each "
                          "other's gradients")
    sample_count = args.sample_count
    if sample_count is None:
        is_cheap = all(module_of(a.type).Attention.samples_cheaply for a in config.attention)
        sample_count = 64 if is_cheap or args.sample_every else 0
    options = Options(
        out=args.out, device=args.device,
        compile=args.compile if on_cuda and not is_family(config) else "none",
        cuda_graphs=args.cuda_graphs and on_cuda and args.compile == "model",
        checkpointing=args.checkpointing, time_budget=args.time_budget, began=began,
        log_every=args.log_every or (50 if on_cuda else 10), validations=args.validations,
        save_seconds=args.save_seconds, sample_every=args.sample_every, sample_count=sample_count,
        stop_after=args.stop_after)
    return Trainer(config, recipe, make_task(args, config, recipe), options, args.preset)


def main(argv=None):
    parser = make_parser()
    args = parser.parse_args(argv)
    if not args.data and not args.train_images:
        parser.error("--data is needed")
    try:
        make_config(args)
        check_recipe(make_recipe(args), families.is_family(PRESETS[args.preset].config))
    except ValueError as error:
        parser.error(str(error))
    if args.threads:
        torch.set_num_threads(args.threads)
    trainer = make_trainer(args, _BEGAN if argv is None else None)
    if trainer.resumed:
        print(f"continuing at step {trainer.step}", file=sys.stderr)
    if trainer.run():
        print(os.path.join(args.out, "result.json"))
    else:
        print(f"stopped at step {trainer.step}; the same command continues", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ValueError, OSError) as problem:  # in the data, the checkpoint or the flags
        sys.exit(f"{make_parser().prog}: {problem}")
