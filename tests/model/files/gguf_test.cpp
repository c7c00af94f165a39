// SPDX-License-Identifier: Apache-2.0
// GGUF files: what is read, how hostile ones are refused, and models in parts.
#include "model/formats/gguf.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/core/errors.h"
#include "model/ops/block_formats.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

const fs::path kVectors = LINTEL_TEST_DATA "/golden/gguf";

std::string bytes_of_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in.good());
  return {std::istreambuf_iterator<char>(in), {}};
}

GgufHeader parse_bytes(std::string_view bytes) {
  const auto read = [bytes](std::uint64_t offset, std::span<char> out) {
    if (offset > bytes.size() || out.size() > bytes.size() - offset) {
      throw std::logic_error("a read past the end");
    }
    std::memcpy(out.data(), bytes.data() + offset, out.size());
  };
  return parse_gguf(read, bytes.size(), "dir/model.gguf");
}

std::string error_of_gguf(std::string_view bytes) {
  try {
    parse_bytes(bytes);
  } catch (const ModelError& error) {
    return error.what();
  }
  return "accepted";
}

std::vector<std::byte> bytes_of_tensor(const GgufFile& file, const TensorInfo& tensor) {
  std::vector<std::byte> bytes(tensor.num_bytes());
  file.read(tensor, 0, bytes);
  return bytes;
}

// Reads a file with the checks that a caller makes besides opening it.
void read_as_a_model(const fs::path& path) {
  const GgufFile file(path);
  file.text("general.architecture");
  for (const TensorInfo& tensor : file.tensors()) {
    if (first_non_finite(tensor.type, bytes_of_tensor(file, tensor))) {
      throw ModelError(file.name() + ": not finite");
    }
  }
}

