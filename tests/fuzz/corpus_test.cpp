// SPDX-License-Identifier: Apache-2.0
// The parsers over mutated files, under a memory limit: parsed, or refused by a ModelError.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/counted_memory.h"
#include "tests/fuzz/inputs.h"
#include "tests/fuzz/mutations.h"
#include "tests/fuzz/template_inputs.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"

namespace lintel::fuzz {
namespace {

constexpr std::size_t kSmallFileLimit = 4 << 20;
// A size small enough for a sanitizer, and the full one at night.
const std::size_t kPart = testing::runs_few_cases() ? 10 : 1;
const std::size_t kLargeHeaderBytes = 50'000'000 / kPart;
constexpr std::size_t kLargeHeaderLimit = 64 << 20;

using Try = bool (*)(std::string_view);

bool try_limited(Try parse, const std::string& bytes, std::size_t limit_bytes) {
  const MemoryLimit limit(limit_bytes);
  return within_time(parse, bytes);
}

struct Counts {
  int files = 0;
  int taken = 0;
};

Counts run_corpus(const char* room, Try parse) {
  Counts counts;
  const std::filesystem::path directory = LINTEL_TEST_DATA "/fuzz/corpus";
  for (const auto& entry : std::filesystem::directory_iterator(directory / room)) {
    INFO(entry.path().string());
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    CHECK_NOTHROW(counts.taken += try_limited(parse, bytes, kSmallFileLimit) ? 1 : 0);
    ++counts.files;
  }
  return counts;
}

std::string with_length(const std::string& header) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(std::uint64_t{header.size()} >> (8 * i));
  return bytes + header;
}

std::string repeated(const std::string& open, const std::string& piece) {
  std::string text = open;
  text.reserve(kLargeHeaderBytes);
  while (text.size() + piece.size() <= kLargeHeaderBytes) text += piece;
  return text;
}

}  // namespace

TEST_CASE("the corpus of mutated files is parsed or refused, within its memory", "[threat-75]") {
  const Counts config = run_corpus("config", try_config);
  const Counts safetensors = run_corpus("safetensors", try_safetensors);
  const Counts adapters = run_corpus("adapter_config", try_adapter_config);
  const Counts snapshots = run_corpus("snapshot", try_snapshot);
  const Counts gguf = run_corpus("gguf", try_gguf);
  CHECK(config.files + safetensors.files + adapters.files + snapshots.files >= 200);
  // Both outcomes occur, or the corpus says nothing.
  CHECK(config.taken >= 3);
  CHECK(safetensors.taken >= 2);
  CHECK(config.taken < config.files / 2);
  CHECK(safetensors.taken < safetensors.files / 2);
  CHECK(adapters.taken >= 2);
  CHECK(adapters.taken < adapters.files / 2);
  CHECK(snapshots.taken >= 3);
  CHECK(snapshots.taken < snapshots.files / 2);
  CHECK(gguf.files >= 75);
  CHECK(gguf.taken >= 3);
  CHECK(gguf.taken < gguf.files / 2);
}

TEST_CASE("thousands of fresh mutations are parsed or refused, within their memory",
          "[threat-75]") {
  const std::vector<std::string> configs = config_seeds();
  const std::vector<std::string> files = safetensors_seeds();
  const std::vector<std::string> adapters = adapter_config_seeds();
  const std::vector<std::string> snapshots = snapshot_seeds();
  const std::vector<std::string> ggufs = gguf_seeds();
  const std::uint64_t share = testing::runs_few_cases() ? 8 : 1;
  for (std::uint64_t number = 0; number < 5000; ++number) {
    if (!testing::is_drawn(number, share)) continue;
    INFO("mutation " << number);
    const std::string config = mutate_text(configs[number % configs.size()], number);
    const std::string file = mutate_safetensors(files[number % files.size()], number);
    const std::string adapter = mutate_text(adapters[number % adapters.size()], number);
    REQUIRE_NOTHROW(try_limited(try_adapter_config, adapter, kSmallFileLimit));
    REQUIRE_NOTHROW(try_limited(try_config, config, kSmallFileLimit));
    const std::string snapshot = mutate_snapshot(snapshots[number % snapshots.size()], number);
    REQUIRE_NOTHROW(try_limited(try_snapshot, snapshot, kSmallFileLimit));
    REQUIRE_NOTHROW(try_limited(try_safetensors, file, kSmallFileLimit));
    const std::string gguf = mutate_gguf(ggufs[number % ggufs.size()], number);
    REQUIRE_NOTHROW(try_limited(try_gguf, gguf, kSmallFileLimit));
  }
}

