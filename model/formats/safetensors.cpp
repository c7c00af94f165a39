// SPDX-License-Identifier: Apache-2.0
#include "model/formats/safetensors.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <unordered_set>

#include "model/core/errors.h"
#include "model/core/float_formats.h"
#include "model/core/json_reader.h"
#include "model/core/kernels.h"

namespace lintel {

// JSON is read event by event, so that no header, however nested or long, makes a tree of itself in
// memory.

namespace {

using nlohmann::json;

// {"__metadata__": {string: string}, name: {"dtype": string, "shape": [...], "data_offsets": [b,
// e]}}
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}

  std::map<std::string, TensorEntry, std::less<>> take() { return std::move(tensors_); }

  bool null() override { return unexpected("null"); }
  bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
  bool number_float(double, const std::string& text) override { return unexpected(shorten(text)); }
  bool number_integer(std::int64_t value) override { return unexpected(std::to_string(value)); }
  bool binary(json::binary_t&) override { return unexpected("binary"); }

  bool number_unsigned(std::uint64_t value) override {
    if (place_ == Place::kShape) {
      if (entry_.shape.size() == kMaxTensorRank) {
        fail("found a shape of more than " + std::to_string(kMaxTensorRank) +
             " dimensions, expected at most that");
      }
      if (value > kMaxTensorDimension) {
        fail("found dimension " + std::to_string(value) + ", expected at most " +
             std::to_string(kMaxTensorDimension));
      }
      entry_.shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (num_offsets_ == 2) fail("found more than two data_offsets, expected two");
      (num_offsets_++ == 0 ? entry_.begin : entry_.end) = value;
      return true;
    }
    return unexpected(std::to_string(value));
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) return true;  // any text; nothing here uses it
    if (place_ == Place::kTensor && field_ == "dtype") {
      for (const TensorType type :
           {TensorType::kF32, TensorType::kF16, TensorType::kBf16, TensorType::kI32}) {
        if (value != to_string(type)) continue;
        entry_.type = type;
        return true;
      }
      fail("found dtype " + quote(value) + ", expected F32, F16 or BF16");
    }
    return unexpected(quote(value));
  }

  bool key(std::string& name) override {
    if (place_ == Place::kRoot) {
      start_entry(name);
    } else if (place_ == Place::kMetadata) {
      if (!metadata_.insert(name).second) fail("key " + quote(name) + " is there twice");
      if (metadata_.size() > kMaxMetadataEntries) {
        fail("found more than " + std::to_string(kMaxMetadataEntries) +
             " entries, expected at most that");
      }
    } else {
      if (name != "dtype" && name != "shape" && name != "data_offsets") {
        fail("found key " + quote(name) + ", expected dtype, shape or data_offsets");
      }
      if (!fields_.insert(name).second) fail("key " + quote(name) + " is there twice");
      field_ = name;
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kRoot;
    } else if (place_ == Place::kRoot) {
      place_ = entry_.name == "__metadata__" ? Place::kMetadata : Place::kTensor;
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!fields_.contains(field)) fail(std::string("key \"") + field + "\" is missing");
      }
      if (tensors_.size() == kMaxTensors) {
        fail("found more than " + std::to_string(kMaxTensors) + " tensors, expected at most that");
      }
      std::string name = entry_.name;
      tensors_.emplace(std::move(name), std::move(entry_));
    }
    place_ = place_ == Place::kRoot ? Place::kStart : Place::kRoot;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || field_ == "dtype") return unexpected("an array");
    place_ = field_ == "shape" ? Place::kShape : Place::kOffsets;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && num_offsets_ != 2) {
      fail("found " + std::to_string(num_offsets_) + " data_offsets, expected two");
    }
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const json::exception&) override {
    return false;  // the failure says so
  }

 private:
  enum class Place { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets };

  void start_entry(const std::string& name) {
    if (name.size() > kMaxTensorNameBytes) {
      throw ModelError(file_ + ": found a tensor name of " + std::to_string(name.size()) +
                       " bytes, expected at most " + std::to_string(kMaxTensorNameBytes));
    }
    entry_ = TensorEntry{.name = name};
    fields_.clear();
    num_offsets_ = 0;
    const bool metadata_again = name == "__metadata__" && std::exchange(metadata_seen_, true);
    if (metadata_again || tensors_.contains(name)) fail("is there twice, expected once");
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw ModelError(file_ + ": tensor " + quote(entry_.name) + ": " + what);
  }

  bool unexpected(const std::string& found) const {
    switch (place_) {
      case Place::kStart:
        throw ModelError(file_ + ": header: found " + found + ", expected an object");
      case Place::kRoot:
        fail("found " + found + ", expected an object");
      case Place::kMetadata:
        fail("found " + found + ", expected a string");
      case Place::kTensor:
        fail(field_ + ": found " + found + ", expected " +
             (field_ == "dtype" ? "a string" : "an array"));
      case Place::kShape:
      case Place::kOffsets:
        fail(field_ + ": found " + found + ", expected a whole number of at least 0");
    }
    return false;
  }

  const std::string& file_;
  Place place_ = Place::kStart;
  TensorEntry entry_;
  std::string field_;
  std::set<std::string> fields_;
  std::size_t num_offsets_ = 0;
  bool metadata_seen_ = false;
  std::unordered_set<std::string> metadata_;
  std::map<std::string, TensorEntry, std::less<>> tensors_;
};

