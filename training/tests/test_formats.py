# SPDX-License-Identifier: Apache-2.0
"""config.json, safetensors files, exports and converted checkpoints."""

import io
import os
import pickle
import struct
import tempfile
import unittest
import zipfile

import torch

import small
import convert_checkpoint
from converting import convert, run
from lintel_training import safetensors_io
from lintel_training.config import ConfigError, ModelConfig
from lintel_training.export import export_model, load_model, round_weights, start_from
from lintel_training.models import config_of
from lintel_training.presets import PRESETS


class ConfigTest(unittest.TestCase):
    def test_every_preset_survives_a_round_trip(self):
        for name, preset in PRESETS.items():
            config = config_of(preset.config)
            self.assertEqual(config_of(config.to_dict()), config, name)

    def test_a_key_that_does_not_belong_is_named(self):
        good = small.config({"type": "linear"}).to_dict()
        for change, text in (({"d_modle": 3}, "d_modle"),
                             ({"format_version": 2}, "format_version"),
                             ({"attention": {"type": "linear", "esp": 1}}, "esp"),
                             ({"attention": {"type": "lsh", "rounds": 1}}, "bits"),
                             ({"attention": [{"type": "linear"}]}, "1 entries for 2 layers"),
                             ({"n_heads": True}, "n_heads"),
                             ({"activation": "swish"}, "activation")):
            with self.assertRaisesRegex(ConfigError, text):
                ModelConfig.from_dict(dict(good, **change))

    def test_sizes_and_numbers_have_the_limits_of_the_server(self):
        lsh = {"type": "lsh", "rounds": 1, "bits": 2, "chunk_size": 4}
        for changes, key in (({"vocab_size": 2**20 + 1}, "vocab_size"), ({"d_ff": 2**19}, "d_ff"),
                             ({"n_layers": 10**11}, "n_layers"), ({"n_layers": "2"}, "n_layers"),
                             ({"max_length": 2**31}, "max_length"),
                             ({"n_heads": 1024, "d_head": 4096}, r"n_heads \* d_head"),
                             ({"layer_norm_eps": 2.0}, "layer_norm_eps"),
                             ({"layer_norm_eps": float("inf")}, "layer_norm_eps"),
                             ({"layer_norm_eps": True}, "layer_norm_eps"),
                             ({"attention": {"type": "linear", "eps": 0}}, "eps"),
                             ({"attention": {"type": "linear", "eps": "x"}}, "eps"),
                             ({"attention": {"type": "softmax", "scale": float("inf")}}, "scale"),
                             ({"attention": dict(lsh, bits=4097)}, "bits"),
                             ({"attention": 5}, "attention"),
                             ({"attention": {"type": []}}, "attention"),
                             ({"head": {"type": "mixture_of_logistics", "mixtures": 2000}},
                              "mixtures")):
            with self.subTest(changes), self.assertRaisesRegex(ConfigError, key):
                small.config(**{"attention": {"type": "linear"}, **changes})

    def test_what_the_server_refuses_is_refused(self):
        def check(text, **changes):
            if text is None:
                return small.config({"type": "linear"}, **changes)
            with self.assertRaisesRegex(ConfigError, text):
                small.config({"type": "linear"}, **changes)

        image = {"type": "image", "height": 4, "width": 5, "channels": 2}
        mixture = {"type": "mixture_of_logistics", "mixtures": 1}
        for changes in ({"modality": image}, {"modality": {"type": "bytes"}}, {"head": mixture}):
            check("vocab_size: 17, must be 256", **changes)
            for positions in (40, 38):  # with 38 the server stops before the image is whole
                check(None, vocab_size=256, max_length=positions, **changes)
        check(None, vocab_size=256, max_length=0, modality=image, position_encoding="sinusoidal")
        check(None, vocab_size=256, modality=dict(image, start_token=255))
        check("start_token 256", vocab_size=256, modality=dict(image, start_token=256))


