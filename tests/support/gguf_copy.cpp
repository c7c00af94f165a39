// SPDX-License-Identifier: Apache-2.0
#include "tests/support/gguf_copy.h"

#include <cstring>
#include <fstream>
#include <span>

#include "model/formats/gguf.h"

namespace lintel::testing {
namespace {

template <typename Value>
void put(std::string& to, Value value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& to, std::string_view text) {
  put(to, std::uint64_t{text.size()});
  to += text;
}

template <typename Value>
GgufCopy::Value single(GgufType type, Value value) {
  GgufCopy::Value of{.type = static_cast<std::uint32_t>(type), .bytes = {}};
  put(of.bytes, value);
  return of;
}

GgufCopy::Value list(GgufType type, std::size_t size) {
  GgufCopy::Value of = single(GgufType::kArray, static_cast<std::uint32_t>(type));
  put(of.bytes, std::uint64_t{size});
  return of;
}

void put_element(std::string& to, const GgufValue& value, std::size_t i) {
  if (const auto text = value.text(i)) {
    put_text(to, *text);
  } else if (const auto truth = value.boolean(i)) {
    put(to, static_cast<std::uint8_t>(*truth));
  } else if (value.type() == GgufType::kF32) {
    put(to, static_cast<float>(*value.number(i)));
  } else if (const auto number = value.number(i)) {
    put(to, *number);
  } else if (value.type() == GgufType::kU64 || value.type() == GgufType::kI64) {
    put(to, *value.integer(i));
  } else if (value.type() == GgufType::kU32 || value.type() == GgufType::kI32) {
    put(to, static_cast<std::int32_t>(*value.integer(i)));
  } else if (value.type() == GgufType::kU16 || value.type() == GgufType::kI16) {
    put(to, static_cast<std::int16_t>(*value.integer(i)));
  } else {
    put(to, static_cast<std::int8_t>(*value.integer(i)));
  }
}

// ggml's number of a type of tensors that the goldens have.
std::uint32_t number_of(DType type) {
  switch (type) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 1;
    case DType::kBf16:
      return 30;
    case DType::kQ4_0:
      return 2;
    case DType::kQ8_0:
      return 8;
    case DType::kQ4_K:
      return 12;
    case DType::kQ5_K:
      return 13;
    case DType::kQ6_K:
      return 14;
  }
  return 0;
}

}  // namespace

GgufCopy::GgufCopy(const std::filesystem::path& file) {
  const GgufFile from(file);
  for (const auto& [name, value] : from.keys()) {
    Value& to = keys[name];
    to.type = static_cast<std::uint32_t>(value.type());
    if (value.is_array()) to = list(value.type(), value.size());
    for (std::size_t i = 0; i < value.size(); ++i) put_element(to.bytes, value, i);
  }
  for (const TensorInfo& tensor : from.tensors()) {
    Tensor& to = tensors[tensor.name];
    to.dims.assign(tensor.shape.rbegin(), tensor.shape.rend());
    to.type = number_of(tensor.type);
    to.bytes.resize(tensor.num_bytes());
    from.read(tensor, 0, std::as_writable_bytes(std::span(to.bytes)));
  }
}

void GgufCopy::set(const std::string& key, std::uint32_t value) {
  keys[key] = single(GgufType::kU32, value);
}
void GgufCopy::set(const std::string& key, float value) {
  keys[key] = single(GgufType::kF32, value);
}
void GgufCopy::set(const std::string& key, bool value) {
  keys[key] = single(GgufType::kBool, static_cast<std::uint8_t>(value));
}
void GgufCopy::set(const std::string& key, const char* value) {
  Value& of = keys[key];
  of = {.type = static_cast<std::uint32_t>(GgufType::kString), .bytes = {}};
  put_text(of.bytes, value);
}
void GgufCopy::set(const std::string& key, std::initializer_list<std::uint32_t> values) {
  Value& of = keys[key];
  of = list(GgufType::kU32, values.size());
  for (const std::uint32_t value : values) put(of.bytes, value);
}
void GgufCopy::set(const std::string& key, const std::vector<std::string>& values) {
  Value& of = keys[key];
  of = list(GgufType::kString, values.size());
  for (const std::string& value : values) put_text(of.bytes, value);
}

void GgufCopy::rename(const std::string& tensor, const std::string& to) {
  auto node = tensors.extract(tensor);
  node.key() = to;
  tensors.insert(std::move(node));
}

void GgufCopy::add(const std::string& tensor, const std::vector<std::uint64_t>& dims, float value) {
  Tensor& to = tensors[tensor];
  to = {.dims = dims, .type = 0, .bytes = {}};
  std::uint64_t count = 1;
  for (const std::uint64_t d : dims) count *= d;
  for (std::uint64_t i = 0; i < count; ++i) put(to.bytes, value);
}

void GgufCopy::write(const std::filesystem::path& file) const {
  constexpr std::size_t kAlignment = 32;
  const auto align = [](std::string& bytes) {
    bytes.resize((bytes.size() + kAlignment - 1) / kAlignment * kAlignment);
  };
  std::string head = "GGUF";
  put(head, std::uint32_t{3});
  put(head, std::uint64_t{tensors.size()});
  put(head, std::uint64_t{keys.size()});
  for (const auto& [name, value] : keys) {
    put_text(head, name);
    put(head, value.type);
    head += value.bytes;
  }
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    put_text(head, name);
    put(head, static_cast<std::uint32_t>(tensor.dims.size()));
    for (const std::uint64_t d : tensor.dims) put(head, d);
    put(head, tensor.type);
    put(head, std::uint64_t{data.size()});
    data += tensor.bytes;
    align(data);
  }
  align(head);
  std::ofstream(file, std::ios::binary) << head << data;
}

}  // namespace lintel::testing