// The JSON lexer holds a whole string, number or run of spaces, several times over: bound it first.
void check_token_lengths(std::string_view header, const std::string& file) {
  bool in_string = false;
  bool escaped = false;
  std::size_t length = 0;
  for (const char c : header) {
    const bool quote_mark = c == '"' && !escaped;
    const bool separates =
        quote_mark ||
        (!in_string && (c == '{' || c == '}' || c == '[' || c == ']' || c == ',' || c == ':'));
    escaped = in_string && c == '\\' && !escaped;
    if (quote_mark) in_string = !in_string;
    if (separates) {
      length = 0;
    } else if (++length > kMaxHeaderTokenBytes) {
      throw ModelError(file + ": header: found a string, number or run of spaces of more than " +
                       std::to_string(kMaxHeaderTokenBytes) + " bytes, expected at most that");
    }
  }
}

// Shape, type and offsets of one tensor agree and lie within the data.
void check_extent(const TensorEntry& t, std::uint64_t data_bytes, const std::string& file) {
  const auto fail = [&](const std::string& what) {
    throw ModelError(file + ": tensor " + quote(t.name) + ": " + what);
  };
  const std::string offsets =
      "data_offsets [" + std::to_string(t.begin) + ", " + std::to_string(t.end) + "]";
  std::uint64_t bytes = bytes_per_value(t.type);
  for (const std::int64_t d : t.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(d), &bytes)) {
      fail("found shape " + shape_to_string(t.shape) + ", expected less than 2^64 bytes");
    }
  }
  if (t.begin > t.end) fail("found " + offsets + ", expected them in ascending order");
  if (t.end > data_bytes) {
    fail("found " + offsets + ", expected at most " + std::to_string(data_bytes) +
         ", the bytes after the header");
  }
  if (t.end - t.begin != bytes) {
    fail("found " + offsets + ", " + std::to_string(t.end - t.begin) + " bytes, expected " +
         std::to_string(bytes) + " for " + to_string(t.type) + " " + shape_to_string(t.shape));
  }
}

// Sorted by offset, each tensor begins where the one before ends.
void check_coverage(const std::map<std::string, TensorEntry, std::less<>>& tensors,
                    std::uint64_t data_bytes, const std::string& file) {
  std::vector<const TensorEntry*> order;
  order.reserve(tensors.size());
  for (const auto& [name, entry] : tensors) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::uint64_t covered = 0;
  for (const TensorEntry* t : order) {
    if (t->begin != covered) {
      throw ModelError(file + ": tensor " + quote(t->name) + ": " +
                       (t->begin < covered ? "overlaps the tensor before it" : "follows a hole") +
                       ": found offset " + std::to_string(t->begin) + ", expected " +
                       std::to_string(covered));
    }
    covered = t->end;
  }
  if (covered != data_bytes) {
    throw ModelError(file + ": found " + std::to_string(data_bytes) +
                     " bytes after the header, expected " + std::to_string(covered) +
                     ", the end of the last tensor");
  }
}

}  // namespace

const char* to_string(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return "F32";
    case TensorType::kF16:
      return "F16";
    case TensorType::kBf16:
      return "BF16";
    case TensorType::kI32:
      return "I32";
  }
  return "";
}

std::size_t bytes_per_value(TensorType type) {
  return type == TensorType::kF32 || type == TensorType::kI32 ? 4 : 2;
}

