# SPDX-License-Identifier: Apache-2.0
"""The training loop: updates, validation, checkpoints, and what is written at the end."""

import contextlib
import json
import os
import signal
import time
from dataclasses import replace

import torch

from . import checkpoint
from .adapter_files import save_adapter
from .attention import module_of
from .compiled import compile_layers, loss_function
from .curve import draw_curve
from .export import export_model, round_weights, start_from
from .lora import DEFAULT_MODULES, adapt, parse_modules, without_adapter
from .models import config_of, make_model, set_initial_weights
from .optim import Average, learning_rate, make_optimizer
from .pace import Pace, reserve_seconds
from .presets import Recipe
from .report import hardware, versions
from .run_log import RunLock, RunLog
from .safetensors_io import write_atomically
from .sample import TEXT_SAMPLE_BYTES, image_grid, sample_images, write_png

# Updates that may be skipped for a loss or gradient that is not finite, before giving up.
MAX_SKIPPED = 100


class Options:
    """Options of a run; none of them changes which updates are made."""

    def __init__(self, out, device, compile="none", cuda_graphs=False, checkpointing=False,
                 time_budget=None, began=None, log_every=50, validations=6, save_seconds=120.0,
                 sample_every=None, sample_count=0, stop_after=None):
        self.out, self.device = out, device
        self.compile = compile  # "none", "layers" or "model", see compiled.py
        self.cuda_graphs, self.checkpointing = cuda_graphs, checkpointing
        self.time_budget = time_budget  # seconds from `began` to the end of everything
        self.began = time.monotonic() if began is None else began
        self.log_every = log_every  # steps between fetches of the loss
        self.validations = validations  # spread over the run, beside the one at the end
        self.save_seconds = save_seconds  # between checkpoints
        self.sample_every, self.sample_count = sample_every, sample_count
        self.stop_after = stop_after  # steps in this process, then save and stop