class SafetensorsTest(unittest.TestCase):
    TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1.5, -2.0]).bfloat16(),
               "c": torch.zeros(0, 3), "d": torch.tensor(7), "e": torch.tensor([1, 2]).byte()}

    def check(self, tensors):
        self.assertEqual(set(tensors), set(self.TENSORS))
        for name, tensor in self.TENSORS.items():
            self.assertEqual(tensors[name].dtype, tensor.dtype)
            self.assertTrue(torch.equal(tensors[name], tensor), name)

    def test_our_reader_and_writer(self):
        self.check(safetensors_io.decode(safetensors_io.encode(self.TENSORS)))

    def test_files(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "x.safetensors")
            safetensors_io.save(self.TENSORS, path)
            self.check(safetensors_io.load(path))
            with open(path, "rb") as file:  # our own reader reads it for every writer
                self.check(safetensors_io.decode(file.read()))
            self.assertEqual(os.listdir(directory), ["x.safetensors"])

    def test_headers_that_make_no_sense_name_the_file(self):
        good = safetensors_io.encode({"a": torch.zeros(2)})
        texts = [b"[]", b"{", b'{"a": 1}', good[8:].split(b"}}")[0].replace(b"[2]", b"[3]") + b"}}"]
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "x.safetensors")
            for text in texts:
                with open(path, "wb") as file:
                    file.write(struct.pack("<Q", len(text)) + text + bytes(8))
                with self.subTest(text), self.assertRaisesRegex(ValueError, path):
                    safetensors_io.load(path)

    def test_cut_off_files_are_refused(self):
        data = safetensors_io.encode(self.TENSORS)
        for n in (0, 7, 9, len(data) - 1):
            with self.assertRaises(ValueError):
                safetensors_io.decode(data[:n])


class ExportTest(unittest.TestCase):
    def test_export_and_load_give_the_rounded_weights(self):
        for name, attention in small.ATTENTIONS.items():
            model = small.model(attention)
            for dtype in ("f32", "bf16"):
                with tempfile.TemporaryDirectory() as directory:
                    export_model(model, directory, dtype)
                    loaded = load_model(directory)
                round_weights(model, dtype)
                self.assertEqual(loaded.config, model.config)
                for key, tensor in model.state_dict().items():
                    self.assertTrue(torch.equal(loaded.state_dict()[key], tensor), (name, key))

    def test_tensors_that_do_not_fit_are_named(self):
        model = small.model({"type": "linear"})
        tensors = model.state_dict()
        tensors["predictor.bias"] = torch.zeros(3)
        tensors["stray"] = torch.zeros(2)
        tensors["transformer.norm.bias"] = tensors["transformer.norm.bias"] * float("nan")
        del tensors["transformer.norm.weight"]
        with self.assertRaises(ValueError) as caught:
            model.load_tensors(tensors)
        lines = sorted(str(caught.exception).splitlines())
        self.assertEqual(lines, [
            "predictor.bias: has [3], expected [17]",
            "stray: [2] is not part of the model",
            "transformer.norm.bias: [12] holds a value that is not finite",
            "transformer.norm.weight: missing, expected [12]"])


class StartTest(unittest.TestCase):
    def test_of_other_hash_rounds_the_first_planes_are_taken_over(self):
        def lsh(rounds, bits=3):
            return {"type": "lsh", "rounds": rounds, "bits": bits, "chunk_size": 4}

        def planes(model):
            return [layer.attention.inner_attention.planes for layer in model.transformer.layers]

        for mine, theirs, bits, kept in ((4, 1, 3, 1), (1, 4, 3, 1), (2, 2, 3, 2), (2, 1, 5, 0)):
            source, model = small.model(lsh(theirs, bits), seed=2), small.model(lsh(mine), seed=3)
            drawn = [p.clone() for p in planes(model)]
            with tempfile.TemporaryDirectory() as directory:
                export_model(source, directory, "f32")
                start_from(model, directory)
            for given, before, now in zip(planes(source), drawn, planes(model)):
                self.assertEqual(now[:kept].tolist(), given[:kept].tolist(), (mine, theirs))
                self.assertTrue(torch.equal(now[kept:], before[kept:]), (mine, theirs))


def _zip(name):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, "text")
    return file.getvalue()