TEST_CASE("thousands of mutated tokenizers are parsed or refused, within their memory",
          "[threat-75]") {
  // The largest id that a file may name has tables of so much.
  constexpr std::size_t kLimit = 64 << 20;
  const std::vector<std::string> files = tokenizer_json_seeds();
  const std::vector<std::string> worlds = world_vocabulary_seeds();
  for (const std::string& file : files) REQUIRE(try_limited(try_tokenizer_json, file, kLimit));
  for (const std::string& world : worlds) REQUIRE(try_limited(try_world_vocabulary, world, kLimit));
  int taken = 0;
  const std::uint64_t share = testing::runs_few_cases() ? 4 : 1;
  for (std::uint64_t number = 0; number < 5000; ++number) {
    if (!testing::is_drawn(number, share)) continue;
    INFO("mutation " << number);
    const std::string file = mutate_text(files[number % files.size()], number);
    REQUIRE_NOTHROW(taken += try_limited(try_tokenizer_json, file, kLimit) ? 1 : 0);
    const std::string world = mutate_text(worlds[number % worlds.size()], number);
    REQUIRE_NOTHROW(taken += try_limited(try_world_vocabulary, world, kLimit) ? 1 : 0);
  }
  CHECK(taken >= 20 / static_cast<int>(share));
  CHECK(taken < 2500 / static_cast<int>(share));
}

TEST_CASE("thousands of mutated outputs: one reading in every cut, within their memory") {
  int with_calls = 0;
  const std::vector<std::string> seeds = reader_seeds();
  for (std::uint64_t number = 0; number < 5000; ++number) {
    INFO("mutation " << number);
    const std::string output = mutate_text(seeds[number % seeds.size()], number);
    REQUIRE_NOTHROW(with_calls += try_limited(try_reader, output, kSmallFileLimit) ? 1 : 0);
  }
  CHECK(with_calls >= 500);
  CHECK(with_calls < 4500);
}

TEST_CASE("templates, mutated or made by a grammar, are rendered or refused, within their memory") {
  const Counts corpus = run_corpus("template", try_template);
  CHECK(corpus.files >= 50);
  CHECK(corpus.taken >= 5);
  const std::vector<std::string> seeds = template_seeds();
  for (const std::string& seed : seeds) REQUIRE(try_limited(try_template, seed, kSmallFileLimit));
  std::mt19937 random(1);
  int taken = 0;
  for (std::uint64_t number = 0; number < 2000; ++number) {
    INFO("mutation " << number);
    const std::string mutated = mutate_text(seeds[number % seeds.size()], number);
    REQUIRE_NOTHROW(try_limited(try_template, mutated, 2 * kSmallFileLimit));
    std::string choices;
    for (std::size_t left = random() % 60; left > 0; --left) {
      choices += static_cast<char>(random() % 256);
    }
    const std::string made = template_of(choices);
    INFO(made);
    REQUIRE_NOTHROW(taken += try_limited(try_template, made, 2 * kSmallFileLimit) ? 1 : 0);
  }
  CHECK(taken >= 200);
}

