#include "tests/fuzz/inputs.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "model/adapters/adapter_config.h"
#include "model/config/config.h"
#include "model/files/safetensors.h"

namespace lintel::fuzz {
namespace {

void require(bool condition, const char* promise) {
  if (!condition) throw std::logic_error(std::string("broken promise: ") + promise);
}

void check_text(const std::string& text) {
  require(text.starts_with("FILE: "), "an error names the file");
  require(text.size() < 2000, "an error is short");
  require(std::none_of(text.begin(), text.end(),
                       [](char c) { return static_cast<unsigned char>(c) < 0x20; }),
          "an error is printable");
}

}  // namespace

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

}  // namespace lintel::fuzz