// Writes a file, value by value.
class Writer {
 public:
  template <typename Value>
  Writer& put(Value value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Writer& text(std::string_view text) {
    put(std::uint64_t{text.size()});
    out_ += text;
    return *this;
  }
  Writer& header(std::uint64_t tensors, std::uint64_t keys) {
    out_ += "GGUF";
    return put(std::uint32_t{3}).put(tensors).put(keys);
  }
  template <typename Value>
  Writer& key(std::string_view name, GgufType type, Value value) {
    return text(name).put(static_cast<std::uint32_t>(type)).put(value);
  }
  Writer& array(std::string_view name, GgufType type, std::uint64_t size) {
    return key(name, GgufType::kArray, static_cast<std::uint32_t>(type)).put(size);
  }
  Writer& tensor(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type,
                 std::uint64_t offset) {
    text(name).put(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t d : dims) put(d);
    return put(type).put(offset);
  }
  Writer& data(std::size_t bytes, std::size_t alignment = 32) {
    out_.resize((out_.size() + alignment - 1) / alignment * alignment + bytes);
    return *this;
  }
  const std::string& bytes() const { return out_; }

 private:
  std::string out_;
};

// A file with a tensor of 64 bytes of F32.
std::string with_tensor(const std::vector<std::uint64_t>& dims, std::uint32_t type = 0,
                        std::uint64_t offset = 0, std::string_view name = "a") {
  return Writer().header(1, 0).tensor(name, dims, type, offset).data(64).bytes();
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string part_name(int number, int count = 3) {
  const auto digits = [](int value) {
    const std::string text = std::to_string(value);
    return std::string(5 - text.size(), '0') + text;
  };
  return "qwen35-q8_0-" + digits(number) + "-of-" + digits(count) + ".gguf";
}

// A part without tensors.
std::string empty_part(int number, int count, int tensors) {
  return Writer()
      .header(0, 3)
      .key("split.no", GgufType::kU16, static_cast<std::uint16_t>(number))
      .key("split.count", GgufType::kU16, static_cast<std::uint16_t>(count))
      .key("split.tensors.count", GgufType::kI32, std::int32_t{tensors})
      .bytes();
}

void copy_parts(const fs::path& directory) {
  for (int i = 1; i <= 3; ++i) {
    fs::copy_file(kVectors / part_name(i), directory / part_name(i),
                  fs::copy_options::overwrite_existing);
  }
}

// One part's bytes with other ones in place of a text's first place.
std::string with_replaced(std::string bytes, const std::string& from, const std::string& to) {
  REQUIRE(from.size() == to.size());
  const std::size_t at = bytes.find(from);
  REQUIRE(at != bytes.npos);
  return bytes.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("container files are accepted or refused as listed", "[gguf]") {
  std::ifstream in(kVectors / "container/cases.json");
  const auto cases = nlohmann::json::parse(in);
  CHECK(cases.size() == 56);
  for (const auto& [name, expected] : cases.items()) {
    INFO(name << ": " << expected["why"].get<std::string>());
    const fs::path path = kVectors / "container" / (name + ".gguf");
    if (expected["accept"].get<bool>()) {
      CHECK_NOTHROW(read_as_a_model(path));
      continue;
    }
    std::string error = "accepted";
    try {
      read_as_a_model(path);
    } catch (const ModelError& found) {
      error = found.what();
    }
    CHECK(error != "accepted");
    CHECK_THAT(error, Contains(path.string() + ": ") && !Contains("\n"));
    CHECK(error.size() < path.string().size() + 300);
    // Only callers check that values are finite, and the architecture.
    const bool of_caller = name == "nan-f32" || name == "inf-scale" || name.starts_with("arch-");
    CHECK((error_of_gguf(bytes_of_file(path)) == "accepted") == of_caller);
  }
}

TEST_CASE("malformed GGUF containers are refused with the reason", "[gguf]") {
  const std::pair<const char*, const char*> reasons[] = {
      {"empty", "found a file of 0 bytes, expected at least 24"},
      {"header-cut", "found a file of 20 bytes, expected at least 24"},
      {"magic", "at its start, expected \"GGUF\""},
      {"magic-ggml", "at its start, expected \"GGUF\""},
      {"version-1", "found version 1, expected 3"},
      {"version-4", "found version 4, expected 3"},
      {"big-endian", "found a big-endian file"},
      {"tensor-count", " tensors in a file of 68 bytes, expected at most 1"},
      {"tensor-count-2", " tensors in a file of 68 bytes, expected at most 1"},
      {"kv-count", " keys in a file of 68 bytes, expected at most 3"},
      {"string-length", " keys in a file of 35 bytes, expected at most 0"},
      {"string-past-end", "end of the file"},
      {"array-length", "end of the file"},
      {"array-overflow", "end of the file"},
      {"array-of-strings-length", "end of the file"},
      {"array-nested", "found an array of arrays"},
      {"value-type", "found value type "},
      {"bool-2", "found bool 2, expected 0 or 1"},
      {"key-twice", "is there twice, expected once"},
      {"key-empty", "found an empty name"},
      {"key-not-ascii", "expected ASCII"},
      {"tensor-twice", "is there twice, expected once"},
      {"tensor-name-empty", "tensor 1: found an empty name"},
      {"tensor-name-long", "expected at most 63"},
      {"dims-0", "found 0 dimensions, expected 1 to 4"},
      {"dims-5", "found 5 dimensions, expected 1 to 4"},
      {"dim-zero", "found a dimension of 0"},
      {"dim-huge", "expected at most 1099511627776"},
      {"dim-negative", "expected at most 1099511627776"},
      {"type-removed", "type 31 (1 tensor, "},
      {"type-unknown", "type 1000 (1 tensor, "},
      {"type-q2_k", "Q2_K (1 tensor, "},
      {"row-not-blocks", "found rows of 48, expected a multiple of 32"},
      {"row-not-blocks-k", "found rows of 384, expected a multiple of 256"},
      {"offset-odd", "expected a multiple of 32"},
      {"offset-past-end", "the bytes of all tensors"},
      {"offset-wraps", "the bytes of all tensors"},
      {"overlap", "the end of tensor "},
      {"data-cut", "the bytes of all tensors"},
      {"data-missing", "the bytes of all tensors"},
      {"alignment-0", "found 0, expected a power of two"},
      {"alignment-24", "found 24, expected a power of two"},
      {"alignment-u64", "found u64, expected u32"}};
  for (const auto& [name, reason] : reasons) {
    INFO(name);
    CHECK_THAT(error_of_gguf(bytes_of_file(kVectors / "container" / (std::string(name) + ".gguf"))),
               Contains(reason));
  }
}

TEST_CASE("a file that is cut anywhere is refused", "[gguf]") {
  const std::string bytes = bytes_of_file(kVectors / "types.gguf");
  constexpr std::size_t kEnd = 18'444;  // of the last tensor; padding follows
  REQUIRE(bytes.size() == kEnd + 20);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const std::string error = error_of_gguf(std::string_view(bytes).substr(0, size));
    if ((error == "accepted") != (size >= kEnd)) FAIL(size << " bytes: " << error);
  }
}

TEST_CASE("values of every type are found by their keys", "[gguf]") {
  const testing::TemporaryDirectory directory;
  Writer writer;
  writer.header(0, 20)
      .key("u8", GgufType::kU8, std::uint8_t{255})
      .key("i8", GgufType::kI8, std::int8_t{-128})
      .key("u16", GgufType::kU16, std::uint16_t{65535})
      .key("i16", GgufType::kI16, std::int16_t{-32768})
      .key("u32", GgufType::kU32, std::uint32_t{4294967295})
      .key("i32", GgufType::kI32, std::numeric_limits<std::int32_t>::min())
      .key("u64", GgufType::kU64, std::uint64_t{9223372036854775807})
      .key("u64.large", GgufType::kU64, std::uint64_t{1} << 63)
      .key("i64", GgufType::kI64, std::numeric_limits<std::int64_t>::min())
      .key("f32", GgufType::kF32, 0.1f)
      .key("f64", GgufType::kF64, 0.1)
      .key("nan", GgufType::kF32, std::numeric_limits<float>::quiet_NaN())
      .key("false", GgufType::kBool, std::uint8_t{0})
      .key("true", GgufType::kBool, std::uint8_t{1})
      .key("zero", GgufType::kI16, std::int16_t{0})
      .key("-0.0", GgufType::kF64, -0.0)
      .array("u16s", GgufType::kU16, 3)
      .put(std::uint16_t{7})
      .put(std::uint16_t{0})
      .put(std::uint16_t{65535})
      .array("strings", GgufType::kString, 3)
      .text("a b")
      .text("")
      .text(std::string_view("\0\xff", 2))
      .array("bools", GgufType::kBool, 2)
      .put(std::uint8_t{1})
      .put(std::uint8_t{0})
      .array("none", GgufType::kString, 0);
  write_file(directory.path() / "m.gguf", writer.bytes());
  const GgufFile file(directory.path() / "m.gguf");
  CHECK(file.keys().size() == 20);
  CHECK(file.integer("u8") == 255);
  CHECK(file.integer("i8") == -128);
  CHECK(file.integer("u16") == 65535);
  CHECK(file.integer("i16") == -32768);
  CHECK(file.integer("u32") == 4294967295);
  CHECK(file.integer("i32") == std::numeric_limits<std::int32_t>::min());
  CHECK(file.integer("u64") == std::numeric_limits<std::int64_t>::max());
  CHECK(file.integer("i64") == std::numeric_limits<std::int64_t>::min());
  CHECK(file.number("f32") == double{0.1f});
  CHECK(file.number("f64") == 0.1);
  CHECK(file.boolean("true"));
  CHECK_FALSE(file.boolean("false"));
  CHECK(file.integers("u16s") == std::vector<std::int64_t>{7, 0, 65535});
  CHECK(file.booleans("bools") == std::vector<bool>{true, false});
  CHECK(file.texts("strings") ==
        std::vector<std::string_view>{"a b", "", std::string_view("\0\xff", 2)});
  CHECK(file.texts("none").empty());
  CHECK(file.has("f32"));
  CHECK_FALSE(file.has("f3"));
  CHECK(file.find_key("f3") == nullptr);
  for (const auto& [key, value] : file.keys()) {
    INFO(key);
    CHECK(value.is_blank() == (key == "false" || key == "zero" || key == "-0.0" || key == "none"));
  }

  CHECK_THROWS_WITH(file.integer("f3"),
                    Contains("m.gguf: key \"f3\": missing, expected an integer"));
  CHECK_THROWS_WITH(file.integer("f32"), Contains("key \"f32\": found f32, expected an integer"));
  CHECK_THROWS_WITH(file.integer("true"), Contains("found bool, expected an integer"));
  CHECK_THROWS_WITH(file.integer("u16s"), Contains("found array of u16, expected an integer"));
  CHECK_THROWS_WITH(file.integer("u64.large"), Contains("found an integer of 2^63 or more"));
  CHECK_THROWS_WITH(file.number("u8"), Contains("found u8, expected a float"));
  CHECK_THROWS_WITH(file.number("nan"), Contains("found nan, expected a finite number"));
  CHECK_THROWS_WITH(file.boolean("u8"), Contains("found u8, expected bool"));
  CHECK_THROWS_WITH(file.text("u8"), Contains("found u8, expected string"));
  CHECK_THROWS_WITH(file.text("strings"), Contains("found array of string, expected string"));
  CHECK_THROWS_WITH(file.texts("u16s"), Contains("found array of u16, expected array of string"));
  CHECK_THROWS_WITH(file.integers("u8"), Contains("found u8, expected array of integers"));
  CHECK_THROWS_WITH(file.integers("bools"), Contains("array of bool, expected array of integers"));
  CHECK_THROWS_WITH(file.booleans("u16s"), Contains("found array of u16, expected array of bool"));
}

TEST_CASE("a file with all value types of another writer is read", "[gguf]") {
  const GgufFile file(kVectors / "container/all-value-types.gguf");
  std::vector<bool> seen(static_cast<std::size_t>(GgufType::kF64) + 1);
  for (const auto& [key, value] : file.keys()) {
    seen[static_cast<std::size_t>(value.type())] = true;
    if (value.is_array()) seen[static_cast<std::size_t>(GgufType::kArray)] = true;
  }
  CHECK(std::all_of(seen.begin(), seen.end(), [](bool type) { return type; }));
}

TEST_CASE("a vocabulary is read with all of its texts", "[gguf]") {
  const GgufFile qwen(kVectors / "vocab-qwen35.gguf");
  CHECK(qwen.tensors().empty());
  CHECK(qwen.text("tokenizer.ggml.model") == "gpt2");
  const std::vector<std::string_view> tokens = qwen.texts("tokenizer.ggml.tokens");
  CHECK(tokens.size() == 1800);
  CHECK(tokens[0] == "!");
  CHECK(std::count(tokens.begin(), tokens.end(), "<tool_call>") == 1);
  CHECK(qwen.integers("tokenizer.ggml.token_type").size() == 1800);
  CHECK(GgufFile(kVectors / "vocab-gpt-2.gguf").text("tokenizer.ggml.model") == "gpt2");
  const GgufFile world(kVectors / "vocab-world.gguf");
  CHECK(world.text("tokenizer.ggml.model") == "rwkv");
  CHECK(world.texts("tokenizer.ggml.tokens").size() == 296);
}

TEST_CASE("a tensor's dimensions are its row-major shape", "[gguf]") {
  const GgufFile file(kVectors / "qwen35-f32.gguf");
  CHECK(file.text("general.architecture") == "qwen35");
  CHECK(file.tensors().size() == 55);
  const TensorInfo* const embedding = file.find("token_embd.weight");
  REQUIRE(embedding != nullptr);
  CHECK(embedding->shape == std::vector<std::int64_t>{80, 32});
  CHECK(embedding->num_elements() == 80 * 32);
  CHECK(embedding->num_bytes() == 80 * 32 * 4);
  CHECK(file.find("token_embd") == nullptr);
  const GgufFile rwkv(kVectors / "rwkv7-f32.gguf");
  REQUIRE(rwkv.find("blk.0.time_mix_lerp_fused.weight") != nullptr);
  CHECK(rwkv.find("blk.0.time_mix_lerp_fused.weight")->shape ==
        std::vector<std::int64_t>{6, 1, 1, 64});
}

TEST_CASE("a part of a tensor is read from where it is asked for", "[gguf]") {
  const GgufFile file(kVectors / "types.gguf");
  for (const TensorInfo& tensor : file.tensors()) {
    const std::vector<std::byte> all = bytes_of_tensor(file, tensor);
    std::vector<std::byte> rest(all.size() - 100);
    file.read(tensor, 100, rest);
    CHECK(std::equal(rest.begin(), rest.end(), all.begin() + 100));
    CHECK_NOTHROW(file.read(tensor, all.size(), {}));
  }
}

TEST_CASE("gguf: numbers of keys and tensors are limited", "[gguf]") {
  const auto error = [](std::uint64_t tensors, std::uint64_t keys) {
    return error_of_gguf(Writer().header(tensors, keys).data(4 << 20).bytes());
  };
  CHECK_THAT(error(0, 65'537), Contains("found 65537 keys") && Contains("at most 65536"));
  CHECK_THAT(error(65'537, 0), Contains("found 65537 tensors") && Contains("at most 65536"));
  CHECK_THAT(error(~std::uint64_t{0}, 0), Contains("found 18446744073709551615 tensors"));
  CHECK_THAT(error(0, ~std::uint64_t{0}), Contains("found 18446744073709551615 keys"));
  CHECK(error(0, 0) == "accepted");
}

TEST_CASE("gguf: the length of strings and names is limited", "[gguf]") {
  const auto with_string = [](std::size_t bytes) {
    return Writer()
        .header(0, 1)
        .text("k")
        .put(std::uint32_t{8})
        .text(std::string(bytes, 'x'))
        .bytes();
  };
  CHECK(error_of_gguf(with_string(16 << 20)) == "accepted");
  CHECK_THAT(error_of_gguf(with_string((16 << 20) + 1)),
             Contains("key \"k\": found a string of 16777217 bytes, expected at most 16777216"));
  const auto with_key = [](std::size_t bytes) {
    return Writer().header(0, 1).key(std::string(bytes, 'k'), GgufType::kU8, 'x').bytes();
  };
  CHECK(error_of_gguf(with_key(65'535)) == "accepted");
  CHECK_THAT(error_of_gguf(with_key(65'536)),
             Contains("key 1: found a name of 65536 bytes, expected at most 65535"));
  CHECK(error_of_gguf(with_tensor({16}, 0, 0, std::string(63, 'n'))) == "accepted");
  CHECK_THAT(error_of_gguf(with_tensor({16}, 0, 0, std::string(64, 'n'))),
             Contains("tensor 1: found a name of 64 bytes, expected at most 63"));
}

TEST_CASE("gguf: all keys together are limited", "[gguf]") {
  // Read from a function, so that no such file exists.
  const std::string front = Writer().header(0, 1).array("k", GgufType::kU8, 256 << 20).bytes();
  std::uint64_t most = 0;
  const auto read = [&](std::uint64_t offset, std::span<char> out) {
    most = std::max(most, offset + out.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = offset + i < front.size() ? front[offset + i] : '\0';
    }
  };
  CHECK_THROWS_WITH(parse_gguf(read, std::uint64_t{1} << 40, "file"),
                    Contains("key \"k\": found more than 268435456 bytes of keys"));
  CHECK(most <= 1 << 16);
}

TEST_CASE("gguf: huge dimensions are refused without overflow", "[gguf]") {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
  CHECK(error_of_gguf(with_tensor({4, 4})) == "accepted");
  CHECK(error_of_gguf(with_tensor({2, 2, 2, 2})) == "accepted");
  CHECK_THAT(error_of_gguf(with_tensor({kMost})), Contains("found 4398046511104 bytes"));
  CHECK_THAT(error_of_gguf(with_tensor({kMost + 1})), Contains("expected at most 1099511627776"));
  CHECK_THAT(error_of_gguf(with_tensor({2, kMost})), Contains("expected at most 1099511627776"));
  CHECK_THAT(error_of_gguf(with_tensor({1u << 31, 1u << 31, 4})),
             Contains("expected at most 1099511627776"));
  CHECK_THAT(error_of_gguf(with_tensor({16, ~std::uint64_t{0}})),
             Contains("found dimension 18446744073709551615"));
}

TEST_CASE("gguf: tensors at bad places are refused", "[gguf]") {
  CHECK_THAT(error_of_gguf(with_tensor({8}, 0, 16)),
             Contains("tensor \"a\": found offset 16, expected a multiple of 32"));
  CHECK(error_of_gguf(with_tensor({8}, 0, 32)) == "accepted");
  CHECK_THAT(error_of_gguf(with_tensor({9}, 0, 32)),
             Contains("found 36 bytes at offset 32, expected their end at most at 64"));
  CHECK_THAT(error_of_gguf(with_tensor({8}, 0, ~std::uint64_t{31})), Contains("found 32 bytes at"));
  const auto two = [](std::uint64_t a, std::uint64_t b) {
    return error_of_gguf(
        Writer().header(2, 0).tensor("a", {16}, 0, a).tensor("b", {8}, 0, b).data(256).bytes());
  };
  CHECK(two(0, 64) == "accepted");
  CHECK(two(32, 0) == "accepted");
  CHECK(two(192, 0) == "accepted");
  CHECK_THAT(two(0, 32), Contains("tensor \"b\": found offset 32, expected at least 64, the end of "
                                  "tensor \"a\""));
  CHECK_THAT(two(0, 0), Contains("expected at least"));
}

TEST_CASE("gguf: a type that is not served is named with its tensors", "[gguf]") {
  Writer writer;
  writer.header(5, 0)
      .tensor("blk.0.attn_norm.weight", {8}, 0, 0)
      .tensor("blk.0.ffn_down.weight", {256}, 23, 32)
      .tensor("x\n", {8}, 11, 64)
      .tensor("blk.1.ffn_down.weight", {256}, 23, 96)
      .tensor("blk.2.ffn_down.weight", {3}, 23, 96)
      .data(1024);
  CHECK_THAT(error_of_gguf(writer.bytes()),
             Contains("dir/model.gguf: IQ4_XS (3 tensors, first blk.0.ffn_down.weight) is not "
                      "served; use a Q8_0 or BF16 file"));
  // Not the kind that the file is, which has other types, too.
  const auto of_kind = [](std::uint32_t kind) {
    return Writer()
        .header(1, 1)
        .key("general.file_type", GgufType::kU32, kind)
        .tensor("a", {32}, 3, 0)
        .data(64)
        .bytes();
  };
  CHECK_THAT(error_of_gguf(of_kind(7)), Contains("Q4_1 (1 tensor, a)") && Contains("use a BF16"));
  CHECK_THAT(error_of_gguf(of_kind(32)), Contains("use a Q8_0 file"));
  CHECK_THAT(error_of_gguf(of_kind(15)), Contains("use a Q8_0 or BF16 file"));
  CHECK_THAT(error_of_gguf(with_tensor({256}, 39)), Contains("MXFP4 (1 tensor, a) is not served"));
  CHECK_THAT(error_of_gguf(with_tensor({256}, 4)), Contains("type 4 (1 tensor, a)"));
  CHECK_THAT(error_of_gguf(with_tensor({256}, 11, 0, "\x1b[31m\xff")),
             !Contains("\x1b") && !Contains("\xff"));
}

TEST_CASE("gguf: a path without such a file is refused by name", "[gguf]") {
  const testing::TemporaryDirectory directory;
  const fs::path path = directory.path() / "model.gguf";
  CHECK_THROWS_WITH(GgufFile(path), Contains(path.string()) && Contains("No such file"));
  CHECK_THROWS_WITH(GgufFile(directory.path()), Contains("expected a regular file"));
}

TEST_CASE("gguf: a file that is cut short or written to while it is open is an error", "[gguf]") {
  const testing::TemporaryDirectory directory;
  const fs::path path = directory.path() / "types.gguf";
  fs::copy_file(kVectors / "types.gguf", path);
  const GgufFile file(path);
  CHECK_NOTHROW(bytes_of_tensor(file, file.tensors().back()));
  fs::resize_file(path, 18'460);  // beyond the last tensor
  CHECK_THROWS_WITH(bytes_of_tensor(file, file.tensors().back()), Contains("was changed"));
  fs::resize_file(path, 100);
  CHECK_THROWS_WITH(bytes_of_tensor(file, file.tensors().back()), Contains("was cut short"));
  CHECK_THROWS_AS(file.read_all([](auto) {}), ModelError);
}

TEST_CASE("gguf parts: the same tensors and keys as in one file", "[gguf]") {
  const GgufFile one(kVectors / "qwen35-q8_0.gguf");
  const GgufFile parts(kVectors / part_name(1));
  REQUIRE(parts.tensors().size() == one.tensors().size());
  std::size_t last_file = 0;
  for (const TensorInfo& tensor : parts.tensors()) {
    INFO(tensor.name);
    const TensorInfo* const same = one.find(tensor.name);
    REQUIRE(same != nullptr);
    CHECK(parts.find(tensor.name) == &tensor);
    CHECK(tensor.shape == same->shape);
    CHECK(tensor.type == same->type);
    CHECK(bytes_of_tensor(parts, tensor) == bytes_of_tensor(one, *same));
    last_file = std::max(last_file, tensor.file);
  }
  CHECK(last_file == 2);
  CHECK(parts.keys().size() == one.keys().size() + 3);
  CHECK(parts.text("general.architecture") == one.text("general.architecture"));
}

TEST_CASE("gguf parts: all bytes are those of each part, after its length", "[gguf]") {
  std::string expected;
  for (int i = 1; i <= 3; ++i) {
    const std::string bytes = bytes_of_file(kVectors / part_name(i));
    expected += Writer().put(std::uint64_t{bytes.size()}).bytes() + bytes;
  }
  std::string found;
  GgufFile(kVectors / part_name(1)).read_all([&](std::span<const std::byte> piece) {
    found.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  CHECK(found == expected);
}

TEST_CASE("gguf parts: another than the first is refused, with the first", "[gguf]") {
  CHECK_THROWS_WITH(
      GgufFile(kVectors / part_name(2)),
      Contains("is part 2 of 3; give the first part, qwen35-q8_0-00001-of-00003.gguf"));
  const testing::TemporaryDirectory directory;
  const auto error = [&](const std::string& name) -> std::string {
    try {
      GgufFile file(directory.path() / name);
    } catch (const ModelError& found) {
      return found.what();
    }
    return "accepted";
  };
  CHECK_THAT(error("m-00000-of-00002.gguf"), Contains("give the first part"));
  CHECK_THAT(error("m-00002-of-00001.gguf"), Contains("give the first part"));
  CHECK_THAT(error("m-00001-of-00000.gguf"), Contains("found 0 parts in the file's name"));
  CHECK_THAT(error("m-00001-of-01025.gguf"), Contains("found 1025 parts in the file's name"));
  // Names of no parts.
  for (const char* const name : {"m-0001-of-00002.gguf", "m-00001-of-0002.gguf", "00002.gguf",
                                 "-of-00002.gguf", "m-00002-of-00002", "m_00002-of-00002.gguf"}) {
    CHECK_THAT(error(name), Contains("No such file"));
  }
}

TEST_CASE("gguf parts: a missing part is refused by its name", "[gguf]") {
  const testing::TemporaryDirectory directory;
  copy_parts(directory.path());
  CHECK_NOTHROW(GgufFile(directory.path() / part_name(1)));
  for (const int missing : {2, 3}) {
    copy_parts(directory.path());
    fs::remove(directory.path() / part_name(missing));
    CHECK_THROWS_WITH(GgufFile(directory.path() / part_name(1)),
                      Contains(part_name(missing) + ": cannot open: No such file"));
  }
}

TEST_CASE("gguf parts: places and counts must agree", "[gguf]") {
  const testing::TemporaryDirectory directory;
  const auto error_with = [&](int part, const std::string& bytes) -> std::string {
    copy_parts(directory.path());
    write_file(directory.path() / part_name(part), bytes);
    try {
      GgufFile file(directory.path() / part_name(1));
    } catch (const ModelError& found) {
      return found.what();
    }
    return "accepted";
  };
  const std::string third = bytes_of_file(kVectors / part_name(3));
  CHECK(error_with(3, third) == "accepted");
  const std::string second = bytes_of_file(kVectors / part_name(2));
  CHECK_THAT(error_with(3, second), Contains("key \"split.no\": found 1, expected 2"));
  const std::string number("split.no\2\0\0\0", 12);
  CHECK_THAT(error_with(3, with_replaced(second, number + '\1', number + '\2')),
             Contains("tensor \"token_embd.weight\": is also in ") &&
                 Contains(part_name(2) + ", expected in one part"));
  CHECK_THAT(error_with(3, empty_part(1, 3, 55)),
             Contains(part_name(3) + ": key \"split.no\": found 1, expected 2"));
  CHECK_THAT(error_with(3, empty_part(2, 4, 55)),
             Contains(part_name(3) + ": key \"split.count\": found 4, expected 3"));
  CHECK_THAT(error_with(3, empty_part(2, 3, 54)),
             Contains(part_name(3) + ": key \"split.tensors.count\": found 54, expected 55"));
  CHECK_THAT(error_with(3, empty_part(2, 3, 55)),
             Contains("key \"split.tensors.count\": found 55, expected 27, the tensors of all"));
  CHECK_THAT(error_with(2, Writer().header(0, 0).bytes()),
             Contains("key \"split.no\": missing, expected an integer"));
  CHECK_THAT(error_with(3, third.substr(0, 1000)), Contains(part_name(3) + ": "));
  CHECK_THAT(error_with(1, with_replaced(bytes_of_file(kVectors / part_name(1)), "split.count",
                                         "split.cound")),
             Contains("key \"split.count\": missing"));
}

TEST_CASE("gguf parts: a file whose name does not say so is not a part", "[gguf]") {
  const testing::TemporaryDirectory directory;
  for (const char* const name : {"model.gguf", "model-00001-of-00001.gguf"}) {
    const fs::path path = directory.path() / name;
    fs::copy_file(kVectors / part_name(1), path);
    CHECK_THROWS_WITH(GgufFile(path), Contains("key \"split.count\": found 3 parts, expected 1"));
    // Empty parts remain when parts are joined again.
    write_file(path, empty_part(0, 0, 0));
    CHECK_NOTHROW(GgufFile(path));
    write_file(path, empty_part(0, 1, 0));
    CHECK_NOTHROW(GgufFile(path));
    write_file(path, Writer().header(0, 0).bytes());
    CHECK_NOTHROW(GgufFile(path));
  }
}

}  // namespace lintel
