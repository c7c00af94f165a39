// SPDX-License-Identifier: Apache-2.0
// safetensors files: what is read and written, and how every hostile header is refused.
#include "model/formats/safetensors.h"

#include <sys/stat.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>

#include "model/core/errors.h"
#include "model/core/float_formats.h"
#include "model/formats/gguf.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

using Catch::Matchers::Contains;

std::string file_of(const std::string& header, const std::string& data,
                    std::uint64_t length_off_by = 0) {
  const std::uint64_t length = header.size() + length_off_by;
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
  return bytes + header + data;
}

std::string error_of_bytes(const std::string& bytes) {
  try {
    parse_safetensors(bytes, bytes.size(), "dir/model.safetensors");
  } catch (const ModelError& error) {
    return error.what();
  }
  return "accepted";
}

std::string error_of(const std::string& header, std::size_t data_bytes = 0) {
  return error_of_bytes(file_of(header, std::string(data_bytes, '\0')));
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

}  // namespace

TEST_CASE("a header's tensors are found with type, shape and place") {
  const std::string header = R"({"__metadata__":{"format":"pt"},"a":)" +
                             entry("\"F32\"", "[2,3]", "[4,28]") + R"(,"b.c":)" +
                             entry("\"BF16\"", "[2]", "[0,4]") + R"(,"s":)" +
                             entry("\"F16\"", "[]", "[28,30]") + R"(,"empty":)" +
                             entry("\"F32\"", "[0,7]", "[4,4]") + "}   ";
  const std::string file = file_of(header, std::string(30, '\0'));
  const SafetensorsHeader parsed = parse_safetensors(file, file.size(), "file");
  CHECK(parsed.data_offset == 8 + header.size());
  REQUIRE(parsed.tensors.size() == 4);
  const TensorEntry& a = parsed.tensors.at("a");
  CHECK(a.type == TensorType::kF32);
  CHECK(a.shape == std::vector<std::int64_t>{2, 3});
  CHECK(a.begin == 4);
  CHECK(a.end == 28);
  CHECK(a.num_elements() == 6);
  CHECK(parsed.tensors.at("s").num_elements() == 1);
  CHECK(parsed.tensors.at("empty").num_elements() == 0);
}

TEST_CASE("a header longer than the file or than the limit is refused with both lengths") {
  CHECK_THAT(error_of_bytes(""), Contains("0 bytes, expected at least 8"));
  CHECK_THAT(error_of_bytes("1234567"), Contains("7 bytes, expected at least 8"));
  CHECK_THAT(error_of_bytes(file_of("{}", "", 1)),
             Contains("header of 3 bytes, expected at most the 2"));
  CHECK_THAT(error_of_bytes(std::string(8, '\xff')),
             Contains("header of 18446744073709551615 bytes, expected at most 100000000"));
  CHECK_THAT(error_of_bytes(file_of("{}", "", 100'000'001 - 2)), Contains("100000001 bytes"));
}

TEST_CASE("a header that is not a JSON object of tensors is refused") {
  for (const char* header : {"", " {}", "[]", "null", "\xef\xbb\xbf{}", "{", "{]", "{}x", "{} {}",
                             "{\"a\":1,}", "{'a':1}", "{\"\xff\":{}}", "{\"a\":{}"}) {
    CHECK_THAT(error_of(header), Contains("dir/model.safetensors: "));
  }
  for (const char* value : {"1", "-1", "1.5", "\"F32\"", "[]", "null", "true"}) {
    CHECK_THAT(error_of(std::string("{\"a\":") + value + "}"),
               Contains("tensor \"a\": found ") && Contains("expected an object"));
  }
  for (const char* value : {"1", "[]", "{}", "null"}) {
    CHECK_THAT(error_of(std::string("{\"__metadata__\":{\"a\":") + value + "}}"),
               Contains("\"__metadata__\": found ") && Contains("expected a string"));
  }
}