std::string shape_to_string(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::int64_t TensorEntry::num_elements() const {
  return static_cast<std::int64_t>((end - begin) / bytes_per_value(type));
}

std::size_t safetensors_header_bytes(std::string_view begin, std::uint64_t file_bytes,
                                     const std::string& file) {
  if (file_bytes < kHeaderLengthBytes) {
    throw ModelError(file + ": found a file of " + std::to_string(file_bytes) +
                     " bytes, expected at least 8 for the header's length");
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kHeaderLengthBytes; ++i) {
    length |= std::uint64_t{static_cast<unsigned char>(begin[i])} << (8 * i);
  }
  if (length > kMaxHeaderBytes) {
    throw ModelError(file + ": found a header of " + std::to_string(length) +
                     " bytes, expected at most " + std::to_string(kMaxHeaderBytes));
  }
  if (length > file_bytes - kHeaderLengthBytes) {
    throw ModelError(file + ": found a header of " + std::to_string(length) +
                     " bytes, expected at most the " +
                     std::to_string(file_bytes - kHeaderLengthBytes) + " that the file still has");
  }
  return kHeaderLengthBytes + static_cast<std::size_t>(length);
}

SafetensorsHeader parse_safetensors(std::string_view begin, std::uint64_t file_bytes,
                                    const std::string& file) {
  SafetensorsHeader header;
  header.data_offset = safetensors_header_bytes(begin, file_bytes, file);
  const std::string_view text =
      begin.substr(kHeaderLengthBytes, header.data_offset - kHeaderLengthBytes);
  if (!text.starts_with('{')) {
    throw ModelError(file + ": header: found " +
                     (text.empty() ? std::string("nothing") : quote(text.substr(0, 1))) +
                     " at its start, expected \"{\"");
  }
  check_token_lengths(text, file);
  HeaderReader reader(file);
  JsonFailure failure;
  if (!read_json_events(text, {}, reader, failure)) {
    throw ModelError(file + ": header is not JSON: " + one_line(shorten(failure.what, 300)));
  }
  header.tensors = reader.take();
  const std::uint64_t data_bytes = file_bytes - header.data_offset;
  for (const auto& [name, entry] : header.tensors) check_extent(entry, data_bytes, file);
  check_coverage(header.tensors, data_bytes, file);
  return header;
}

namespace {

static_assert(std::endian::native == std::endian::little, "tensor data is copied as it lies");

// Values of bf16 and f16 tensors that are widened at once.
constexpr std::size_t kPieceTokens = 32768;

template <typename Value>
std::span<char> chars_of(std::span<Value> values) {
  return {reinterpret_cast<char*>(values.data()), values.size_bytes()};
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  file_.read_ahead();
  header_ = parse_safetensors(read_header(), size(), name());
}

std::string SafetensorsFile::read_header() const {
  std::string begin(std::min<std::uint64_t>(size(), kHeaderLengthBytes), '\0');
  read(0, begin);
  begin.resize(safetensors_header_bytes(begin, size(), name()));
  read(0, begin);
  return begin;
}

const TensorEntry& SafetensorsFile::tensor(std::string_view name) const {
  const auto found = header_.tensors.find(name);
  if (found == header_.tensors.end()) {
    throw ModelError(file_.name() + ": tensor " + quote(name) + ": missing");
  }
  return found->second;
}

void SafetensorsFile::read_widened(const TensorEntry& tensor, float (*convert)(std::uint16_t),
                                   std::span<float> out, const BytesRead& bytes_read) const {
  std::vector<std::uint16_t> piece(std::min(out.size(), kPieceTokens));
  for (std::size_t done = 0; done < out.size(); done += piece.size()) {
    piece.resize(std::min(piece.size(), out.size() - done));
    read(header_.data_offset + tensor.begin + done * sizeof(piece[0]), chars_of(std::span(piece)));
    if (bytes_read) bytes_read(chars_of(std::span(piece)));
    std::transform(piece.begin(), piece.end(), out.subspan(done).begin(), convert);
  }
}

void SafetensorsFile::read_f32(const TensorEntry& tensor, std::span<float> out,
                               const BytesRead& bytes_read) const {
  assert(out.size() == static_cast<std::size_t>(tensor.num_elements()));
  switch (tensor.type) {
    case TensorType::kF32:
      read(header_.data_offset + tensor.begin, chars_of(out));
      if (bytes_read) bytes_read(chars_of(out));
      break;
    case TensorType::kF16:
      read_widened(tensor, f16_to_f32, out, bytes_read);
      break;
    case TensorType::kBf16:
      read_widened(tensor, bf16_to_f32, out, bytes_read);
      break;
    case TensorType::kI32:
      throw ModelError(name() + ": tensor " + quote(tensor.name) +
                       ": found dtype I32, expected F32, F16 or BF16");
  }
  if (all_finite(out)) return;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (std::isfinite(out[i])) continue;
    throw ModelError(name() + ": tensor " + quote(tensor.name) + ": found " +
                     std::to_string(out[i]) + " at index " + std::to_string(i) +
                     ", expected a finite number");
  }
}

std::vector<float> SafetensorsFile::read_f32(std::string_view name) const {
  const TensorEntry& entry = tensor(name);
  std::vector<float> values(static_cast<std::size_t>(entry.num_elements()));
  read_f32(entry, values);
  return values;
}

std::vector<std::int32_t> SafetensorsFile::read_i32(std::string_view name) const {
  const TensorEntry& entry = tensor(name);
  if (entry.type != TensorType::kI32) {
    throw ModelError(file_.name() + ": tensor " + quote(name) + ": found dtype " +
                     to_string(entry.type) + ", expected I32");
  }
  std::vector<std::int32_t> values(static_cast<std::size_t>(entry.num_elements()));
  read(header_.data_offset + entry.begin, chars_of(std::span(values)));
  return values;
}

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