TEST_CASE("mutated schemas and grammars: each is compiled or refused, within its memory",
          "[threat-96]") {
  // A grammar, and what is built on the way to it.
  constexpr std::size_t kLimit = 64 << 20;
  const std::vector<std::string> schemas = schema_seeds();
  const std::vector<std::string> grammars = gbnf_seeds();
  for (const std::string& schema : schemas) REQUIRE(try_schema(schema));
  for (const std::string& grammar : grammars) REQUIRE(try_gbnf(grammar));
  int taken = 0;
  for (std::uint64_t number = 0; number < 2000; ++number) {
    INFO("mutation " << number);
    const std::string schema = mutate_text(schemas[number % schemas.size()], number);
    REQUIRE_NOTHROW(taken += try_limited(try_schema, schema, kLimit) ? 1 : 0);
    REQUIRE_NOTHROW(try_limited(try_relaxed_schema, schema, kLimit));
    const std::string grammar = mutate_text(grammars[number % grammars.size()], number);
    REQUIRE_NOTHROW(taken += try_limited(try_gbnf, grammar, kLimit) ? 1 : 0);
  }
  CHECK(taken >= 20);
  CHECK(taken < 3000);
}

TEST_CASE("GBNF of random rules: masks are made in bounded work and memory", "[threat-98]") {
  constexpr std::size_t kLimit = 64 << 20;
  int taken = 0;
  for (std::uint64_t seed = 0; seed < (testing::kSanitized ? 100u : 1000u); ++seed) {
    const std::string gbnf = random_gbnf(seed);
    INFO(gbnf);
    REQUIRE_NOTHROW(taken += try_limited(try_gbnf, gbnf, kLimit) ? 1 : 0);
  }
  CHECK(taken >= (testing::kSanitized ? 95 : 950));
}

