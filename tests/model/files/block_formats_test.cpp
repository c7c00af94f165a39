// SPDX-License-Identifier: Apache-2.0
// Blocks of quantised weights: the values of every type, bit for bit.
#include "model/ops/block_formats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "model/core/float_formats.h"
#include "model/formats/gguf.h"
#include "model/formats/safetensors.h"
#include "model/ops/quantize.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

const std::string kGgufVectors = LINTEL_TEST_DATA "/golden/gguf/";

constexpr DType kAllTypes[] = {DType::kF32,  DType::kF16,  DType::kBf16, DType::kQ8_0,
                               DType::kQ4_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// The first count values of a tensor.
std::vector<float> first_values(const GgufFile& file, const TensorInfo& tensor, std::size_t count) {
  const std::size_t values = values_per_block(tensor.type);
  REQUIRE(count % values == 0);
  std::vector<std::byte> bytes(count / values * bytes_per_block(tensor.type));
  file.read(tensor, 0, bytes);
  CHECK(first_non_finite(tensor.type, bytes) == std::nullopt);
  std::vector<float> out(count);
  dequantize(tensor.type, bytes, out);
  return out;
}

void check_same_bits(const std::vector<float>& found, const std::vector<float>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(found[i]) == std::bit_cast<std::uint32_t>(expected[i])) {
      continue;
    }
    FAIL("value " << i << ": found " << found[i] << ", expected " << expected[i]);
  }
}

void set_bits(std::vector<std::byte>& bytes, std::size_t offset, std::uint16_t bits) {
  std::memcpy(bytes.data() + offset, &bits, sizeof(bits));
}

}  // namespace

TEST_CASE("blocks of random bits have the expected values, bit for bit") {
  const GgufFile file(kGgufVectors + "types.gguf");
  const SafetensorsFile expected(kGgufVectors + "types.expected.safetensors");
  CHECK(file.tensors().size() == std::size(kAllTypes));
  CHECK(expected.tensors().size() == std::size(kAllTypes));
  std::vector<DType> seen;
  for (const TensorInfo& tensor : file.tensors()) {
    INFO(tensor.name);
    CHECK(tensor.shape == expected.tensor(tensor.name).shape);
    const auto count = static_cast<std::size_t>(tensor.num_elements());
    check_same_bits(first_values(file, tensor, count), expected.read_f32(tensor.name));
    seen.push_back(tensor.type);
  }
  for (const DType type : kAllTypes) CHECK(std::count(seen.begin(), seen.end(), type) == 1);
}

TEST_CASE("rows of the models' tensors have the expected values, bit for bit") {
  const SafetensorsFile rows(kGgufVectors + "rows.safetensors");
  std::size_t compared = 0;
  for (const char* const model : {"qwen35-q8_0", "qwen35-kmix", "rwkv7-q8_0", "rwkv7-kmix"}) {
    const GgufFile file(kGgufVectors + model + ".gguf");
    std::size_t of_model = 0;
    for (const auto& [name, entry] : rows.tensors()) {
      if (!name.starts_with(std::string(model) + "/")) continue;
      INFO(name);
      const TensorInfo* const tensor = file.find(name.substr(name.find('/') + 1));
      REQUIRE(tensor != nullptr);
      CHECK(entry.shape.back() == tensor->shape.back());
      const auto count = static_cast<std::size_t>(entry.num_elements());
      check_same_bits(first_values(file, *tensor, count), rows.read_f32(name));
      ++of_model;
    }
    CHECK(of_model > 0);
    compared += of_model;
  }
  CHECK(compared == rows.tensors().size());
}

TEST_CASE("16-bit floats widen exactly, in any number and from any address") {
  std::vector<std::uint16_t> halves(0x10000);
  std::iota(halves.begin(), halves.end(), std::uint16_t{0});
  for (const std::size_t count : {1u, 2u, 15u, 16u, 17u, 33u, 0x10000u}) {
    for (const std::size_t offset : {0, 1}) {
      INFO(count << " at " << offset);
      std::vector<std::byte> bytes(offset + 2 * count);
      const std::span<std::byte> stored = std::span(bytes).subspan(offset);
      std::memcpy(stored.data(), halves.data() + halves.size() - count, 2 * count);
      for (const DType type : {DType::kF16, DType::kBf16}) {
        std::vector<float> wide(count), expected(count);
        dequantize(type, stored, wide);
        std::ranges::transform(std::span(halves).last(count), expected.begin(),
                               type == DType::kF16 ? f16_to_f32 : bf16_to_f32);
        CHECK(std::memcmp(wide.data(), expected.data(), 4 * count) == 0);
      }
    }
  }
}