TEST_CASE("a tensor's fields are each there once and of their type") {
  const auto error = [](const std::string& tensor) {
    return error_of("{\"a\":" + tensor + "}", 4);
  };
  CHECK(error(entry("\"F32\"", "[1]", "[0,4]")) == "accepted");
  CHECK_THAT(error(R"({"shape":[1],"data_offsets":[0,4]})"), Contains("\"dtype\" is missing"));
  CHECK_THAT(error(R"({"dtype":"F32","data_offsets":[0,4]})"), Contains("\"shape\" is missing"));
  CHECK_THAT(error(R"({"dtype":"F32","shape":[1]})"), Contains("\"data_offsets\" is missing"));
  CHECK_THAT(error(R"({"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})"),
             Contains("key \"dtype\" is there twice"));
  CHECK_THAT(error(R"({"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]})"),
             Contains("key \"shape\" is there twice"));
  CHECK_THAT(error(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"scale":1})"),
             Contains("found key \"scale\", expected dtype, shape or data_offsets"));
  for (const char* dtype : {"\"F64\"", "\"I8\"", "\"f32\"", "\"\"", "1", "null", "[]", "{}"}) {
    CHECK_THAT(error(entry(dtype, "[1]", "[0,4]")), Contains("tensor \"a\": "));
  }
  CHECK_THAT(error(entry("\"F64\"", "[1]", "[0,4]")),
             Contains("found dtype \"F64\", expected F32, F16 or BF16"));
  for (const char* shape : {"[-1]", "[1.0]", "[\"1\"]", "[[1]]", "[{}]", "[null]", "1", "{}"}) {
    CHECK_THAT(error(entry("\"F32\"", shape, "[0,4]")), Contains("tensor \"a\": shape: found "));
  }
  for (const char* offsets : {"[0]", "[]", "[0,4,4]", "[0,-4]", "[0,4.0]", "[\"0\",4]", "4"}) {
    CHECK_THAT(error(entry("\"F32\"", "[1]", offsets)), Contains("data_offsets"));
  }
}

TEST_CASE("huge shapes are refused without overflow") {
  const auto error = [](const std::string& shape, const std::string& offsets) {
    return error_of("{\"a\":" + entry("\"F32\"", shape, offsets) + "}", 4);
  };
  CHECK_THAT(error("[1099511627777]", "[0,4]"), Contains("found dimension 1099511627777"));
  CHECK_THAT(error("[18446744073709551615]", "[0,4]"), Contains("18446744073709551615"));
  CHECK_THAT(error("[18446744073709551616]", "[0,4]"), Contains("18446744073709551616"));
  // 2^30 * 2^32 * 4 bytes = 2^64, which is 0 to a careless product.
  CHECK_THAT(error("[1073741824,4294967296]", "[0,0]"), Contains("expected less than 2^64 bytes"));
  CHECK_THAT(error("[1,1,1,1,1,1,1,1,1]", "[0,4]"), Contains("more than 8 dimensions"));
}

TEST_CASE("offsets that do not fit shape and file are refused") {
  const auto error = [](const std::string& offsets) {
    return error_of("{\"a\":" + entry("\"F32\"", "[2]", offsets) + "}", 8);
  };
  CHECK(error("[0,8]") == "accepted");
  CHECK_THAT(error("[0,12]"), Contains("[0, 12], expected at most 8"));
  CHECK_THAT(error("[0,18446744073709551615]"), Contains("expected at most 8"));
  CHECK_THAT(error("[8,0]"), Contains("[8, 0], expected them in ascending order"));
  CHECK_THAT(error("[0,4]"), Contains("4 bytes, expected 8 for F32 [2]"));
}

TEST_CASE("overlaps, holes and trailing bytes are refused") {
  const auto error = [](const std::string& a, const std::string& b, std::size_t data_bytes) {
    return error_of(
        "{\"a\":" + entry("\"F32\"", "[2]", a) + ",\"b\":" + entry("\"F32\"", "[2]", b) + "}",
        data_bytes);
  };
  CHECK(error("[0,8]", "[8,16]", 16) == "accepted");
  CHECK(error("[8,16]", "[0,8]", 16) == "accepted");
  CHECK_THAT(error("[0,8]", "[4,12]", 12),
             Contains("tensor \"b\": overlaps the tensor before it: found offset 4, expected 8"));
  CHECK_THAT(error("[0,8]", "[0,8]", 8), Contains("overlaps"));
  CHECK_THAT(error("[0,8]", "[12,20]", 20),
             Contains("tensor \"b\": follows a hole: found offset 12, expected 8"));
  CHECK_THAT(error("[4,12]", "[12,20]", 20), Contains("tensor \"a\": follows a hole"));
  CHECK_THAT(error("[0,8]", "[8,16]", 17), Contains("found 17 bytes") && Contains("expected 16"));
  CHECK_THAT(error_of("{}", 1), Contains("found 1 bytes after the header, expected 0"));
}

TEST_CASE("a tensor name that is there twice is refused") {
  CHECK_THAT(error_of("{\"a\":" + entry("\"F32\"", "[0]", "[0,0]") +
                      ",\"a\":" + entry("\"F32\"", "[0]", "[0,0]") + "}"),
             Contains("tensor \"a\": is there twice"));
  CHECK_THAT(error_of(R"({"__metadata__":{},"__metadata__":{}})"), Contains("is there twice"));
  CHECK_THAT(error_of(R"({"__metadata__":{"a":"","a":""}})"), Contains("is there twice"));
}

