# SPDX-License-Identifier: Apache-2.0
"""Writes the model card, README.md, of a trained model from its run directory.

    python3 -m lintel_training.model_card --run runs/mnist-linear --name mnist-linear \\
        --out weights/mnist-linear

--out receives README.md with the last sample of a text, the curve and the last samples of images;
with --copy-model the model as well.
"""

import argparse
import glob
import json
import os
import shutil

from .adapter_files import CONFIG, TENSORS
from .attention import KINDS
from .attention_config import ATTENTION_FLAGS
from .outputs import require_directory
from .families import FLAGS, is_family
from .presets import PRESETS, Recipe
from .sample import TEXT_SAMPLE_BYTES
from .vocabulary import TOKENIZER, TOKENIZER_CONFIG

_NO_FLAG = ("steps", "epochs", "beta1", "beta2")
_FAMILIES = {"rwkv7": "RWKV-7", "qwen3_5_text": "Qwen3.5's hybrid"}
_ARCHITECTURE = ("n_layers", "n_heads", "d_model", "d_head", "d_ff", "activation")


def command(result):
    """The shell command that repeats a run: the preset and every flag that differs from it."""
    preset, recipe = result["preset"], result["recipe"]
    data = "tinyshakespeare.txt" if result["unit"] == "nats/byte" else "mnist/"
    parts = ["python3 -m lintel_training.train", f"--preset {preset}", f"--data {data}",
             f"--out runs/{preset}", f"--steps {result['steps']}"]
    usual = PRESETS[preset].recipe.to_dict() if preset in PRESETS else Recipe().to_dict()
    for key, value in recipe.items():
        if key in _NO_FLAG or value == usual[key]:
            continue
        parts.append(f"--{key.replace('_', '-')} {value}")
    if "images" in result["data"].get("test", {}):
        parts.append(f"--limit-test {result['data']['test']['images']}")
    parts += _architecture_flags(result["config"], preset)
    return " \\\n    ".join(parts)


def _initial(config, key):
    """The default of a key of attention."""
    keys = KINDS[config["attention"]["type"]]["keys"]
    return next((k.get("initial") for k in keys if k["name"] == key), None)


def _architecture_flags(config, preset):
    usual = PRESETS[preset].config if preset in PRESETS else {}
    if is_family(config):
        return [f"--{flag.replace('_', '-')} {config[key]}" for flag, key in FLAGS.items()
                if config[key] != usual.get(key)]
    changed = {k: config[k] for k in _ARCHITECTURE if config[k] != usual.get(k)}
    for part in ("attention", "head"):
        if isinstance(config[part], dict):
            changed.update({k: v for k, v in config[part].items()
                            if k in (*ATTENTION_FLAGS, "mixtures")
                            and v != usual.get(part, {}).get(k, _initial(config, k))})
    if config["head"]["type"] != usual.get("head", {}).get("type"):
        changed["head"] = config["head"]["type"]
    return [f"--{k.replace('_', '-')} {v}" for k, v in changed.items()]


def _figures(result):
    rows = [("validation, float32 weights", result["validation"]),
            ("test, float32 weights", result["test_f32"]),
            ("test, weights rounded to bfloat16 (the file here)", result.get("test_bf16"))]
    if "test_without_adapter" in result:
        rows[2] = ("test, the model without the adapter", result["test_without_adapter"])
    elif result["unit"] == "nats/byte":  # there is no third part of the text
        rows = [("validation, float32 weights", result["validation"]),
                ("validation, weights rounded to bfloat16 (the file here)", result["test_bf16"])]
    lines = [f"| | {result['unit']} |", "|---|---|"]
    return lines + [f"| {name} | {value:.4f} |" for name, value in rows if value is not None]


def _data_lines(facts):
    lines = []
    for part, about in facts.items():
        size = ", ".join(f"{about[k]:,} {k}" for k in ("images", "bytes", "tokens") if k in about)
        source = f"`{about['file']}`" if "file" in about else about.get("taken from", "")
        digest = f" (SHA-256 {about['sha256'][:16]}...)" if "sha256" in about else ""
        chosen = f"; {about['selected']}" if "selected" in about else ""
        lines.append(f"- {part}: {size}, {source}{digest}{chosen}")
    return lines


def _fenced(text):
    """A text as a block of Markdown that nothing in it can end."""
    fence = "```"
    while fence in text:
        fence += "`"
    return [fence, text, fence, ""]


def _stored(result):
    r, trained = result["recipe"], result.get("trained_parameters")
    if r.get("lora_rank") is None:
        return f"{result['parameters']:,} parameters, stored in bfloat16."
    return (f"a LoRA adapter of rank {r['lora_rank']} for `{r['init_from']}`: {trained:,} parameters, "
            "stored in float32.")


