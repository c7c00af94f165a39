// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/inputs.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/config/config.h"
#include "model/formats/gguf_header.h"
#include "model/formats/safetensors.h"
#include "model/lora/adapter.h"
#include "model/tokenizer/bpe_tokenizer.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/world.h"
#include "server/grammar/gbnf.h"
#include "server/grammar/schema.h"
#include "server/grammar/token_matcher.h"
#include "server/sessions/snapshot.h"

namespace lintel::fuzz {
namespace {

void require(bool condition, const char* promise) {
  if (!condition) throw std::logic_error(std::string("broken promise: ") + promise);
}

void check_printable(const std::string& text, const char* begin) {
  require(text.starts_with(begin), "an error names the file");
  require(text.size() < 2000, "an error is short");
  require(std::none_of(text.begin(), text.end(),
                       [](char c) { return static_cast<unsigned char>(c) < 0x20; }),
          "an error is printable");
}

void check_text(const std::string& text) { check_printable(text, "FILE: "); }

// Every byte, words, marks, numbers, and what files of seeds name.
std::string text_to_encode() {
  std::string text =
      "The it's in\n\n  t\xCC\xA3\xCC\x81 1234 <|end|><think><s>\xE4\xBD\xA0\xE2\x96\x81t";
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  for (int i = 0; i < 100; ++i) text += "the";
  return text;
}

void check_tokenizer(const Tokenizer& tokenizer) {
  const std::string text = text_to_encode();
  for (const bool parse : {false, true}) {
    const EncodeOptions options{.add_special = parse, .parse_special = parse, .parse_added = parse};
    for (const std::int32_t id : tokenizer.encode(text, options)) {
      require(id >= 0 && id < tokenizer.vocab_size(), "ids are below the vocabulary's size");
      require(parse || !tokenizer.is_special(id), "a text does not become a special token");
    }
  }
}

constexpr std::size_t kCallBudget = 100'000;  // of masks, some 0.5 ms

// Texts of a few tokens, each of the mask.
void check_grammar(const std::shared_ptr<const grammar::Grammar>& made) {
  static const auto vocabulary = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    for (const char* const token : {"{\"", "\":", "\",", "\"}", "[[", "]]", ", ", "aa", "12"}) {
      tokens.emplace_back(token);
    }
    tokens.emplace_back();
    const auto end = static_cast<std::int32_t>(tokens.size() - 1);
    return std::make_shared<const grammar::Vocabulary>(std::move(tokens),
                                                       std::vector<std::int32_t>{end}, 1 << 20);
  }();
  grammar::TokenMatcher matcher(made, vocabulary);
  std::size_t calls = 0;
  for (std::size_t step = 0; step < 12 && !matcher.ended(); ++step) {
    // Masks that take long are not for the end of a test.
    for (std::size_t budget = 0; !matcher.prepare(&budget); budget = kCallBudget) {
      if (++calls > 20) return;
    }
    if (matcher.exceeded()) return;
    const std::span<const std::uint64_t> mask = matcher.mask();
    std::vector<std::int32_t> ids;
    for (std::size_t id = 0; id < vocabulary->size(); ++id) {
      if ((mask[id / 64] >> (id % 64) & 1) != 0) ids.push_back(static_cast<std::int32_t>(id));
    }
    require(!ids.empty(), "every started text can be ended");
    require(matcher.advance(ids[step * 7 % ids.size()]), "a token of the mask is taken");
  }
}

bool try_grammar(std::shared_ptr<const grammar::Grammar> (*compile)(std::string_view),
                 std::string_view bytes) {
  std::shared_ptr<const grammar::Grammar> made;
  try {
    made = compile(bytes);
  } catch (const grammar::GrammarError& error) {
    check_printable(error.what(), "");
    return false;
  }
  require(made->bytes() <= grammar::kMaxGrammarBytes, "a grammar is within its limits");
  check_grammar(made);
  return true;
}

}  // namespace

bool try_schema(std::string_view bytes) {
  return try_grammar([](std::string_view text) { return grammar::compile_schema(text); }, bytes);
}

bool try_relaxed_schema(std::string_view bytes) {
  return try_grammar(
      [](std::string_view text) {
        grammar::SchemaOptions options;
        options.relaxed = true;
        std::vector<grammar::RelaxedKeyword> relaxed;
        return grammar::compile_schema(text, options, &relaxed);
      },
      bytes);
}

bool try_gbnf(std::string_view bytes) {
  return try_grammar(
      [](std::string_view text) {
        static const ByteTokenizer tokenizer;
        return grammar::compile_gbnf(grammar::spell_tokens(text, tokenizer));
      },
      bytes);
}

bool try_config(std::string_view bytes) {
  ModelConfig config;
  try {
    config = parse_config(bytes, "FILE");
  } catch (const ModelError& error) {
    check_text(error.what());
    return false;
  }
  const std::string text = to_json(config);
  require(to_json(parse_config(text, "FILE")) == text, "a config that is written reads back");
  require(config.attention.size() == static_cast<std::size_t>(config.n_layers), "one a layer");
  return true;
}