TEST_CASE("a header that would take much memory is refused while reading") {
  CHECK_THAT(error_of("{\"" + std::string(2'000'000, 'a') + "\":1}"), Contains("1048576 bytes"));
  CHECK_THAT(error_of("{\"a\":" + std::string(2'000'000, '1') + "}"), Contains("1048576 bytes"));
  CHECK_THAT(error_of("{\"" + std::string(2000, 'a') + "\":{}}"), Contains("at most 1024"));
  CHECK_THAT(error_of("{\"a\":" + std::string(1'000'000, '[')), Contains("expected an object"));
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += "{\"a\":";
  CHECK_THAT(error_of(nested), Contains("expected dtype, shape or data_offsets"));
  std::string many = "{";
  for (int i = 0; i < 100'001; ++i) {
    many += "\"" + std::to_string(i) + "\":" + entry("\"F32\"", "[0]", "[0,0]") + ",";
  }
  many.back() = '}';
  CHECK_THAT(error_of(many), Contains("more than 100000 tensors"));
  std::string metadata = "{\"__metadata__\":{";
  for (int i = 0; i < 10'001; ++i) metadata += "\"" + std::to_string(i) + "\":\"\",";
  metadata.back() = '}';
  CHECK_THAT(error_of(metadata + "}"), Contains("more than 10000 entries"));
}

TEST_CASE("a string's quotes and backslashes do not hide its length") {
  CHECK_THAT(error_of("{\"" + std::string(1'100'000, '\\') + "\":1}"), Contains("1048576 bytes"));
  std::string quotes = "{\"";
  for (int i = 0; i < 600'000; ++i) quotes += "\\\"";
  CHECK_THAT(error_of(quotes + "\":1}"), Contains("1048576 bytes"));
}

TEST_CASE("errors stay short and printable for any header") {
  const std::string error = error_of("{\"a\\n\\u001b[31m" + std::string(900, 'b') + "\":7}");
  CHECK(error.size() < 400);
  CHECK_THAT(error, !Contains("\n") && !Contains("\x1b"));
}

TEST_CASE("a written file reads back, F32 bit for bit and the others rounded to nearest") {
  const testing::TemporaryDirectory directory;
  const auto path = directory.path() / "t.safetensors";
  std::mt19937 generator(7);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> a(35), b(1, 0.1f);
  for (float& v : a) v = normal(generator);
  const std::vector<TensorToWrite> tensors = {{"z \"a\"", {5, 7}, a}, {"b", {}, b}, {"e", {0}, {}}};
  for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBf16}) {
    write_safetensors(path, tensors, type);
    const SafetensorsFile file(path);
    CHECK(file.tensors().size() == 3);
    CHECK(file.tensor("z \"a\"").type == type);
    CHECK(file.tensor("z \"a\"").shape == std::vector<std::int64_t>{5, 7});
    CHECK(file.read_f32("e").empty());
    const std::vector<float> read = file.read_f32("z \"a\"");
    for (std::size_t i = 0; i < a.size(); ++i) {
      const float expected = type == TensorType::kF32   ? a[i]
                             : type == TensorType::kF16 ? f16_to_f32(f32_to_f16(a[i]))
                                                        : bf16_to_f32(f32_to_bf16(a[i]));
      CHECK(read[i] == expected);
    }
  }
  CHECK_THROWS_AS(write_safetensors(directory.path() / "no/such/t", tensors), ModelError);
  CHECK_THROWS_AS(write_safetensors(path, std::vector<TensorToWrite>{{"a", {2}, b}}),
                  std::invalid_argument);
  CHECK_THROWS_AS(write_safetensors(path, std::vector<TensorToWrite>{{"b", {1}, b}, {"b", {1}, b}}),
                  std::invalid_argument);
}

TEST_CASE("a Git LFS pointer in the place of weights is refused by that name") {
  const testing::TemporaryDirectory directory;
  const auto path = directory.path() / "model.safetensors";
  std::ofstream(path) << "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n";
  CHECK_THROWS_WITH(SafetensorsFile(path), Contains(path.string() + ": is a pointer of Git LFS") &&
                                               Contains("`git lfs pull`"));
  CHECK_THROWS_WITH(GgufFile(path), Contains("is a pointer of Git LFS"));
  std::filesystem::rename(path, directory.path() / "tokenizer.json");
  CHECK_THROWS_WITH(load_tokenizer(directory.path()),
                    Contains("tokenizer.json: is a pointer of Git LFS"));
}

TEST_CASE("a path without a file of tensors is refused by name") {
  const testing::TemporaryDirectory directory;
  const auto path = directory.path() / "model.safetensors";
  CHECK_THROWS_WITH(SafetensorsFile(path), Contains(path.string()) && Contains("No such file"));
  CHECK_THROWS_WITH(SafetensorsFile(directory.path()), Contains("expected a regular file"));
  std::ofstream(path).flush();
  CHECK_THROWS_WITH(SafetensorsFile(path), Contains("0 bytes, expected at least 8"));
  const auto fifo = directory.path() / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(SafetensorsFile(fifo), Contains("expected a regular file"));
}

