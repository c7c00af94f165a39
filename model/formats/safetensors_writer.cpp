#include "model/formats/safetensors_writer.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "model/core/float_formats.h"
#include "model/core/model_error.h"

namespace lintel {
namespace {

void check(const TensorToWrite& tensor, std::set<std::string>& names) {
  std::uint64_t count = 1;
  for (const std::int64_t d : tensor.shape) count *= static_cast<std::uint64_t>(d);
  if (count != tensor.values.size()) {
    throw std::invalid_argument("tensor \"" + tensor.name + "\": shape " +
                                shape_to_string(tensor.shape) + " but " +
                                std::to_string(tensor.values.size()) + " values");
  }
  if (!names.insert(tensor.name).second) {
    throw std::invalid_argument("tensor \"" + tensor.name + "\" is given twice");
  }
}

std::string make_header(std::span<const TensorToWrite> tensors, TensorType type) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::set<std::string> names;
  std::uint64_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    check(tensor, names);
    const TensorType own = tensor.type.value_or(type);
    const std::uint64_t end = offset + tensor.values.size() * bytes_per_value(own);
    header[tensor.name] = {
        {"dtype", to_string(own)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // tensor data starts at a multiple of 8
  return text;
}

void write_values(std::ofstream& out, std::span<const float> values, TensorType type) {
  if (type == TensorType::kF32) {
    out.write(reinterpret_cast<const char*>(values.data()),
              static_cast<std::streamsize>(values.size_bytes()));
    return;
  }
  std::vector<std::uint16_t> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(),
                 type == TensorType::kBf16 ? f32_to_bf16 : f32_to_f16);
  out.write(reinterpret_cast<const char*>(halves.data()),
            static_cast<std::streamsize>(halves.size() * sizeof(std::uint16_t)));
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                       TensorType type) {
  for (const TensorToWrite& tensor : tensors) {
    if (tensor.type.value_or(type) == TensorType::kI32) {
      throw std::invalid_argument("write_safetensors: not a float type");
    }
  }
  const std::string header = make_header(tensors, type);
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  const std::uint64_t length = header.size();
  char prefix[8];
  for (int i = 0; i < 8; ++i) prefix[i] = static_cast<char>(length >> (8 * i));
  out.write(prefix, sizeof(prefix));
  out.write(header.data(), static_cast<std::streamsize>(header.size()));
  for (const TensorToWrite& tensor : tensors) {
    write_values(out, tensor.values, tensor.type.value_or(type));
  }
  out.close();
  if (!out) throw ModelError(path.string() + ": cannot write: " + std::strerror(errno));
}

}  // namespace lintel
