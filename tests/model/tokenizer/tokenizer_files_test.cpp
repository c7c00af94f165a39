// SPDX-License-Identifier: Apache-2.0
// Tokenizer files: what is read besides the goldens, and how what is not served or hostile is
// refused.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "model/core/errors.h"
#include "model/tokenizer/bpe_tokenizer.h"
#include "model/tokenizer/text_stream.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using testing::TemporaryDirectory;

const std::filesystem::path kGoldenFiles = LINTEL_TEST_DATA "/golden/tokenizers";

std::string text_of_file(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(text).str();
}

json golden_file(const std::string& name) {
  return json::parse(text_of_file(kGoldenFiles / name / "tokenizer.json"));
}

std::string error_of_text(const std::string& text, const std::string& config = "") {
  try {
    parse_tokenizer_json(text, "dir/tokenizer.json", config, "dir/tokenizer_config.json");
  } catch (const ModelError& error) {
    return error.what();
  }
  return "accepted";
}

// The error of a golden file in which the value at a JSON pointer is another; none: it is removed.
std::string error_of_change(const std::string& name, const std::string& pointer,
                            const std::optional<json>& value) {
  json file = golden_file(name);
  const json::json_pointer place(pointer);
  if (value) {
    file[place] = *value;
  } else {
    file[place.parent_pointer()].erase(place.back());
  }
  return error_of_text(file.dump());
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// A vocabulary of GGUF with what a tokenizer.json of byte-level BPE has.
GgufVocabulary gguf_of(const std::string& name, const std::string& pre) {
  const json file = golden_file(name);
  GgufVocabulary vocabulary{.file = "a.gguf", .model = "gpt2", .pre = pre};
  const json& vocab = file.at("model").at("vocab");
  const json& added = file.at("added_tokens");
  vocabulary.tokens.resize(vocab.size() + added.size());
  vocabulary.types.resize(vocabulary.tokens.size(), 1);
  for (const auto& [text, id] : vocab.items()) vocabulary.tokens[id.get<std::size_t>()] = text;
  for (const json& token : added) {
    const std::size_t id = token.at("id");
    if (vocabulary.tokens[id].empty()) vocabulary.tokens[id] = token.at("content");
    vocabulary.types[id] = token.at("special") ? 3 : 4;
  }
  while (vocabulary.tokens.back().empty()) {
    vocabulary.tokens.pop_back();
    vocabulary.types.pop_back();
  }
  for (const json& merge : file.at("model").at("merges")) {
    vocabulary.merges.push_back(merge.is_string() ? merge.get<std::string>()
                                                  : merge[0].get<std::string>() + " " +
                                                        merge[1].get<std::string>());
  }
  return vocabulary;
}

std::string gguf_error(const GgufVocabulary& vocabulary) {
  try {
    make_gguf_tokenizer(vocabulary);
  } catch (const ModelError& error) {
    return error.what();
  }
  return "accepted";
}

std::string world_error(const std::string& more, bool with_bytes = true) {
  testing::TemporaryDirectory directory;
  std::string text;
  for (int byte = 0; with_bytes && byte < 256; ++byte) {
    char line[32];
    std::snprintf(line, sizeof(line), "%d b'\\x%02x' 1\n", byte + 1, byte);
    text += line;
  }
  write_file(directory.path() / "rwkv_vocab_v20230424.txt", text + more);
  try {
    load_tokenizer(directory.path());
  } catch (const ModelError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a directory without a tokenizer has none") {
  testing::TemporaryDirectory directory;
  CHECK(load_tokenizer(directory.path()) == nullptr);
  CHECK(stop_ids(directory.path(), nullptr).empty());
}

TEST_CASE("tokenizer.json: what is not served is refused by its path") {
  const auto byte_level = [](const std::string& pointer, const std::optional<json>& value) {
    return error_of_change("byte-level", pointer, value);
  };
  CHECK(error_of_text(golden_file("byte-level").dump()) == "accepted");
  CHECK_THAT(byte_level("/pre_tokenizer/type", "Whitespace"),
             Contains("dir/tokenizer.json: pre_tokenizer.type: found \"Whitespace\", expected"));
  CHECK_THAT(byte_level("/pre_tokenizer/add_prefix_space", true),
             Contains("pre_tokenizer.add_prefix_space: found true, expected false"));
  CHECK_THAT(byte_level("/pre_tokenizer/use_regex", false), Contains("use_regex: found false"));
  CHECK_THAT(byte_level("/pre_tokenizer/more", 1), Contains("pre_tokenizer: found \"more\""));
  CHECK_THAT(byte_level("/pre_tokenizer", nullptr), Contains("pre_tokenizer: found null"));
  CHECK_THAT(byte_level("/pre_tokenizer", std::nullopt), Contains("\"pre_tokenizer\" is missing"));
  CHECK_THAT(byte_level("/normalizer", json{{"type", "NFKC"}}),
             Contains("normalizer.type: found \"NFKC\""));
  CHECK_THAT(byte_level("/truncation", 5), Contains("truncation: found 5"));
  CHECK_THAT(byte_level("/padding", json::array()), Contains("padding: found a list"));
  CHECK_THAT(byte_level("/version", "2.0"), Contains("version: found \"2.0\""));
  CHECK_THAT(byte_level("/surplus", 1), Contains("found \"surplus\""));
  CHECK_THAT(byte_level("/decoder/type", "Metaspace"), Contains("decoder"));
  CHECK_THAT(byte_level("/decoder", nullptr), Contains("decoder: found null"));
  CHECK_THAT(byte_level("/post_processor/type", "RobertaProcessing"),
             Contains("post_processor.type: found \"RobertaProcessing\""));
  CHECK_THAT(byte_level("/model/type", "Unigram"), Contains("model.type: found \"Unigram\""));
  CHECK_THAT(byte_level("/model/dropout", 0.1), Contains("model.dropout: found 0.1"));
  CHECK_THAT(byte_level("/model/continuing_subword_prefix", "##"),
             Contains("model.continuing_subword_prefix: found \"##\""));
  CHECK_THAT(byte_level("/model/end_of_word_suffix", "</w>"), Contains("end_of_word_suffix"));
  CHECK_THAT(byte_level("/model", std::nullopt), Contains("\"model\" is missing"));
  CHECK_THAT(byte_level("/model/vocab", std::nullopt), Contains("\"vocab\" is missing"));
  CHECK_THAT(byte_level("/model/merges", std::nullopt), Contains("\"merges\" is missing"));
  CHECK_THAT(byte_level("/added_tokens/0/lstrip", true),
             Contains("added_tokens[0].lstrip: found true, expected false"));
  CHECK_THAT(byte_level("/added_tokens/0/content", ""), Contains("added_tokens[0]"));
  CHECK_THAT(byte_level("/added_tokens/0/content", std::string(2000, 'x')), Contains("1024 bytes"));
  const std::string split = "/pre_tokenizer/pretokenizers/0";
  CHECK_THAT(error_of_change("qwen3", split + "/pattern/Regex", "\\s+"),
             Contains("pre_tokenizer.pretokenizers[0].pattern.Regex: found \"\\\\s+\""));
  CHECK_THAT(error_of_change("qwen3", split + "/behavior", "Removed"), Contains("behavior: found"));
  CHECK_THAT(error_of_change("qwen3", split + "/invert", true), Contains("invert: found true"));
  CHECK_THAT(error_of_change("qwen3", "/pre_tokenizer/pretokenizers/1/use_regex", true),
             Contains("use_regex: found true"));
}

TEST_CASE("tokenizer.json: settings of a call and a Sequence of one step change no id") {
  const auto ids = [](const json& file) {
    const auto tokenizer = parse_tokenizer_json(file.dump(), "f", "", "c");
    return tokenizer->encode("Hello, e\u0301 w\u00f6rld 123");
  };
  const auto sequence = [](const char* list, const json& steps) {
    return json{{"type", "Sequence"}, {list, steps}};
  };
  json file = golden_file("byte-level");
  const std::vector<std::int32_t> plain = ids(file);
  file["truncation"] = {{"direction", "Right"}, {"max_length", 2}, {"stride", 0}};
  file["padding"] = {{"strategy", {{"Fixed", 64}}}, {"pad_id", 0}, {"pad_token", "x"}};
  CHECK(ids(file) == plain);
  file["normalizer"] = {{"type", "NFC"}};
  const std::vector<std::int32_t> composed = ids(file);
  CHECK(composed != plain);
  file["normalizer"] = sequence("normalizers", json::array({file["normalizer"]}));
  CHECK(ids(file) == composed);
  file["normalizer"] = sequence("normalizers", json::array({file["normalizer"]}));
  CHECK(ids(file) == composed);
  file["pre_tokenizer"] = sequence("pretokenizers", json::array({file["pre_tokenizer"]}));
  file["decoder"] = sequence("decoders", json::array({file["decoder"]}));
  CHECK(ids(file) == composed);
  file["normalizer"] = sequence("normalizers", json::array());
  CHECK(ids(file) == plain);

  const auto refused = [&](const json& normalizer) {
    return error_of_change("byte-level", "/normalizer", normalizer);
  };
  const json nfc = {{"type", "NFC"}};
  CHECK_THAT(refused(sequence("normalizers", json::array({nfc, nfc}))),
             Contains("found \"Sequence\""));
  CHECK_THAT(refused(sequence("normalizers", json::array({json{{"type", "NFKC"}}}))),
             Contains("found \"NFKC\""));
  json more = sequence("normalizers", json::array({nfc}));
  more["more"] = 1;
  CHECK_THAT(refused(more), Contains("found \"more\""));
}

TEST_CASE("tokenizer.json with byte fallback: what is not served is refused by its path") {
  const auto change = [](const std::string& pointer, const std::optional<json>& value) {
    return error_of_change("byte-fallback", pointer, value);
  };
  CHECK_THAT(change("/normalizer/normalizers/0/prepend", "x"), Contains("prepend: found \"x\""));
  CHECK_THAT(change("/normalizer/normalizers/1/content", "x"), Contains("content: found \"x\""));
  CHECK_THAT(change("/normalizer", nullptr), Contains("pre_tokenizer"));
  CHECK_THAT(change("/added_tokens/1/normalized", true), Contains("\"normalized\" true"));
  CHECK_THAT(change("/decoder/decoders/3/start", 0), Contains("start: found 0"));
  CHECK_THAT(change("/model/vocab/<0x41>", std::nullopt),
             Contains("model.vocab: found no token \"<0x41>\""));
  const auto metaspace = [](const std::string& pointer, const std::optional<json>& value) {
    return error_of_change("byte-fallback-metaspace", pointer, value);
  };
  CHECK_THAT(metaspace("/pre_tokenizer/split", true), Contains("split: found true"));
  CHECK_THAT(metaspace("/pre_tokenizer/split", std::nullopt), Contains("\"split\" is missing"));
  CHECK_THAT(metaspace("/pre_tokenizer/replacement", "_"), Contains("replacement: found \"_\""));
  CHECK_THAT(metaspace("/pre_tokenizer/prepend_scheme", "last"), Contains("prepend_scheme"));
  CHECK(metaspace("/pre_tokenizer/prepend_scheme", "always") == "accepted");
  CHECK(metaspace("/pre_tokenizer/prepend_scheme", std::nullopt) == "accepted");
}

TEST_CASE("tokenizer.json of World: all bytes, one added token of id 0") {
  const auto change = [](const std::string& pointer, const std::optional<json>& value) {
    return error_of_change("world-wordpiece", pointer, value);
  };
  CHECK_THAT(change("/model/continuing_subword_prefix", "##"), Contains("found \"##\""));
  CHECK_THAT(change("/model/max_input_chars_per_word", 100), Contains("found 100"));
  CHECK_THAT(change("/model/unk_token", "[UNK]"), Contains("unk_token: found \"[UNK]\""));
  CHECK_THAT(change("/pre_tokenizer/use_regex", true), Contains("use_regex: found true"));
  CHECK_THAT(change("/added_tokens/0/id", 1), Contains("added_tokens"));
  CHECK_THAT(change("/added_tokens/0/special", false), Contains("added_tokens"));
  CHECK_THAT(change("/model/vocab/!", std::nullopt), Contains("no entry for the byte 33"));
  CHECK_THAT(change("/model/vocab/!", 5), Contains("found id 5, expected an id that no other"));
}

TEST_CASE("tokenizer.json: hostile vocabularies are refused") {
  const auto change = [](const std::string& pointer, const std::optional<json>& value) {
    return error_of_change("byte-level", pointer, value);
  };
  for (const json& id :
       {json(-1), json(1048576), json(2147483648), json(1.5), json("1"), json(nullptr), json(true),
        json::array(), json::object(), json(18446744073709551615u)}) {
    CHECK_THAT(change("/model/vocab/new", id), Contains("model.vocab[\"new\"]: found "));
  }
  CHECK(change("/model/vocab/new", 1048575) == "accepted");
  CHECK_THAT(change("/model/vocab/new", 0), Contains("id 0 a second time"));
  std::string twice = golden_file("byte-level").dump();
  const std::string vocab = "\"vocab\":{";
  twice.insert(twice.find(vocab) + vocab.size(), "\"!\":700,");
  CHECK_THAT(error_of_text(twice), Contains("model.vocab: found \"!\"") &&
                                       Contains("a second time, expected each token once"));
  for (const json& id : {json(-1), json(1048576), json(2147483648), json("1"), json(nullptr)}) {
    CHECK_THAT(change("/added_tokens/0/id", id), Contains("added_tokens[0].id: found "));
  }
  CHECK_THAT(change("/added_tokens/0/id", 5), Contains("for \"<|endoftext|>\", which has id 656"));
  CHECK_THAT(change("/added_tokens/0/content", "new"), Contains("found id 656 for \"new\""));
  CHECK_THAT(change("/added_tokens/1", golden_file("byte-level")["added_tokens"][0]),
             Contains("added_tokens[1]: found id 656"));
}

TEST_CASE("tokenizer.json: hostile merges are refused") {
  const auto change = [](const json& merge) {
    return error_of_change("byte-level", "/model/merges/0", merge);
  };
  CHECK_THAT(change("q zzz"), Contains("model.merges[0]: found \"zzz\", expected a token"));
  CHECK_THAT(change("q z"), Contains("found \"qz\", expected a token"));
  for (const json& merge :
       {json("qz"), json(""), json(" "), json("q "), json(" z"), json("q z t"), json(1),
        json(nullptr), json::array(), json::array({"q"}), json::array({"q", "z", "t"}),
        json::array({"q", 1}), json::array({"q", ""}), json::array({json::array({"q"})}),
        json::object()}) {
    CHECK_THAT(change(merge), Contains("model.merges[0]: found ") && Contains("a merge"));
  }
  json file = golden_file("byte-level");
  file["model"]["merges"].push_back(file["model"]["merges"][7]);
  CHECK_THAT(error_of_text(file.dump()), Contains("model.merges[400]") && Contains("second time"));
}

TEST_CASE("tokenizer.json: hostile JSON is refused") {
  for (const char* text :
       {"", "[]", "null", "1", "{", "{}", "{\"model\":1}", "{\"model\":[]}", "{\"model\":{}}",
        "{\"model\":{\"vocab\":{}}}", "{'a':1}", "{\"model\":{\"vocab\":{\"\xff\":0}}}",
        "{\"model\":{\"merges\":[", "{\"model\":{\"vocab\":[],\"merges\":{}}}",
        "[[{\"model\":{\"vocab\":{}}}]]"}) {
    CHECK_THAT(error_of_text(text), Contains("dir/tokenizer.json: "));
  }
  CHECK_THAT(error_of_text(std::string(100000, '[')), Contains("nested more than 32 deep"));
  CHECK_THAT(error_of_text("{\"model\":{\"merges\":" + std::string(100000, '[')),
             Contains("dir/tokenizer.json: "));
  CHECK_THAT(error_of_text(R"({"model":{"type":"BPE"},"model":{"type":"BPE"}})"),
             Contains("found \"model\" twice"));
  CHECK_THAT(error_of_text(R"({"model":{"vocab":{},"vocab":{}}})"), Contains("\"vocab\" twice"));
  std::string many = "{\"added_tokens\":[0";
  for (int i = 0; i < 600000; ++i) many += ",0";
  CHECK_THAT(error_of_text(many + "]}"), Contains("values outside model.vocab"));
  // A sequence in a sequence in a sequence ends with the depth of the text.
  std::string processors = R"({"type":"ByteLevel"})";
  for (int i = 0; i < 3; ++i) {
    processors = R"({"type":"Sequence","processors":[)" + processors + "]}";
  }
  CHECK_THAT(error_of_change("byte-level", "/post_processor", json::parse(processors)),
             Contains("post_processor.processors[0]"));
}

TEST_CASE("templates: tokens around a text are put there, others refused") {
  const json file = golden_file("llama3");
  const auto tokenizer = parse_tokenizer_json(file.dump(), "f", "", "c");
  CHECK(tokenizer->encode("").size() == 1);
  CHECK(tokenizer->encode("", {.add_special = false}).empty());
  CHECK(tokenizer->encode("Hello").front() == 1459);
  const std::string place = "/post_processor/processors/1";
  CHECK_THAT(error_of_change("llama3", place + "/special_tokens/<|begin_of_text|>/ids/0", 5000),
             Contains("found no token of id 5000"));
  CHECK_THAT(error_of_change("llama3", place + "/special_tokens/<|begin_of_text|>/ids/0", -1),
             Contains("ids[0]: found -1"));
  CHECK_THAT(error_of_change("llama3", place + "/single/0/SpecialToken/id", "no"),
             Contains("\"no\" is missing"));
  CHECK_THAT(error_of_change("llama3", place + "/single/1/Sequence/id", "B"),
             Contains("found \"B\""));
  CHECK_THAT(error_of_change("llama3", place + "/single", json::array()), Contains("one Sequence"));
}

TEST_CASE("special tokens: the text of a user does not make them") {
  const auto tokenizer = load_tokenizer(kGoldenFiles / "qwen3");
  const std::string text = "<|im_end|><think>";
  const EncodeOptions all{.parse_special = true};
  CHECK(tokenizer->encode(text, all) == std::vector<std::int32_t>{2858, 2880});
  CHECK(tokenizer->encode(text).back() == 2880);
  CHECK(tokenizer->encode(text).size() > 2);
  for (const std::int32_t id : tokenizer->encode(text, {.parse_added = false})) CHECK(id < 2856);
  CHECK(tokenizer->is_special(2858));
  CHECK_FALSE(tokenizer->is_special(2880));
  CHECK(tokenizer->text_of_special(2858) == "<|im_end|>");
  CHECK(tokenizer->bytes_of(2858).empty());
  CHECK(tokenizer->bytes_of(2880) == "<think>");
  CHECK(tokenizer->find_token("<|im_end|>") == 2858);
  CHECK(tokenizer->find_token("no") == std::nullopt);
  CHECK(tokenizer->vocab_size() == 2882);
  CHECK(tokenizer->bytes_of(2882).empty());
  // Not by a merge, and not as a whole piece.
  json file = golden_file("llama3");
  const std::string piece = "Ġthe";
  const std::int32_t id = file["model"]["vocab"][piece];
  file["added_tokens"].push_back({{"id", id}, {"content", piece}, {"special", true}});
  const auto forged = parse_tokenizer_json(file.dump(), "f", "", "c");
  for (const std::int32_t made : forged->encode(" the")) CHECK(made != id);
}

TEST_CASE("plain parts of a text: no token that has one of their bytes is cut out") {
  const auto tokenizer = load_tokenizer(kGoldenFiles / "qwen3");
  const std::string end = "<|im_end|>", think = "<think>", text = end + think + end;
  const auto encode = [&](const std::vector<PlainText>& plain) {
    return tokenizer->encode(text, {.parse_special = true, .plain = plain});
  };
  const auto has = [](const std::vector<std::int32_t>& ids, std::int32_t id) {
    return std::ranges::count(ids, id);
  };
  CHECK(encode({}) == std::vector<std::int32_t>{2858, 2880, 2858});
  // One byte suffices, wherever it is.
  for (std::size_t at = 0; at < end.size(); ++at) {
    const auto ids = encode({{at, at + 1}});
    CHECK(has(ids, 2858) == 1);
    CHECK(ids.back() == 2858);
    CHECK(has(ids, 2880) == 1);
    CHECK(to_text(*tokenizer, ids) == end + think);  // special tokens have no text
  }
  CHECK(has(encode({{0, text.size()}}), 2858) == 0);
  CHECK(has(encode({{0, text.size()}}), 2880) == 0);
  CHECK(encode({{0, text.size()}}) ==
        tokenizer->encode(text, {.parse_special = false, .parse_added = false}));
  // Text written by a model has its special tokens, and only these, as letters.
  const auto written = encode({{.begin = 0, .end = text.size(), .special_only = true}});
  CHECK(has(written, 2858) == 0);
  CHECK(has(written, 2880) == 1);
  // Parts that only touch a token, and several parts.
  CHECK(has(encode({{end.size(), end.size() + think.size()}}), 2858) == 2);
  CHECK(has(encode({{1, 2}, {text.size() - 1, text.size()}}), 2858) == 0);
  // Nothing of the part is cut out if normalisation joins characters.
  const std::string joined = "e\xcc\x81" + think;
  CHECK(has(tokenizer->encode(joined, {.plain = std::vector<PlainText>{{0, 3}}}), 2880) == 1);
}

TEST_CASE("byte fallback: a text that continues another gets no marked space") {
  for (const char* name : {"byte-fallback", "byte-fallback-metaspace"}) {
    const auto tokenizer = load_tokenizer(kGoldenFiles / name);
    const auto text = [&](bool continues) {
      const auto ids = tokenizer->encode("the", {.add_special = false, .continues = continues});
      return to_text(*tokenizer, ids, false);
    };
    CHECK(text(false) == " the");
    CHECK(text(true) == "the");
    CHECK(tokenizer->encode("the").front() == 1);
  }
}

TEST_CASE("byte fallback: a merge may join a marked space to the letter before it") {
  json file = golden_file("byte-fallback");
  const std::string joined = "e\xE2\x96\x81";
  const std::size_t id = file["model"]["vocab"].size();
  file["model"]["vocab"][joined] = id;
  json& merges = file["model"]["merges"];
  merges.insert(merges.begin(), json::array({"e", "\xE2\x96\x81"}));
  const auto tokenizer = parse_tokenizer_json(file.dump(), "f", "", "c");
  const auto ids = tokenizer->encode("see me");
  CHECK(std::ranges::count(ids, static_cast<std::int32_t>(id)) == 1);
  CHECK(to_text(*tokenizer, ids) == "see me");
}

TEST_CASE("tokenizer_config.json completes the added tokens") {
  const std::string file = golden_file("qwen3").dump();
  const auto decoder = [](const std::string& id, const std::string& content) {
    return json{{"added_tokens_decoder", {{id, {{"content", content}, {"special", true}}}}}}.dump();
  };
  const auto tokenizer = parse_tokenizer_json(file, "f", decoder("2890", "<|audio|>"), "c");
  CHECK(tokenizer->vocab_size() == 2891);
  CHECK(tokenizer->encode("<|audio|>", {.parse_special = true}) == std::vector<std::int32_t>{2890});
  CHECK(error_of_text(file, decoder("2858", "<|im_end|>")) == "accepted");
  CHECK_THAT(
      error_of_text(file, decoder("2858", "other")),
      Contains("added_tokens_decoder.2858.content: found \"other\", expected \"<|im_end|>\""));
  CHECK_THAT(error_of_text(file, decoder("2890", "<|im_end|>")), Contains("which has id 2858"));
  CHECK_THAT(error_of_text(file, decoder("3", "new")), Contains("found id 3 for \"new\""));
  for (const char* id : {"-1", "x", "", "1048576", "99999999999", "1 "}) {
    CHECK_THAT(error_of_text(file, decoder(id, "new")), Contains("a name that is an id"));
  }
  CHECK_THAT(error_of_text(file, "{"), Contains("dir/tokenizer_config.json: is not JSON"));
}

TEST_CASE("stop ids: the union of what a directory's files name") {
  testing::TemporaryDirectory directory;
  const auto write = [&](const char* name, const std::string& text) {
    write_file(directory.path() / name, text);
  };
  write("tokenizer.json", golden_file("qwen3").dump());
  write("config.json", R"({"eos_token_id":7,"text_config":{"eos_token_id":[2856]}})");
  const auto eos = [&] {
    const auto tokenizer = load_tokenizer(directory.path());
    return std::vector<std::int32_t>(tokenizer->eos().begin(), tokenizer->eos().end());
  };
  CHECK(eos() == std::vector<std::int32_t>{7, 2856});
  write("generation_config.json", R"({"eos_token_id":[2858,2856]})");
  CHECK(eos() == std::vector<std::int32_t>{7, 2856, 2858});
  write("tokenizer_config.json", R"({"eos_token":{"content":"<|im_start|>"}})");
  CHECK(eos() == std::vector<std::int32_t>{7, 2856, 2857, 2858});
  write("tokenizer_config.json", R"({"eos_token":"<|im_start|>"})");
  CHECK(stop_ids(directory.path(), nullptr) == std::vector<std::int32_t>{7, 2856, 2858});
  for (const char* id : {"-1", "1.5", "\"1\"", "[[1]]", "{}", "4294967296", "true"}) {
    write("generation_config.json", std::string("{\"eos_token_id\":") + id + "}");
    CHECK_THROWS_WITH(eos(), Contains("eos_token_id") && Contains("found "));
  }
  write("generation_config.json", R"({"eos_token_id":null})");
  CHECK(eos() == std::vector<std::int32_t>{7, 2856, 2857});
  write("rwkv_vocab_v20230424.txt", text_of_file(kGoldenFiles / "world/rwkv_vocab_v20230424.txt"));
  CHECK(eos() == std::vector<std::int32_t>{0});
}

TEST_CASE("World's file: lines that are not `ID LITERAL LENGTH` are refused by their number") {
  CHECK(world_error("300 'ab' 2\n") == "accepted");
  CHECK(world_error("300 'ab' 2") == "accepted");
  CHECK(world_error("300 \"it's\" 4\n") == "accepted");
  CHECK(world_error("300 '\\u4f60' 3\n") == "accepted");
  for (const char* line : {"",
                           "300",
                           "300 'ab'",
                           "300 'ab' 3",
                           "300 'ab' 2 ",
                           "300 'ab' -2",
                           "300 'ab' 2\r",
                           "-1 'ab' 2",
                           "0 'ab' 2",
                           "1048576 'ab' 2",
                           "4294967297 'ab' 2",
                           "x 'ab' 2",
                           " 'ab' 2",
                           "300 ab 2",
                           "300 'ab\" 2",
                           "300 ' 1",
                           "300 '' 0",
                           "300 'a'b' 3",
                           "300 '\\q' 1",
                           "300 '\\x4' 1",
                           "300 '\\x4g' 1",
                           "300 '\\ud800' 3",
                           "300 b'\\u4f60' 3",
                           "300 b'\xC3\xA9' 2",
                           "300 '\\' 1",
                           "300 u'ab' 2",
                           "5 'ab' 2"}) {
    INFO(line);
    CHECK_THAT(world_error(std::string(line) + "\n"), Contains("line 257: found "));
  }
  CHECK_THAT(world_error("300 'ab' 2\n301 'ab' 2\n"), Contains("300 and 301 for \"ab\""));
  CHECK_THAT(world_error("300 'ab' 2\n", false), Contains("no entry for the byte 0"));
  CHECK_THAT(world_error("300 '" + std::string(1025, 'x') + "' 1025\n"), Contains("1024 bytes"));
}

TEST_CASE("GGUF vocabularies: the ids of tokenizer.json") {
  const std::pair<const char*, const char*> kVocabularies[] = {
      {"qwen3", "qwen2"}, {"qwen3_5", "qwen35"}, {"llama3", "llama-bpe"}, {"byte-level", "gpt-2"}};
  for (const auto& [name, pre] : kVocabularies) {
    const auto tokenizer = make_gguf_tokenizer(gguf_of(name, pre));
    REQUIRE(tokenizer);
    const json cases = json::parse(text_of_file(kGoldenFiles / name / "golden.json"));
    for (const json& item : cases.at("encode")) {
      const std::string text = item.at("text");
      INFO(name << ": " << text);
      const std::vector<std::int32_t> ids = item.at("ids");
      CHECK(tokenizer->encode(text, {.parse_special = item.value("special", false)}) == ids);
      CHECK(to_text(*tokenizer, ids) == item.at("decoded").get<std::string>());
    }
  }
}

TEST_CASE("GGUF vocabularies: start, end and stop tokens") {
  GgufVocabulary vocabulary = gguf_of("qwen3", "qwen2");
  vocabulary.bos = 2857;
  vocabulary.eos = 2856;
  CHECK(make_gguf_tokenizer(vocabulary)->encode("").empty());
  vocabulary.add_bos = true;
  vocabulary.add_eos = true;
  const auto tokenizer = make_gguf_tokenizer(vocabulary);
  CHECK(tokenizer->encode("") == std::vector<std::int32_t>{2857, 2856});
  CHECK(std::ranges::equal(tokenizer->eos(), std::vector<std::int32_t>{2856, 2858}));
  GgufVocabulary llama = gguf_of("llama3", "llama-bpe");
  llama.bos = 1459;
  CHECK(make_gguf_tokenizer(llama)->encode("") == std::vector<std::int32_t>{1459});
}

TEST_CASE("GGUF vocabularies: tokens of infilling and of file ends end a text") {
  GgufVocabulary vocabulary = gguf_of("qwen3", "qwen2");
  std::vector<std::int32_t> expected = {2856, 2858};
  for (const char* const text : {"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}) {
    const auto found = std::ranges::find(vocabulary.tokens, text);
    REQUIRE(found != vocabulary.tokens.end());
    const auto id = found - vocabulary.tokens.begin();
    vocabulary.types[static_cast<std::size_t>(id)] = 3;  // as converters have them
    expected.push_back(static_cast<std::int32_t>(id));
  }
  std::ranges::sort(expected);
  CHECK(std::ranges::equal(make_gguf_tokenizer(vocabulary)->eos(), expected));
}

TEST_CASE("GGUF vocabularies: one of tokens without the merges that make them is refused") {
  GgufVocabulary vocabulary = gguf_of("qwen3", "qwen2");
  const std::vector<std::string> merges = vocabulary.merges;
  CHECK(gguf_error(vocabulary) == "accepted");
  vocabulary.merges.resize(1);
  CHECK_THAT(gguf_error(vocabulary),
             Contains("a.gguf: tokenizer.ggml.merges: found 1 merges, expected at least half") &&
                 Contains(" normal tokens of several letters"));
  vocabulary.merges = merges;
  vocabulary.merges.resize(merges.size() * 3 / 4);
  CHECK(gguf_error(vocabulary) == "accepted");
  vocabulary.merges.clear();
  CHECK_THAT(gguf_error(vocabulary), Contains("a.gguf: tokenizer.ggml.merges: found none"));
  vocabulary.tokens.resize(256);  // a token for each byte
  vocabulary.types.resize(256);
  CHECK(gguf_error(vocabulary) == "accepted");
}

TEST_CASE("GGUF vocabularies: World, with the escapes of bytes") {
  GgufVocabulary vocabulary{.file = "a.gguf", .model = "rwkv"};
  vocabulary.tokens = {"<s>"};
  vocabulary.types = {3};
  for (int byte = 0; byte < 256; ++byte) {
    char token[8];
    std::snprintf(token, sizeof(token), "\\x%02x", byte);
    vocabulary.tokens.push_back(token);
    vocabulary.types.push_back(1);
  }
  for (const char* token : {"\\n\\n", "\\'\\\"", "\xE4\xBD\xA0", "a'b"}) {
    vocabulary.tokens.push_back(token);
    vocabulary.types.push_back(1);
  }
  vocabulary.tokens.push_back("[PAD261]");
  vocabulary.types.push_back(5);
  const auto tokenizer = make_gguf_tokenizer(vocabulary);
  CHECK(tokenizer->encode("\n\n'\"\xE4\xBD\xA0"
                          "a'b") == std::vector<std::int32_t>{257, 258, 259, 260});
  CHECK(tokenizer->encode("<s>").size() == 3);
  CHECK(tokenizer->encode("<s>", {.parse_special = true}) == std::vector<std::int32_t>{0});
  CHECK(tokenizer->encode("[PAD261]").size() == 8);
  CHECK(tokenizer->bytes_of(261).empty());
  CHECK(tokenizer->vocab_size() == 262);
  CHECK(std::ranges::equal(tokenizer->eos(), std::vector<std::int32_t>{0}));
  vocabulary.tokens[257] = "\\q";
  CHECK_THAT(gguf_error(vocabulary), Contains("a.gguf: tokenizer.ggml.tokens[257]: found"));
  vocabulary.tokens[257] = "\xE4\xBD\xA0";
  CHECK_THAT(gguf_error(vocabulary), Contains("the ids 257 and 259"));
  vocabulary.tokens[257] = "x";
  vocabulary.types[5] = 5;
  CHECK_THAT(gguf_error(vocabulary), Contains("no entry for the byte 4"));
}

TEST_CASE("GGUF vocabularies: what is not served has ids alone, what is hostile is refused") {
  const GgufVocabulary good = gguf_of("qwen3", "qwen2");
  std::string why = "x";
  GgufVocabulary changed = good;
  changed.model = "";
  CHECK(make_gguf_tokenizer(changed, &why) == nullptr);
  CHECK(why.empty());
  changed.model = "llama";
  CHECK(make_gguf_tokenizer(changed, &why) == nullptr);
  CHECK_THAT(why, Contains("tokenizer.ggml.model \"llama\""));
  changed = good;
  for (const char* pre : {"", "default", "deepseek-llm"}) {
    changed.pre = pre;
    CHECK(make_gguf_tokenizer(changed, &why) == nullptr);
    CHECK_THAT(why, Contains("tokenizer.ggml.pre"));
  }
  const auto error = [&](const auto& change) {
    GgufVocabulary vocabulary = good;
    change(vocabulary);
    return gguf_error(vocabulary);
  };
  CHECK(error([](auto&) {}) == "accepted");
  CHECK_THAT(error([](auto& v) { v.tokens.clear(); }), Contains("found 0 tokens"));
  CHECK_THAT(error([](auto& v) { v.types.pop_back(); }), Contains("found 2881 types"));
  CHECK_THAT(error([](auto& v) { v.types[3] = 7; }), Contains("token_type[3]: found 7"));
  CHECK_THAT(error([](auto& v) { v.types[3] = -1; }), Contains("token_type[3]: found -1"));
  CHECK_THAT(error([](auto& v) { v.eos = 2882; }), Contains("eos_token_id: found 2882"));
  CHECK_THAT(error([](auto& v) { v.bos = -1; }), Contains("bos_token_id: found -1"));
  CHECK_THAT(error([](auto& v) { v.eot = std::int64_t{1} << 40; }), Contains("eot_token_id"));
  CHECK_THAT(error([](auto& v) { v.tokens[300] = v.tokens[301]; }), Contains("a second time"));
  CHECK_THAT(error([](auto& v) { v.tokens[2880] = v.tokens[2881]; }), Contains("tokens[2881]"));
  CHECK_THAT(error([](auto& v) { v.merges[3] = "ab"; }), Contains("merges[3]: found \"ab\""));
  CHECK_THAT(error([](auto& v) { v.merges[3] = ""; }), Contains("merges[3]"));
  CHECK_THAT(error([](auto& v) { v.merges[3] = "q zzzz"; }), Contains("found \"zzzz\""));
  CHECK_THAT(error([](auto& v) { v.types[5] = 5; }), Contains("one for each of the 256 bytes"));
}

}  // namespace lintel