bool try_safetensors(std::string_view bytes) {
  SafetensorsHeader header;
  try {
    header = parse_safetensors(bytes, bytes.size(), "FILE");
  } catch (const ModelError& error) {
    check_text(error.what());
    return false;
  }
  require(header.data_offset <= bytes.size(), "data lies within the file");
  const std::uint64_t data_bytes = bytes.size() - header.data_offset;
  std::uint64_t covered = 0;
  for (const auto& [name, tensor] : header.tensors) {
    require(name == tensor.name, "a tensor is found by its name");
    require(tensor.begin <= tensor.end && tensor.end <= data_bytes,
            "a tensor lies within the data");
    std::uint64_t values = 1;
    for (const std::int64_t d : tensor.shape) values *= static_cast<std::uint64_t>(d);
    require(values * bytes_per_value(tensor.type) == tensor.end - tensor.begin, "shape fits bytes");
    covered += tensor.end - tensor.begin;
  }
  require(covered == data_bytes, "tensors cover the data");
  return true;
}

bool try_gguf(std::string_view bytes) {
  const auto read = [bytes](std::uint64_t offset, std::span<char> out) {
    require(offset <= bytes.size() && out.size() <= bytes.size() - offset, "no read past the end");
    std::memcpy(out.data(), bytes.data() + offset, out.size());
  };
  GgufHeader header;
  try {
    header = parse_gguf(read, bytes.size(), "FILE");
  } catch (const ModelError& error) {
    check_text(error.what());
    return false;
  }
  for (const auto& [key, value] : header.keys) {
    require(!key.empty() && key.size() <= kMaxGgufKeyBytes, "a key is within its limits");
    for (std::size_t i = 0; i < value.size(); ++i) {
      const int types = value.integer(i).has_value() + value.number(i).has_value() +
                        value.boolean(i).has_value() + value.text(i).has_value();
      require(types == 1 || (types == 0 && value.type() == GgufType::kU64), "a value has a type");
    }
  }
  std::vector<const TensorInfo*> by_place;
  for (const TensorInfo& tensor : header.tensors) {
    require(!tensor.shape.empty() && tensor.shape.size() <= kMaxGgufDimensions,
            "a shape is within its limits");
    require(std::ranges::all_of(tensor.shape, [](auto d) { return d >= 1; }), "no empty tensor");
    require(static_cast<std::size_t>(tensor.shape.back()) % values_per_block(tensor.type) == 0,
            "rows are of whole blocks");
    require(tensor.offset <= bytes.size() && tensor.num_bytes() <= bytes.size() - tensor.offset,
            "a tensor lies within the file");
    by_place.push_back(&tensor);
  }
  std::ranges::sort(by_place, {}, [](const TensorInfo* tensor) { return tensor->offset; });
  for (std::size_t i = 1; i < by_place.size(); ++i) {
    require(by_place[i - 1]->offset + by_place[i - 1]->num_bytes() <= by_place[i]->offset,
            "tensors do not overlap");
  }
  return true;
}

bool try_adapter_config(std::string_view bytes) {
  AdapterConfig config;
  try {
    config = parse_adapter_config(bytes, "FILE");
  } catch (const ModelError& error) {
    check_text(error.what());
    return false;
  }
  for (const char* const module : {"predictor", "transformer.layers.0.linear1"}) {
    const int rank = config.rank_of(module);
    require(rank >= 1 && rank <= kMaxAdapterRank, "a rank is within its limits");
    const double scaling = config.scaling_of(module);
    require(scaling >= 0.0 && scaling <= kMaxAdapterAlpha, "a scaling is within its limits");
  }
  return true;
}

bool try_tokenizer_json(std::string_view bytes) {
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    tokenizer = parse_tokenizer_json(bytes, "FILE", {}, "CONFIG");
  } catch (const ModelError& error) {
    check_printable(error.what(), "FILE");
    return false;
  }
  check_tokenizer(*tokenizer);
  return true;
}

bool try_world_vocabulary(std::string_view bytes) {
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    tokenizer = make_world_tokenizer(parse_world_vocabulary(bytes, "FILE"), {}, "FILE");
  } catch (const ModelError& error) {
    check_printable(error.what(), "FILE");
    return false;
  }
  check_tokenizer(*tokenizer);
  const std::string text = text_to_encode();
  std::string decoded;
  for (const std::int32_t id : tokenizer->encode(text)) decoded += tokenizer->bytes_of(id);
  require(decoded == text, "the tokens of a text are its bytes");
  return true;
}

bool try_snapshot(std::string_view bytes) {
  const auto all = std::as_bytes(std::span(bytes));
  const auto in_pieces = [&](std::size_t size) -> std::optional<SnapshotOf> {
    try {
      SnapshotReader reader(std::max<std::size_t>(all.size(), 1));
      for (std::size_t at = 0; at < all.size(); at += size) {
        reader.add(all.subspan(at, std::min(size, all.size() - at)));
      }
      return reader.finish();
    } catch (const SnapshotError& error) {
      check_printable(error.what(), "snapshot: ");
      return std::nullopt;
    }
  };
  const std::optional<SnapshotOf> taken = in_pieces(all.size() + 1);
  require(taken.has_value() == in_pieces(100).has_value(), "pieces make no difference");
  if (!taken) return false;
  const SessionImage& image = taken->image;
  require(image.base >= 0 && image.base <= image.position, "the history ends at the position");
  require(image.tokens.empty() ||
              image.tokens.size() == static_cast<std::size_t>(image.position - image.base),
          "all values or none");
  require(std::ranges::all_of(image.tokens, [](auto value) { return value >= 0; }),
          "values are not negative");
  require(image.state_position >= 0 && image.state_position <= image.position,
          "a state is not ahead of its session");
  const std::vector<std::byte> written = write_snapshot(*taken);
  require(write_snapshot(read_snapshot(written)) == written, "what is written reads back");
  return true;
}

}  // namespace lintel::fuzz