TEST_CASE("rows in 8 bits are each rounded by its largest value, in any number and length") {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const std::size_t rows : {1, 15, 16, 17, 63, 64}) {
    for (const std::size_t cols : {1, 5, 31, 32, 100}) {
      INFO(rows << " rows of " << cols);
      Matrix x(rows, cols);
      for (float& value : x.values()) value = normal(random);
      for (float& value : x.row(rows / 2)) value = 0.0f;
      const std::size_t cells = (cols + 3) / 4;
      constexpr std::size_t kLine = 256;
      std::vector<std::uint8_t> lines(cells * kLine, 7);
      std::vector<float> scales(rows);
      quantize_to_8_bits(x.view(), lines.data(), scales.data());
      for (std::size_t n = 0; n < rows; ++n) {
        float largest = 0.0f;
        for (const float value : x.row(n)) largest = std::max(largest, std::abs(value));
        CHECK(scales[n] == (largest == 0.0f ? 1.0f : largest / 127.0f));
        bool same = true;
        for (std::size_t i = 0; i < 4 * cells; ++i) {
          const float level = i < cols ? std::nearbyint(x.row(n)[i] / scales[n]) : 0.0f;
          same = same && lines[i / 4 * kLine + 4 * n + i % 4] == static_cast<int>(level) + 128;
        }
        CHECK(same);
      }
      // Other columns of the lines stay as they are.
      for (std::size_t at = 4 * rows; at < kLine; ++at) CHECK(lines[at] == 7);
    }
  }
}

TEST_CASE("a scale that is not finite is found with its block") {
  struct Scale {
    DType type;
    std::size_t offset;  // in the block
  };
  for (const Scale scale : {Scale{DType::kF16, 0},
                            {DType::kQ8_0, 0},
                            {DType::kQ4_0, 0},
                            {DType::kQ4_K, 0},
                            {DType::kQ4_K, 2},
                            {DType::kQ5_K, 0},
                            {DType::kQ5_K, 2},
                            {DType::kQ6_K, 208}}) {
    INFO(to_string(scale.type) << " at " << scale.offset);
    const std::size_t bytes = bytes_per_block(scale.type);
    for (const std::uint16_t bits : {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xffff}) {
      std::vector<std::byte> blocks(5 * bytes);
      CHECK(first_non_finite(scale.type, blocks) == std::nullopt);
      set_bits(blocks, 4 * bytes + scale.offset, bits);
      CHECK(first_non_finite(scale.type, blocks) == 4);
      set_bits(blocks, 2 * bytes + scale.offset, bits);
      CHECK(first_non_finite(scale.type, blocks) == 2);
    }
    std::vector<std::byte> largest(bytes);
    set_bits(largest, scale.offset, 0x7bff);
    CHECK(first_non_finite(scale.type, largest) == std::nullopt);
    // Integers may have any bits.
    if (scale.type == DType::kF16 || scale.offset != 0) continue;
    std::vector<std::byte> any(bytes, std::byte{0xff});
    set_bits(any, 0, 0x3c00);
    set_bits(any, 2, 0x3c00);
    CHECK(first_non_finite(scale.type, any) == std::nullopt);
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float values[] = {1, std::numeric_limits<float>::max(), -kInfinity, 0};
  CHECK(first_non_finite(DType::kF32, std::as_bytes(std::span(values))) == 2);
  CHECK(first_non_finite(DType::kF32, std::as_bytes(std::span(values, 2))) == std::nullopt);
  CHECK(first_non_finite(DType::kF32, {}) == std::nullopt);
  const std::uint16_t brains[] = {0x7f7f, 0xff80, 0};
  CHECK(first_non_finite(DType::kBf16, std::as_bytes(std::span(brains))) == 1);
}

TEST_CASE("no values dequantise to no values") {
  for (const DType type : kAllTypes) CHECK_NOTHROW(dequantize(type, {}, {}));
}

}  // namespace lintel