class ConvertTest(unittest.TestCase):
    """Checkpoints as image-generation of linear-transformer-experiments saves them."""

    def test_the_same_outputs_after_conversion(self):
        for name in ("linear", "softmax", "lsh"):
            model = small.model(
                small.ATTENTIONS[name], norm_placement="post", embedding="value_concat_position",
                position_encoding="sinusoidal", vocab_size=256,
                head={"type": "mixture_of_logistics", "mixtures": 4},
                modality={"type": "image", "height": 5, "width": 5, "channels": 1})
            state = {"module." + k: v for k, v in model.state_dict().items()}
            flags = ["--heads", "2", "--attention", name, "--chunk-size", "4", "--image-shape",
                     "5", "5", "1"]
            status, errors, converted = convert({"model_state": state, "epoch": 3}, *flags)
            self.assertEqual(status, 0, errors)
            self.assertEqual(converted.config, model.config)
            tokens = torch.arange(14).unsqueeze(0)
            with torch.no_grad():
                self.assertTrue(torch.equal(converted(tokens), model(tokens)), name)

    def test_a_bare_state_dict_of_text(self):
        model = small.model({"type": "linear"}, norm_placement="post", final_norm=False,
                            position_encoding="sinusoidal")
        status, errors, converted = convert(model.state_dict(), "--heads", "2",
                                                 "--modality", "tokens")
        self.assertEqual(status, 0, errors)
        self.assertEqual(converted.config, model.config)

    def test_what_does_not_fit_is_named_with_its_shapes(self):
        state = small.model({"type": "linear"}, position_encoding="sinusoidal").state_dict()
        state["transformer.layers.1.norm1.bias"] = torch.zeros(5)
        state["extra.weight"] = torch.zeros(2, 3)
        status, errors, _ = convert(state, "--heads", "2")
        self.assertEqual(status, 1)
        self.assertIn("transformer.layers.1.norm1.bias: has [5], expected [12]", errors)
        self.assertIn("extra.weight: [2, 3] is not part of the model", errors)

    def test_text_is_bytes_only_with_256_symbols(self):
        for vocab_size, modality in ((256, "bytes"), (17, "tokens"), (257, "tokens")):
            model = small.model({"type": "linear"}, vocab_size=vocab_size)
            status, errors, converted = convert(
                model.state_dict(), "--heads", "2", "--position-encoding", "learned")
            self.assertEqual(status, 0, errors)
            self.assertEqual(converted.config.modality.type, modality, vocab_size)

    def test_the_shape_of_an_image_is_only_assumed_where_the_positions_tell_it(self):
        def convert_image(max_length, *flags):
            model = small.model({"type": "linear"}, position_encoding="sinusoidal", vocab_size=256,
                                max_length=max_length,
                                head={"type": "mixture_of_logistics", "mixtures": 4})
            return convert(model.state_dict(), "--heads", "2", *flags)

        for max_length in (783, 784):
            status, errors, converted = convert_image(max_length)
            self.assertEqual(status, 0, errors)
            self.assertEqual(converted.config.length, 784)
        for max_length in (40, 3072):
            status, errors, _ = convert_image(max_length)
            self.assertEqual(status, 1)
            self.assertIn(f"--image-shape is needed: {max_length} positions", errors)
        status, errors, converted = convert_image(40, "--image-shape", "4", "5", "2")
        self.assertEqual(status, 0, errors)
        self.assertEqual(converted.config.length, 40)
        status, errors, converted = convert_image(40, "--image-shape", "28", "28", "1")
        self.assertEqual((status, converted.config.length), (0, 784), errors)

    def saved(self, data, is_zip=True):
        file = io.BytesIO()
        torch.save(data, file, _use_new_zipfile_serialization=is_zip)
        return file.getvalue()

    def test_a_damaged_file_is_refused_in_a_line_that_does_not_suggest_trust(self):
        state = small.model({"type": "linear"}).state_dict()
        damaged = {"empty": b"", "text": b"hello, this is text\n" * 20, "page": b"<html>\n" * 9,
                   "pickle of something else": pickle.dumps({"a": [1, 2]}), "zip": _zip("a/b")}
        for is_zip in (True, False):
            whole = self.saved(state, is_zip)
            for cut in (1, 5, 60, 150, len(whole) // 2, len(whole) - 9):
                damaged[f"{'zip' if is_zip else 'old'} file of {cut} bytes"] = whole[:cut]
        flipped = bytearray(self.saved(state))
        for i in range(flipped.find(b"data.pkl") + 80, flipped.find(b"data.pkl") + 120):
            flipped[i] ^= 0x5a
        damaged["flipped bits"] = bytes(flipped)
        for name, data in damaged.items():
            for flags in ([], ["--trust"]):
                with self.subTest(name, flags=flags):
                    status, errors, _ = convert(data, "--heads", "2", *flags)
                    self.assertEqual(status, 1)
                    self.assertIn("model.pth: cannot be read: ", errors)
                    self.assertEqual(len(errors.splitlines()), 1, errors)
                    self.assertNotIn("--trust", errors)

    def test_a_file_that_is_not_there_is_named(self):
        status, errors = run(convert_checkpoint, "/nowhere/x.pth", "--out", "/nowhere")
        self.assertEqual(status, 1)
        self.assertIn("No such file or directory: '/nowhere/x.pth'", errors)

    def test_tensors_of_another_rank_are_named(self):
        for name, text in (("transformer.layers.0.linear1.weight", "expected 2 dimensions"),
                           ("pos_embedding.pe", "expected 3 dimensions"),
                           ("transformer.layers.0.attention.inner_attention.planes", "expected 3")):
            state = small.model(small.ATTENTIONS["lsh"]).state_dict()
            state[name] = torch.zeros(3)
            status, errors, _ = convert(state)
            self.assertEqual(status, 1)
            self.assertIn(f"{name}: has [3], {text}", errors)

    def test_tensors_that_no_model_file_can_hold_are_named(self):
        name = "transformer.layers.0.linear1.weight"
        good = small.model({"type": "linear"}).state_dict()
        flags = ["--heads", "2", "--position-encoding", "learned", "--dtype", "f16"]
        self.assertEqual(convert(good, *flags)[0], 0)
        for change, text in ((lambda t: t * 1e6, "not finite"), (lambda t: t + 1j, "complex64"),
                             (lambda t: t.to_sparse(), "sparse"), (lambda t: t.int(), "int32")):
            status, errors, _ = convert(dict(good, **{name: change(good[name])}), *flags,
                                             "--trust")
            self.assertEqual(status, 1)
            self.assertRegex(errors, f"{name}: .*{text}")

    def test_planes_that_do_not_fit_the_heads_are_named(self):
        good = small.model(small.ATTENTIONS["lsh"]).state_dict()
        name = "transformer.layers.0.attention.inner_attention.planes"
        for width in (0, 5, 40):
            status, errors, _ = convert(dict(good, **{name: torch.zeros(2, 3, width)}))
            self.assertEqual(status, 1)
            self.assertIn(f"{name}: has [2, 3, {width}]", errors)

    def test_a_table_larger_than_memory_is_an_error_in_a_line(self):
        state = small.model({"type": "linear"}, position_encoding="sinusoidal").state_dict()
        del state["pos_embedding.pe"]
        status, errors, _ = convert(state, "--heads", "2", "--embedding",
                                         "value_add_position", "--position-encoding",
                                         "sinusoidal", "--modality", "tokens", "--max-length",
                                         str(2**31))
        self.assertEqual(status, 1)
        self.assertIn("max_length", errors)

    def test_without_a_bound_the_table_of_sinusoids_is_left_out(self):
        model = small.model({"type": "linear"}, position_encoding="sinusoidal")
        status, errors, converted = convert(model.state_dict(), "--heads", "2",
                                                 "--max-length", "0")
        self.assertEqual(status, 0, errors)
        self.assertEqual(converted.config.max_length, 0)
        self.assertNotIn("pos_embedding.pe", converted.state_dict())
        tokens = torch.arange(12).unsqueeze(0)
        with torch.no_grad():
            difference = (converted(tokens) - small.model(
                {"type": "linear"}, norm_placement="post", position_encoding="sinusoidal")(tokens))
        self.assertLess(difference.abs().max().item(), 1e-5)

    def test_the_number_of_heads_must_be_told(self):
        status, errors, _ = convert(small.model({"type": "linear"}).state_dict())
        self.assertEqual(status, 1)
        self.assertIn("--heads", errors)


if __name__ == "__main__":
    unittest.main()