TEST_CASE("schema compiler: branches, references and keys that multiply stay within 64 MiB",
          "[threat-96]") {
  constexpr std::size_t kLimit = 64 << 20;
  const auto list = [](int count, const std::string& part) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      std::string one = part;
      for (std::size_t at; (at = one.find('@')) != std::string::npos;) {
        one.replace(at, 1, std::to_string(i));
      }
      text += (i > 0 ? "," : "") + one;
    }
    return text;
  };
  const auto chain = [&](int count, const std::string& each, const std::string& last) {
    std::string text = R"({"$ref":"#/$defs/0","$defs":{)";
    for (int i = 0; i < count; ++i) {
      const std::string to = std::to_string(i + 1);
      text += '"' + std::to_string(i) + R"(":{"$ref":"#/$defs/)" + to + '"' + each + "},";
    }
    return text + '"' + std::to_string(count) + "\":" + last + "}}";
  };
  const std::string schemas[] = {
      R"({"allOf":[)" + list(1000, R"({"anyOf":[true]})") + R"(,{"anyOf":[)" + list(2000, "true") +
          "]}]}",
      R"({"allOf":[)" + list(9000, R"({"anyOf":[true]})") + R"(,{"anyOf":[)" + list(20, "true") +
          "]}]}",
      R"({"allOf":[{"anyOf":[true]},{"anyOf":[)" + list(40'000, "true") + "]}]}",
      chain(180, R"(,"anyOf":[true])", R"({"anyOf":[)" + list(2000, "true") + "]}"),
      chain(180, R"(,"anyOf":[{},{}])", "{}"),
      R"({"properties":{)" + list(6000, R"("@":true)") + R"(},"anyOf":[)" +
          list(3000, R"({"required":["@"]})") + "]}",
      R"({"enum":[)" + list(20'000, "@") + R"(],"anyOf":[)" + list(3000, R"({"minimum":@})") + "]}",
      R"({"enum":[)" + list(120'000, "0") + "]}",
      R"({"enum":[)" + list(40'000, "[[]]") + "]}",
      R"({"patternProperties":{)" + list(3000, R"("x@":{"const":@})") + "}}",
      R"({"patternProperties":{)" + list(40, R"("(a|b)*a(a|b){7}c@":{})") + "}}",
      R"({"type":"object","oneOf":[)" + list(3000, R"({"required":["@"]})") + "]}",
      R"({"not":{"anyOf":[)" + list(3000, R"({"properties":{"@":{"const":@}}})") + "]}}",
      R"({"dependentRequired":{)" + list(6000, R"("@":["@0","@1"])") + "}}",
      R"({"type":"object","allOf":[)" +
          list(150, R"({"properties":{"@":{}},"additionalProperties":{"minimum":@}})") + "]}",
      R"({"propertyNames":{"anyOf":[)" + list(1000, R"({"pattern":"^@a*b"})") + "]}}",
      R"({"properties":{)" +
          list(300, R"("@":{"allOf":[)" + list(12, R"({"anyOf":[{},true]})") + "]}") + "}}",
      R"({"items":[)" + list(14'000, R"({"$id":"u:@"})") + "]}",
      R"({"properties":{)" + list(2900, R"("@":{"type":"string","pattern":"(a|b)*a(a|b){7}@"})") +
          "}}",
      R"({"properties":{)" + list(12, R"("@":{"pattern":"(a|b)*a(a|b){12}@"})") + "}}",
      R"({"patternProperties":{)" + list(12, R"("(a|b)*a(a|b){12}@":{})") + "}}",
      R"({"properties":{)" + list(12, R"("@":{"pattern":"^(?=.*@).{9,900}$"})") + "}}",
      R"({"properties":{)" + list(40, R"("@":{"pattern":"^.{@,200}(a.*b.*c@)$"})") + "}}",
      R"({"properties":{)" + list(40, R"("@":{"not":{"pattern":"^.{@,200}(a.*b.*c@)$"}})") + "}}",
      R"({"properties":{)" + list(40, R"("@":{"multipleOf":1.@7,"minimum":1e@})") + "}}",
  };
  std::uint64_t number = 0;
  for (const std::string& schema : schemas) {
    INFO(schema.substr(0, 60) << " ... " << schema.size());
    CHECK(schema.size() <= 256 << 10);
    if (!testing::is_drawn(number++, testing::runs_few_cases() ? 3 : 1)) continue;
    for (const Try compile : {&try_schema, &try_relaxed_schema}) {
      CHECK_NOTHROW(try_limited(compile, schema, kLimit));
    }
  }
}

TEST_CASE("no header of 50 MB takes more than 64 MB to refuse") {
  const std::string tensor = R"("dtype":"F32","shape":[0],"data_offsets":[0,0])";
  const auto refused = [](const std::string& header) {
    const std::string bytes = with_length(header);
    const MemoryLimit limit(kLargeHeaderLimit);
    bool taken = true;
    CHECK_NOTHROW(taken = within_time(try_safetensors, bytes));
    CHECK_FALSE(taken);
    UNSCOPED_INFO(header.substr(0, 24) << "...: " << limit.peak_bytes() << " bytes");
  };
  refused(repeated("{", "[[[["));
  refused(repeated("{\"a\":", "{\"a\":"));
  refused(repeated("{\"", "a"));
  refused(repeated("{\"a\":", "1"));
  refused(repeated("{", " "));
  refused(repeated("{\"a\":{\"shape\":[1", ",1"));
  refused(repeated("{\"a\":{\"dtype\":\"", "F"));

  std::string tensors = "{", metadata = "{\"__metadata__\":{";
  for (int i = 0; tensors.size() < kLargeHeaderBytes; ++i) {
    tensors += "\"" + std::to_string(i) + "\":{" + tensor + "},";
  }
  for (int i = 0; metadata.size() < kLargeHeaderBytes; ++i) {
    metadata += "\"" + std::to_string(i) + "\":\"\",";
  }
  refused(tensors);
  refused(metadata);
}

TEST_CASE("no GGUF file of 50 MB takes more than 128 MB to read or refuse", "[threat-75]") {
  const auto outcome = [](const std::string& counts, const std::string& rest) {
    const std::string bytes = std::string("GGUF\3\0\0\0", 8) + counts + rest;
    const MemoryLimit limit(128 << 20);
    bool taken = false;
    CHECK_NOTHROW(taken = within_time(try_gguf, bytes));
    UNSCOPED_INFO(bytes.size() << " bytes took " << limit.peak_bytes());
    return taken;
  };
  const auto number = [](std::uint64_t value, int size = 8) {
    std::string bytes;
    for (int i = 0; i < size; ++i) bytes += static_cast<char>(value >> (8 * i));
    return bytes;
  };
  const auto array = [&](std::uint32_t type, std::uint64_t size) {
    return with_length("k") + number(9, 4) + number(type, 4) + number(size);
  };
  const std::string one_key = number(0) + number(1);
  const std::size_t million = 1'000'000 / kPart;
  CHECK(outcome(one_key, array(0, 50 * million) + std::string(50 * million, '\0')));
  CHECK(outcome(one_key, array(8, 6 * million) + std::string(48 * million, '\0')));
  CHECK_FALSE(outcome(one_key, array(8, 6 * million) + repeated("", with_length("ab"))));
  CHECK(outcome(one_key, array(8, 5 * million) + repeated("", with_length("ab"))));
  const std::string long_text = with_length(std::string(16 * million, 'x'));
  CHECK(outcome(one_key, array(8, 3) + long_text + long_text + long_text));
  std::string keys, tensors;
  for (int i = 0; i < 65'536; ++i) {
    keys += with_length(std::to_string(i) + std::string(700, 'k')) + number(8, 4) + number(0);
    tensors += with_length(std::to_string(i)) + number(4, 4) + number(1) + number(1) + number(1) +
               number(1) + number(0, 4) + number(32 * std::uint64_t{65'535u - i});
  }
  CHECK(outcome(number(0) + number(65'536), keys));
  CHECK_FALSE(outcome(number(65'536) + number(0), tensors));
  CHECK(outcome(number(65'536) + number(0), tensors + std::string(65'537 * 32, '\0')));
}

TEST_CASE("no config of 1 MB takes more than 64 MB to refuse") {
  std::uint64_t number = 0;
  for (const char* piece : {"[", "{\"a\":", "[],", "{},", "1,", "\"\",", "a", " "}) {
    for (const char* open : {"", "[", "{\"a\":[", "{\"a\":\""}) {
      if (!testing::is_drawn(number++, testing::runs_few_cases() ? 4 : 1)) continue;
      std::string text = open;
      while (text.size() < (1 << 20) - 8) text += piece;
      INFO(open << piece);
      bool taken = true;
      CHECK_NOTHROW(taken = try_limited(try_config, text, 64 << 20));
      CHECK_FALSE(taken);
      CHECK_NOTHROW(taken = try_limited(try_adapter_config, text, 64 << 20));
      CHECK_FALSE(taken);
    }
  }
  std::string keys = "{";
  for (int i = 0; keys.size() < (1 << 20) - 32; ++i) keys += "\"" + std::to_string(i) + "\":0,";
  keys.back() = '}';
  CHECK_NOTHROW(try_limited(try_config, keys, 64 << 20));
}

TEST_CASE("adapter_config.json of many names is refused or read in time and memory by its length",
          "[threat-76]") {
  const auto names = [](std::string text, const std::string& value, std::size_t most) {
    for (std::size_t i = 0; i < most && text.size() < (1 << 20) - 64; ++i) {
      text += (i > 0 ? ",\"x" : "\"x") + std::to_string(i) + "\":" + value;
    }
    return text;
  };
  const std::string front = R"({"peft_type":"LORA","r":4,"lora_alpha":8,)";
  for (const std::string& text : {names("{", "0", -1) + "}", names(front, "null", -1) + "}",
                                  names(front + "\"rank_pattern\":{", "4", -1) + "}}",
                                  names(front + "\"alpha_pattern\":{", "[]", -1) + "}}"}) {
    INFO(text.substr(0, 60) << "...");
    CHECK_NOTHROW(try_limited(try_adapter_config, text, 64 << 20));
  }
  const std::string most = names(front + "\"rank_pattern\":{", "4", 10'000) + "}}";
  CHECK(try_limited(try_adapter_config, most, 64 << 20));
}

}  // namespace lintel::fuzz