class Trainer:
    """One run in one directory; continues from the directory's checkpoint when it has one."""

    def __init__(self, config, recipe, task, options, preset=""):
        self.config, self.recipe, self.task, self.options = config, recipe, task, options
        self.preset = preset
        self.on_cuda = options.device.startswith("cuda")
        os.makedirs(options.out, exist_ok=True)
        self._lock = RunLock(options.out)
        try:
            self._set_up(checkpoint.load(options.out))
        except BaseException:
            self._lock.release()
            raise

    # ---- set-up ----

    def _set_up(self, saved):
        """Everything that a run has, new or as the checkpoint `saved` has it."""
        config, recipe, options = self.config, self.recipe, self.options
        torch.manual_seed(recipe.seed)
        model = make_model(config, recipe.dropout, options.checkpointing)
        set_initial_weights(model, recipe.seed)
        if recipe.init_from and saved is None:
            start_from(model, recipe.init_from)
        if recipe.lora_rank is not None:
            names = parse_modules(recipe.lora_modules or ",".join(DEFAULT_MODULES))
            adapt(model, recipe.lora_rank, self._lora_alpha() / recipe.lora_rank, names, recipe.seed)
        self.model = model.to(options.device).train()
        self.average = Average(self.model, recipe.ema_decay)
        self.optimizer = make_optimizer(self.model, recipe, fused=self.on_cuda)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.step, self.seconds_before = 0, 0.0
        self.total_steps = self._planned_steps()
        zero = torch.zeros((), device=options.device)
        self.loss_sum, self.skipped, self.grad_norm = zero.clone(), zero.clone(), zero.clone()
        self.loss_count = 0  # updates in loss_sum; a resumed run takes over both
        self.stop_asked = False
        self.resumed = saved is not None
        if saved is not None:
            self._restore(saved)
        self.log = RunLog(options.out, self.step if self.resumed else None)
        self.began_here = time.monotonic()
        self.loss = loss_function(self.model, options.compile, options.cuda_graphs)
        if options.compile != "none" and not all(
                module_of(a.type).Attention.compiles for a in config.attention):
            compile_layers(self.average.model)  # elsewhere validation is fast enough without

    def _planned_steps(self):
        r = self.recipe
        if r.steps is not None:
            return r.steps
        if self.options.time_budget is not None:
            return None
        return max(1, int(r.epochs * self.task.batches.batches_per_epoch / r.accumulate))

    def _restore(self, state):
        config = config_of(json.loads(state["config"]))
        # trained_length follows from the recipe, and earlier runs did not note it.
        config = replace(config, trained_length=self.config.trained_length)
        recipe = {**Recipe().to_dict(), **json.loads(state["recipe"])}
        differing = [key for key, mine, theirs in (
            ("config", self.config.to_dict(), config.to_dict()),
            *((k, v, recipe.get(k)) for k, v in self.recipe.to_dict().items()))
            if mine != theirs]
        if differing:
            raise ValueError(f"{self.options.out} holds a run with another "
                             f"{', '.join(differing)}; repeat its flags or choose another directory")
        self._check_data(state)
        self.model.load_state_dict(state["model"])
        if state.get("carried") is not None:
            self.model.carried = [tensor.to(self.options.device) for tensor in state["carried"]]
        self.average.model.load_state_dict(state["average"])
        for group in state["optimizer"]["param_groups"]:
            group["fused"] = self.on_cuda  # the run may have started on the other kind of device
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        if state["total_steps"] is not None:  # else stopped before a time budget was measured
            self.total_steps = state["total_steps"]
        self.seconds_before = state["seconds"]
        self.skipped.fill_(state["skipped"])
        self.loss_count = state.get("loss_count", 0)
        if self.loss_count:  # 0: an older checkpoint, whose sum has an unknown count
            self.loss_sum.fill_(state["loss_sum"])
        checkpoint.set_rng_state(state["rng"], self.options.device)

    def _data(self):
        """The data that the run is trained and validated on, without names: a file may be moved."""
        return {part: {k: v for k, v in self.task.facts[part].items() if k != "file"}
                for part in ("train", "validation")}

    def _check_data(self, state):
        """ValueError when the checkpoint is of a run on other data, naming what differs."""
        if "data" not in state:  # a checkpoint of before
            return
        theirs = json.loads(state["data"])
        differing = [f"{part} {key}: {theirs.get(part, {}).get(key)} there, {mine} here"
                     for part, about in self._data().items() for key, mine in about.items()
                     if theirs.get(part, {}).get(key) != mine]
        if differing:
            raise ValueError(f"{self.options.out} holds a run on other data ("
                             f"{'; '.join(differing)}); give its own or choose another directory")

    # ---- pieces of the loop ----

    def _autocast(self):
        if self.recipe.precision == "bf16":
            return torch.autocast("cuda" if self.on_cuda else "cpu", dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def sync(self):
        if self.on_cuda:
            torch.cuda.synchronize(self.options.device)

    def _seconds(self):
        """Training time so far, over all resumptions."""
        return self.seconds_before + time.monotonic() - self.began_here

    def _log(self, **entry):
        self.log.write(step=self.step, **entry, elapsed=round(self._seconds(), 2))

    def _augment(self):
        """Augmentation ends before the last quarter: the model finishes on unmoved images."""
        return self.total_steps is None or self.step < 0.75 * self.total_steps

    def _update(self):
        """One update; nothing here waits for the device when that is a GPU."""
        recipe = self.recipe
        rate = learning_rate(recipe, self.step, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate"]
        for i in range(recipe.accumulate):
            batch = self.task.batches.batch(self.step * recipe.accumulate + i, self._augment())
            if self.options.cuda_graphs:
                torch.compiler.cudagraph_mark_step_begin()
            with self._autocast():
                loss = self.loss(*batch)
            (loss / recipe.accumulate).backward()
            self.loss_sum += loss.detach() / recipe.accumulate
        self.loss_count += 1
        self.grad_norm = torch.nn.utils.clip_grad_norm_(self.parameters, recipe.clip_norm)
        if self._apply():
            self.average.update(self.step)
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1

    def _apply(self):
        """optimizer.step(), unless the gradient is not finite; False when known to be skipped."""
        bad = (~torch.isfinite(self.grad_norm)).float()
        self.skipped += bad
        if self.on_cuda:
            # The fused kernel reads this flag on the device and then leaves all as it was, as it
            # does for gradient scaling.
            self.optimizer.found_inf = bad
            self.optimizer.step()
            return True
        if bad:
            return False
        self.optimizer.step()
        return True

    def _record(self, steps, seconds):
        """Logs the mean loss since the last line; this fetches it from the device.

        steps, seconds: those of this process since that line, for the speed.
        """
        loss = self.loss_sum.item() / self.loss_count * self.task.scale
        self.loss_sum.zero_()
        self.loss_count = 0
        skipped = int(self.skipped.item())
        items = self.recipe.batch_size * self.recipe.accumulate
        epoch = self.step * self.recipe.accumulate / self.task.batches.batches_per_epoch
        self._log(epoch=round(epoch, 4), loss=loss, unit=self.task.unit,
                  lr=learning_rate(self.recipe, self.step - 1, self.total_steps),
                  grad_norm=self.grad_norm.item(), skipped=skipped,
                  items_per_second=round(steps * items / seconds, 2))
        self.log.progress(f"step {self.step}/{self.total_steps or '?'}  epoch {epoch:.2f}  "
                          f"{loss:.4f} {self.task.unit}  {steps * items / seconds:.0f} items/s")
        if skipped > MAX_SKIPPED:
            raise RuntimeError(f"{skipped} updates had a loss or gradient that is not finite; "
                               "try a lower --learning-rate")

    def save(self):
        checkpoint.save({
            "config": self.config.to_json(), "recipe": json.dumps(self.recipe.to_dict()),
            "data": json.dumps(self._data()),
            "model": self.model.state_dict(), "average": self.average.model.state_dict(),
            "optimizer": self.optimizer.state_dict(), "rng": checkpoint.rng_state(self.options.device),
            "step": self.step, "total_steps": self.total_steps, "seconds": self._seconds(),
            "skipped": self.skipped.item(), "loss_sum": self.loss_sum.item(),
            "loss_count": self.loss_count, "carried": getattr(self.model, "carried", None),
        }, self.options.out)

    def _validate(self):
        """Validation figure of the averaged weights, which are exported as well."""
        value = self.task.validate(self.average.model)
        self._export()
        self._log(validation=value, unit=self.task.unit)
        return value

    def _lora_alpha(self):
        return self.recipe.lora_rank if self.recipe.lora_alpha is None else self.recipe.lora_alpha

    def _export(self):
        out, model = self.options.out, self.average.model
        if self.recipe.lora_rank is None:
            export_model(model, os.path.join(out, "model"))
            for name, content in self.task.files.items():
                write_atomically(os.path.join(out, "model", name), content)
            return
        base = os.path.basename(os.path.normpath(self.recipe.init_from))
        save_adapter(model, os.path.join(out, "adapter"), self._lora_alpha(), base)

    def _test_scores(self):
        """Figures of the test images or text with what is exported, for result.json."""
        model = self.average.model
        scores = {"test_f32": self.task.test_score(model)}
        if self.recipe.lora_rank is None:
            self._sample()
            round_weights(model, "bf16")  # in place: nothing is trained or saved any more
            return dict(scores, test_bf16=self.task.test_score(model))
        with without_adapter(model):
            scores["test_without_adapter"] = self.task.test_score(model)
        self._sample()
        return scores

    def _sample(self):
        """Writes samples-STEP.png (or .txt) from the averaged weights."""
        stem = os.path.join(self.options.out, f"samples-{self.step}")
        count = self.options.sample_count
        if not count:
            return
        if self.config.modality.type == "image":
            write_png(stem + ".png", image_grid(sample_images(self.average.model, count)))
        else:
            with open(stem + ".txt", "wb") as file:
                file.write(self.task.sample_text(self.average.model, TEXT_SAMPLE_BYTES) + b"\n")

    # ---- the run ----

    def run(self):
        """Trains to the end; True when finished, False when stopped with a checkpoint."""
        try:
            with _signals(self._ask_stop):
                finished = self._train()
            self.log.progress("")
            return finished and self._finish_unless_stopped()
        finally:
            self.close()

    def _finish_unless_stopped(self):
        """False when a signal came: the same command then evaluates the last checkpoint again.

        Nothing is lost by leaving at once, since files are replaced atomically.
        """
        try:
            with _signals(_leave):
                self._finish()
        except _Left:
            self._log(stopped=True)
            return False
        return True

    def close(self):
        """Another process may train in the directory."""
        self.log.close()
        self._lock.release()

    def _ask_stop(self, *_):
        self.stop_asked = True

    def _train(self):
        options = self.options
        if self.on_cuda and self.recipe.precision == "bf16":
            torch.set_float32_matmul_precision("high")  # TF32 where autocast leaves float32
        pace = None
        if self.total_steps is None:
            pace = Pace(options.time_budget, options.began, self.sync)
        deadline = None
        logged_step, logged_at, saved_at, done_here = self.step, time.monotonic(), time.monotonic(), 0
        while self.total_steps is None or self.step < self.total_steps:
            self._update()
            done_here += 1
            if self.step % options.log_every == 0:
                now = time.monotonic()
                self._record(self.step - logged_step, now - logged_at)
                logged_step, logged_at = self.step, time.monotonic()
            if pace is not None:
                planned = pace.total_steps(self.step, lambda: reserve_seconds(self))
                if planned is not None:
                    self.total_steps, final = planned
                    pace = None
                    deadline = options.began + options.time_budget - final
                    self._log(total_steps=self.total_steps, final_seconds=round(final, 1))
            if self._validation_due():
                self._validate()
                self.save()
                saved_at = time.monotonic()
            if options.sample_every and self.step % options.sample_every == 0:
                self._sample()
            if time.monotonic() - saved_at > options.save_seconds:
                self.save()
                saved_at = time.monotonic()
            if self.stop_asked or (options.stop_after and done_here >= options.stop_after):
                self.save()
                self._log(stopped=True)
                return False
            if deadline is not None and time.monotonic() > deadline:
                # Slower than measured: better an unfinished schedule than no evaluation.
                self.log.write(step=self.step, out_of_time=True, planned=self.total_steps)
                self.total_steps = self.step
        if self.step > logged_step:
            self._record(self.step - logged_step, time.monotonic() - logged_at)
        self.save()
        return True

    def _validation_due(self):
        if self.total_steps is None or self.step == self.total_steps:
            return False
        every = self.total_steps // (self.options.validations + 1)
        return every > 0 and self.step % every == 0 and self.total_steps - self.step >= every // 2

    def _finish(self):
        """Final figures, result.json, samples and curve."""
        out, seconds = self.options.out, self._seconds()
        items = self.step * self.recipe.batch_size * self.recipe.accumulate
        validation = self._validate()
        result = {
            "preset": self.preset, "unit": self.task.unit, "validation": validation,
            **self._test_scores(),
            "arithmetic": "network float32, likelihood float64 of its outputs",
            "steps": self.step,
            "epochs": self.step * self.recipe.accumulate / self.task.batches.batches_per_epoch,
            "skipped_updates": int(self.skipped.item()),
            "training_seconds": round(seconds, 1),
            "items_per_second": round(items / seconds, 1) if seconds > 0 else None,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "trained_parameters": sum(p.numel() for p in self.parameters),
            "recipe": self.recipe.to_dict(), "config": self.config.to_dict(),
            "data": self.task.facts, "hardware": hardware(self.options.device),
            "versions": versions(),
            "precision": {"bf16": "bfloat16 autocast", "f32": "float32"}[self.recipe.precision],
        }
        self._write_result(result)
        draw_curve(out)
        result["seconds_with_evaluation"] = round(time.monotonic() - self.options.began, 1)
        self._write_result(result)

    def _write_result(self, result):
        write_atomically(os.path.join(self.options.out, "result.json"),
                         (json.dumps(result, indent=2) + "\n").encode())


@contextlib.contextmanager
def _signals(handler):
    """SIGTERM and SIGINT call `handler` while the block runs."""
    before = {s: signal.signal(s, handler) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class _Left(Exception):
    """A signal came while nothing had to be saved."""


def _leave(*_):
    raise _Left