TEST_CASE("a file that is cut short or written to while it is open is an error, not a crash") {
  const testing::TemporaryDirectory directory;
  const auto path = directory.path() / "model.safetensors";
  const std::vector<float> values(100'000, 1.5f);
  for (const TensorType type : {TensorType::kF32, TensorType::kBf16, TensorType::kF16}) {
    write_safetensors(path, std::vector<TensorToWrite>{{"a", {100'000}, values}}, type);
    const SafetensorsFile file(path);
    CHECK(file.read_f32("a") == values);
    CHECK_NOTHROW(file.check_unchanged());
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
    CHECK_THROWS_WITH(file.read_f32("a"), Catch::Contains("model.safetensors: was cut short"));
    CHECK_THROWS_WITH(file.check_unchanged(), Catch::Contains("was changed while it was read"));
    // Replaced by rename: what is open stays as it was.
    write_safetensors(path, std::vector<TensorToWrite>{{"a", {100'000}, values}}, type);
    const SafetensorsFile again(path);
    write_safetensors(directory.path() / "next", std::vector<TensorToWrite>{}, type);
    std::filesystem::rename(directory.path() / "next", path);
    CHECK(again.read_f32("a") == values);
    CHECK_NOTHROW(again.check_unchanged());
  }
}

TEST_CASE("a tensor of integers is no weight") {
  const testing::TemporaryDirectory directory;
  const auto path = directory.path() / "t.safetensors";
  std::ofstream(path) << file_of("{\"a\":" + entry("\"I32\"", "[2]", "[0,8]") + "}",
                                 std::string("\1\0\0\0\xff\xff\xff\xff", 8));
  const SafetensorsFile file(path);
  CHECK(file.read_i32("a") == std::vector<std::int32_t>{1, -1});
  CHECK_THROWS_WITH(file.read_f32("a"), Contains("\"a\": found dtype I32, expected F32, F16"));
  CHECK_THROWS_WITH(file.tensor("b"), Contains("tensor \"b\": missing"));
}

TEST_CASE("every 16-bit float widens to its value and narrows back to its bits") {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const std::uint16_t b = static_cast<std::uint16_t>(bits);
    const int exponent = (b >> 10) & 31;
    const double mantissa = b & 1023;
    const double sign = (b & 0x8000) != 0 ? -1.0 : 1.0;
    const float half = f16_to_f32(b);
    if (exponent < 31) {
      const double expected =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      if (half != sign * expected || f32_to_f16(half) != b) FAIL("f16 bits " << bits);
    } else if (mantissa == 0 ? half != sign * INFINITY || f32_to_f16(half) != b
                             : !std::isnan(half) || !std::isnan(f16_to_f32(f32_to_f16(half)))) {
      FAIL("f16 bits " << bits);
    }
    const float brain = bf16_to_f32(b);
    if (!std::isnan(brain) ? f32_to_bf16(brain) != b
                           : !std::isnan(bf16_to_f32(f32_to_bf16(brain)))) {
      FAIL("bf16 bits " << bits);
    }
  }
}

TEST_CASE("narrowing rounds to nearest, ties to even") {
  // The value half way between two neighbours, and the floats beside it.
  for (std::uint16_t b = 0; b < 0x7bff; ++b) {
    const float low = f16_to_f32(b), high = f16_to_f32(static_cast<std::uint16_t>(b + 1));
    const float middle = low + (high - low) / 2;
    const int even = b % 2 == 0 ? b : b + 1;
    if (f32_to_f16(middle) != even || f32_to_f16(std::nextafter(middle, 0.0f)) != b ||
        f32_to_f16(std::nextafter(middle, INFINITY)) != b + 1) {
      FAIL("between f16 bits " << b << " and the next");
    }
  }
  CHECK(f32_to_f16(65519.996f) == 0x7bff);
  CHECK(f32_to_f16(65520.0f) == 0x7c00);
  for (std::uint32_t b = 0; b < 0x7f7fu; ++b) {
    const std::uint32_t middle = (b << 16) | 0x8000u;
    const std::uint32_t even = b % 2 == 0 ? b : b + 1;
    if (f32_to_bf16(std::bit_cast<float>(middle)) != even ||
        f32_to_bf16(std::bit_cast<float>(middle - 1)) != b ||
        f32_to_bf16(std::bit_cast<float>(middle + 1)) != b + 1) {
      FAIL("between bf16 bits " << b << " and the next");
    }
  }
}

}  // namespace lintel