def _architecture(c):
    if not is_family(c):
        attention = c["attention"] if isinstance(c["attention"], dict) else c["attention"][0]
        return (f"{c['n_layers']} layers, {c['n_heads']} heads of {c['d_head']}, d_model {c['d_model']}, "
                f"feed-forward {c['d_ff']}, {attention['type']} attention; ")
    heads = c["num_heads"] if "num_heads" in c else c["num_attention_heads"]
    return (f"{_FAMILIES[c['model_type']]}, {c['num_hidden_layers']} layers, {heads} heads of {c['head_dim']}, "
            f"width {c['hidden_size']}, feed-forward {c['intermediate_size']}, a vocabulary of "
            f"{c['vocab_size']:,} tokens, as transformers stores it; ")


def card(result, name, curve=None, samples=None, sample_text=None):
    """The text of README.md; curve and samples: names of pictures."""
    c, r = result["config"], result["recipe"]
    machine = result["hardware"].get("gpu") or \
        f"{result['hardware']['cpu']}, {result['hardware']['threads']} threads"
    epochs = f"{result['epochs']:.{1 if result['epochs'] >= 1 else 2}f}"
    lines = [
        f"# {name}", "",
        _architecture(c) + _stored(result), "",
        *_figures(result), "",
        f"Evaluated with: {result['arithmetic']}.", "",
        "## Data", "", *_data_lines(result["data"]), "",
        "## Training", "",
        f"{result['steps']:,} updates of {r['batch_size'] * r['accumulate']} sequences "
        f"({epochs} epochs), seed {r['seed']}, {result['precision']}. AdamW "
        f"(betas {r['beta1']}, {r['beta2']}; weight decay {r['weight_decay']} on matrices), "
        f"learning rate {r['learning_rate']} after {r['warmup_steps']} steps of warm-up, cosine to "
        f"{r['final_learning_rate']:g} of it, gradient norm clipped to {r['clip_norm']}, dropout "
        f"{r['dropout']}, shift augmentation {r['shift_augment']}. The weights are an exponential "
        f"moving average (decay {r['ema_decay']}).", "",
        f"{result['training_seconds']:.0f} s on {machine}; PyTorch {result['versions']['torch']}. "
        f"{result['skipped_updates']} updates were skipped for a gradient that was not finite.", "",
    ]
    if curve:
        lines += [f"![loss over steps]({curve})", ""]
    if samples:
        lines += ["Samples:", "", f"![samples]({samples})", ""]
    if sample_text:
        lines += [f"From a line break on, its first {TEXT_SAMPLE_BYTES} bytes:", "",
                  *_fenced(sample_text)]
    lines += ["## To repeat", "", "In `training/`, with the data that its README names:", "",
              "```sh", command(result), "```", ""]
    return "\n".join(lines)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="run directory")
    parser.add_argument("--out", required=True, help="folder of the card")
    parser.add_argument("--name", help="default: the name of the folder")
    parser.add_argument("--copy-model", action="store_true",
                        help="copy the files of the model or the adapter as well")
    args = parser.parse_args(argv)
    require_directory(parser, "--out", args.out, "README.md")

    with open(os.path.join(args.run, "result.json"), encoding="utf-8") as file:
        result = json.load(file)

    def bring(pattern, name):
        found = sorted(glob.glob(os.path.join(args.run, pattern)), key=os.path.getmtime)
        if not found:
            return None
        shutil.copyfile(found[-1], os.path.join(args.out, name))
        return name

    curve, samples = bring("curve.png", "curve.png"), bring("samples-*.png", "samples.png")
    texts = sorted(glob.glob(os.path.join(args.run, "samples-*.txt")), key=os.path.getmtime)
    sample_text = None
    if texts:
        with open(texts[-1], "rb") as file:
            sample_text = file.read(TEXT_SAMPLE_BYTES).decode(errors="replace").strip("\n")
    name = args.name or os.path.basename(os.path.normpath(args.out))
    with open(os.path.join(args.out, "README.md"), "w", encoding="utf-8") as file:
        file.write(card(result, name, curve, samples, sample_text))
    if args.copy_model:
        bring("model/config.json", "config.json")
        bring("model/model.safetensors", "model.safetensors")
        for name in (TOKENIZER, TOKENIZER_CONFIG):
            bring(f"model/{name}", name)
        for adapter in (CONFIG, TENSORS):
            bring(f"adapter/{adapter}", adapter)


if __name__ == "__main__":
    main()
