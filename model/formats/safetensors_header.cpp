// JSON is read event by event, so that no header, however nested or long, makes a tree of itself in
// memory.
#include "model/formats/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>

#include "model/core/error_text.h"
#include "model/core/json_reader.h"
#include "model/core/model_error.h"

namespace lintel {
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

std::int64_t TensorEntry::num_values() const {
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

}  // namespace lintel
