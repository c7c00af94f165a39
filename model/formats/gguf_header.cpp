// SPDX-License-Identifier: Apache-2.0
#include "model/formats/gguf_header.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "model/core/errors.h"

namespace lintel {
namespace {

static_assert(std::endian::native == std::endian::little, "values are copied as they lie");

constexpr std::uint32_t kGgufVersion = 3;
constexpr std::uint32_t kBigEndianVersion = kGgufVersion << 24;
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr const char* kAlignmentKey = "general.alignment";
// The least that a key with its value and an entry of the table of tensors take.
constexpr std::uint64_t kMinKeyBytes = 13;
constexpr std::uint64_t kMinEntryBytes = 33;

std::size_t bytes_of(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
    case GgufType::kString:  // at least: its length
    case GgufType::kArray:
      return 8;
  }
  return 8;
}

std::optional<DType> served_type(std::uint32_t number) {
  switch (number) {
    case 0:
      return DType::kF32;
    case 1:
      return DType::kF16;
    case 2:
      return DType::kQ4_0;
    case 8:
      return DType::kQ8_0;
    case 12:
      return DType::kQ4_K;
    case 13:
      return DType::kQ5_K;
    case 14:
      return DType::kQ6_K;
    case 30:
      return DType::kBf16;
    default:
      return std::nullopt;
  }
}

// Names a type that is not served, by ggml's name where it has one.
std::string unserved_type_name(std::uint32_t number) {
  static constexpr std::pair<std::uint32_t, const char*> kNames[] = {
      {3, "Q4_1"},   {6, "Q5_0"},    {7, "Q5_1"},     {9, "Q8_1"},    {10, "Q2_K"},
      {11, "Q3_K"},  {15, "Q8_K"},   {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
      {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},   {22, "IQ2_S"},  {23, "IQ4_XS"},
      {24, "I8"},    {25, "I16"},    {26, "I32"},     {27, "I64"},    {28, "F64"},
      {29, "IQ1_M"}, {34, "TQ1_0"},  {35, "TQ2_0"},   {39, "MXFP4"},  {40, "NVFP4"}};
  for (const auto& [known, name] : kNames) {
    if (number == known) return name;
  }
  return "type " + std::to_string(number);
}

// Reads a file from its start on, through a buffer.
class HeaderParser {
 public:
  HeaderParser(const ReadFileBytes& read, std::uint64_t file_bytes, const std::string& file)
      : read_(read), file_bytes_(file_bytes), file_(file) {}

  GgufHeader parse() {
    if (file_bytes_ < kGgufHeaderBytes) {
      fail("found a file of " + std::to_string(file_bytes_) + " bytes, expected at least " +
           std::to_string(kGgufHeaderBytes) + " for its header");
    }
    std::string magic(4, '\0');
    take(magic);
    if (magic != "GGUF") fail("found " + quote(magic) + " at its start, expected \"GGUF\"");
    const auto version = take<std::uint32_t>();
    if (version == kBigEndianVersion) {
      fail("found a big-endian file, expected a little-endian one");
    }
    if (version != kGgufVersion) {
      fail("found version " + std::to_string(version) + ", expected " +
           std::to_string(kGgufVersion));
    }
    const auto num_tensors = take<std::uint64_t>();
    const auto num_keys = take<std::uint64_t>();
    check_count(num_keys, kMaxGgufKeys, kMinKeyBytes, "keys");
    check_count(num_tensors, kMaxGgufTensors, kMinEntryBytes, "tensors");

    place_ = Place::kKey;
    for (number_ = 1; number_ <= num_keys; ++number_) parse_key();
    place_ = Place::kTensor;
    for (number_ = 1; number_ <= num_tensors; ++number_) parse_tensor();
    place_ = Place::kFile;
    refuse_unserved();
    place_tensors();
    return std::move(header_);
  }

 private:
  enum class Place { kFile, kKey, kTensor };

  [[noreturn]] void fail(const std::string& what) const {
    std::string place;
    if (place_ != Place::kFile) {
      place = place_ == Place::kKey ? "key " : "tensor ";
      place += (name_.empty() ? std::to_string(number_) : quote(name_)) + ": ";
    }
    throw ModelError(file_ + ": " + place + what);
  }

  std::uint64_t left() const { return file_bytes_ - position_; }

  void check_count(std::uint64_t count, std::uint64_t most, std::uint64_t min_bytes,
                   const char* what) const {
    most = std::min(most, left() / min_bytes);
    if (count <= most) return;
    fail("found " + std::to_string(count) + " " + what + " in a file of " +
         std::to_string(file_bytes_) + " bytes, expected at most " + std::to_string(most));
  }

  // The file still has `count` times `bytes`, and keys are not too long in all.
  void check_left(std::uint64_t count, std::uint64_t bytes) const {
    if (count > left() / bytes) {
      const std::string each = bytes == 1 ? "" : " values of at least " + std::to_string(bytes);
      fail("found the end of the file after " + std::to_string(left()) + " bytes, expected " +
           std::to_string(count) + each + " bytes");
    }
    const std::uint64_t keys_end = kGgufHeaderBytes + kMaxGgufKeysBytes;
    if (place_ == Place::kKey && (position_ > keys_end || count > (keys_end - position_) / bytes)) {
      fail("found more than " + std::to_string(kMaxGgufKeysBytes) +
           " bytes of keys and values, expected at most that");
    }
  }

  void take(std::span<char> out) {
    check_left(out.size(), 1);
    while (!out.empty()) {
      if (buffer_.empty()) {
        if (out.size() >= kBufferBytes) {
          read_(position_, out);
          position_ += out.size();
          return;
        }
        storage_.resize(std::min<std::uint64_t>(kBufferBytes, left()));
        read_(position_, storage_);
        buffer_ = storage_;
      }
      const std::size_t count = std::min(out.size(), buffer_.size());
      std::memcpy(out.data(), buffer_.data(), count);
      out = out.subspan(count);
      buffer_.remove_prefix(count);
      position_ += count;
    }
  }

  template <typename Value>
  Value take() {
    char bytes[sizeof(Value)];
    take(bytes);
    Value value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }

  // Appends a string of the file.
  void take_string(std::string& out, std::uint64_t most, const char* what) {
    const auto length = take<std::uint64_t>();
    if (length > most) {
      fail("found a " + std::string(what) + " of " + std::to_string(length) +
           " bytes, expected at most " + std::to_string(most));
    }
    check_left(length, 1);
    const std::size_t before = out.size();
    out.resize(before + length);
    take(std::span(out).subspan(before));
  }

  GgufType take_type() {
    const auto number = take<std::uint32_t>();
    constexpr auto kLast = static_cast<std::uint32_t>(GgufType::kF64);
    if (number > kLast) {
      fail("found value type " + std::to_string(number) + ", expected at most " +
           std::to_string(kLast));
    }
    return static_cast<GgufType>(number);
  }

  void parse_key() {
    name_.clear();
    std::string name;
    take_string(name, kMaxGgufKeyBytes, "name");
    if (name.empty()) fail("found an empty name, expected at least one byte");
    name_ = name;
    const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
    if (!std::all_of(name.begin(), name.end(), is_ascii)) {
      fail("found bytes above 127 in its name, expected ASCII");
    }
    if (header_.keys.contains(name)) fail("is there twice, expected once");
    GgufValue value = parse_value();
    if (name == kAlignmentKey) set_alignment(value);
    header_.keys.emplace(std::move(name), std::move(value));
  }

  GgufValue parse_value() {
    GgufType type = take_type();
    std::uint64_t size = 1;
    const bool is_array = type == GgufType::kArray;
    if (is_array) {
      type = take_type();
      size = take<std::uint64_t>();
      if (type == GgufType::kArray) fail("found an array of arrays, expected values");
    }
    check_left(size, bytes_of(type));
    std::string bytes;
    std::vector<std::uint32_t> ends;
    if (type == GgufType::kString) {
      ends.reserve(size);
      for (std::uint64_t i = 0; i < size; ++i) {
        take_string(bytes, kMaxGgufStringBytes, "string");
        ends.push_back(static_cast<std::uint32_t>(bytes.size()));
      }
      bytes.shrink_to_fit();
    } else {
      bytes.resize(size * bytes_of(type));
      take(bytes);
    }
    if (type == GgufType::kBool) {
      const auto bad =
          std::find_if(bytes.begin(), bytes.end(), [](char c) { return (c & ~1) != 0; });
      if (bad != bytes.end()) {
        fail("found bool " + std::to_string(static_cast<unsigned char>(*bad)) +
             ", expected 0 or 1");
      }
    }
    return {type, is_array, static_cast<std::size_t>(size), std::move(bytes), std::move(ends)};
  }

  void set_alignment(const GgufValue& value) {
    if (value.is_array() || value.type() != GgufType::kU32) {
      fail("found " + value.type_name() + ", expected u32");
    }
    alignment_ = static_cast<std::uint64_t>(*value.integer());
    if (!std::has_single_bit(alignment_) || alignment_ < kMinGgufAlignment ||
        alignment_ > kMaxGgufAlignment) {
      fail("found " + std::to_string(alignment_) + ", expected a power of two from " +
           std::to_string(kMinGgufAlignment) + " to " + std::to_string(kMaxGgufAlignment));
    }
  }

  void parse_tensor() {
    name_.clear();
    TensorInfo tensor;
    take_string(tensor.name, kMaxGgufNameBytes, "name");
    if (tensor.name.empty()) fail("found an empty name, expected at least one byte");
    name_ = tensor.name;
    if (!names_.insert(tensor.name).second) fail("is there twice, expected once");
    const auto rank = take<std::uint32_t>();
    if (rank == 0 || rank > kMaxGgufDimensions) {
      fail("found " + std::to_string(rank) + " dimensions, expected 1 to " +
           std::to_string(kMaxGgufDimensions));
    }
    std::uint64_t elements = 1;
    for (std::uint32_t i = 0; i < rank; ++i) {
      const auto dimension = take<std::uint64_t>();
      if (dimension == 0) fail("found a dimension of 0, expected at least 1");
      if (dimension > kMaxGgufElements / elements) {
        fail("found dimension " + std::to_string(dimension) + " times " + std::to_string(elements) +
             " elements, expected at most " + std::to_string(kMaxGgufElements));
      }
      elements *= dimension;
      tensor.shape.push_back(static_cast<std::int64_t>(dimension));
    }
    std::reverse(tensor.shape.begin(), tensor.shape.end());  // the file has the last one first
    const auto type = take<std::uint32_t>();
    tensor.offset = take<std::uint64_t>();
    const std::optional<DType> served = served_type(type);
    if (!served) {
      if (unserved_++ == 0) first_unserved_ = {type, tensor.name};
      if (type == first_unserved_.first) ++unserved_of_type_;
      return;
    }
    tensor.type = *served;
    const auto row = static_cast<std::uint64_t>(tensor.shape.back());
    if (row % values_per_block(*served) != 0) {
      fail("found rows of " + std::to_string(row) + ", expected a multiple of " +
           std::to_string(values_per_block(*served)) + " for " + to_string(*served));
    }
    header_.tensors.push_back(std::move(tensor));
  }

  void refuse_unserved() const {
    if (unserved_ == 0) return;
    const auto& [type, tensor] = first_unserved_;
    const std::string quoted = quote(tensor);
    fail(unserved_type_name(type) + " (" + std::to_string(unserved_of_type_) +
         (unserved_of_type_ == 1 ? " tensor, " : " tensors, first ") +
         quoted.substr(1, quoted.size() - 2) + ") is not served; use " + remedy());
  }

  // Publications whose types are all served, but for the one that the file says it is: others mix
  // types, also those that are called Q4_K_M.
  std::string remedy() const {
    constexpr std::int64_t kMostlyQ8_0 = 7;  // general.file_type
    constexpr std::int64_t kMostlyBf16 = 32;
    const auto found = header_.keys.find("general.file_type");
    const bool is_known = found != header_.keys.end() && !found->second.is_array();
    const std::int64_t kind = is_known ? found->second.integer().value_or(-1) : -1;
    if (kind == kMostlyQ8_0) return "a BF16 file";
    return kind == kMostlyBf16 ? "a Q8_0 file" : "a Q8_0 or BF16 file";
  }

  // The offsets of tensors, from the start of the data, become places in the file.
  void place_tensors() {
    const std::uint64_t data = (position_ + alignment_ - 1) / alignment_ * alignment_;
    const std::uint64_t data_bytes = file_bytes_ > data ? file_bytes_ - data : 0;
    place_ = Place::kTensor;
    std::vector<const TensorInfo*> by_offset;
    by_offset.reserve(header_.tensors.size());
    for (TensorInfo& tensor : header_.tensors) {
      name_ = tensor.name;
      if (tensor.offset % alignment_ != 0) {
        fail("found offset " + std::to_string(tensor.offset) + ", expected a multiple of " +
             std::to_string(alignment_));
      }
      const std::uint64_t bytes = tensor.num_bytes();
      if (bytes > data_bytes || tensor.offset > data_bytes - bytes) {
        fail("found " + std::to_string(bytes) + " bytes at offset " +
             std::to_string(tensor.offset) + ", expected their end at most at " +
             std::to_string(data_bytes) + ", the bytes of all tensors");
      }
      tensor.offset += data;
      by_offset.push_back(&tensor);
    }
    std::sort(by_offset.begin(), by_offset.end(),
              [](const TensorInfo* a, const TensorInfo* b) { return a->offset < b->offset; });
    for (std::size_t i = 1; i < by_offset.size(); ++i) {
      const TensorInfo& before = *by_offset[i - 1];
      if (before.offset + before.num_bytes() <= by_offset[i]->offset) continue;
      name_ = by_offset[i]->name;
      fail("found offset " + std::to_string(by_offset[i]->offset - data) + ", expected at least " +
           std::to_string(before.offset + before.num_bytes() - data) + ", the end of tensor " +
           quote(before.name));
    }
  }

  static constexpr std::size_t kBufferBytes = 1 << 16;

  const ReadFileBytes& read_;
  const std::uint64_t file_bytes_;
  const std::string& file_;
  std::uint64_t position_ = 0;  // of the next byte, from the start of the file
  std::string storage_;
  std::string_view buffer_;  // the part of storage_ that is not taken yet

  // For errors: which key or tensor is read, and its name once that is known.
  Place place_ = Place::kFile;
  std::uint64_t number_ = 0;
  std::string name_;

  std::uint64_t alignment_ = kDefaultAlignment;
  std::set<std::string> names_;  // of the tensors
  std::uint64_t unserved_ = 0;
  std::uint64_t unserved_of_type_ = 0;
  std::pair<std::uint32_t, std::string> first_unserved_;  // its type and the tensor
  GgufHeader header_;
};

// The index-th Value of an array of bytes.
template <typename Value>
Value element(const std::string& bytes, std::size_t index) {
  Value value;
  std::memcpy(&value, bytes.data() + index * sizeof(Value), sizeof(value));
  return value;
}

}  // namespace

const char* to_string(GgufType type) {
  switch (type) {
    case GgufType::kU8:
      return "u8";
    case GgufType::kI8:
      return "i8";
    case GgufType::kU16:
      return "u16";
    case GgufType::kI16:
      return "i16";
    case GgufType::kU32:
      return "u32";
    case GgufType::kI32:
      return "i32";
    case GgufType::kF32:
      return "f32";
    case GgufType::kBool:
      return "bool";
    case GgufType::kString:
      return "string";
    case GgufType::kArray:
      return "array";
    case GgufType::kU64:
      return "u64";
    case GgufType::kI64:
      return "i64";
    case GgufType::kF64:
      return "f64";
  }
  return "";
}

GgufValue::GgufValue(GgufType type, bool is_array, std::size_t size, std::string bytes,
                     std::vector<std::uint32_t> ends)
    : type_(type),
      is_array_(is_array),
      size_(size),
      bytes_(std::move(bytes)),
      ends_(std::move(ends)) {}

std::string GgufValue::type_name() const {
  return std::string(is_array_ ? "array of " : "") + to_string(type_);
}

std::optional<std::int64_t> GgufValue::integer(std::size_t index) const {
  assert(index < size_);
  switch (type_) {
    case GgufType::kU8:
      return element<std::uint8_t>(bytes_, index);
    case GgufType::kI8:
      return element<std::int8_t>(bytes_, index);
    case GgufType::kU16:
      return element<std::uint16_t>(bytes_, index);
    case GgufType::kI16:
      return element<std::int16_t>(bytes_, index);
    case GgufType::kU32:
      return element<std::uint32_t>(bytes_, index);
    case GgufType::kI32:
      return element<std::int32_t>(bytes_, index);
    case GgufType::kI64:
      return element<std::int64_t>(bytes_, index);
    case GgufType::kU64: {
      const auto value = element<std::uint64_t>(bytes_, index);
      if (value > std::numeric_limits<std::int64_t>::max()) return std::nullopt;
      return static_cast<std::int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> GgufValue::number(std::size_t index) const {
  assert(index < size_);
  if (type_ == GgufType::kF32) return element<float>(bytes_, index);
  if (type_ == GgufType::kF64) return element<double>(bytes_, index);
  return std::nullopt;
}

std::optional<bool> GgufValue::boolean(std::size_t index) const {
  assert(index < size_);
  if (type_ != GgufType::kBool) return std::nullopt;
  return bytes_[index] != 0;
}

std::optional<std::string_view> GgufValue::text(std::size_t index) const {
  assert(index < size_);
  if (type_ != GgufType::kString) return std::nullopt;
  const std::size_t begin = index == 0 ? 0 : ends_[index - 1];
  return std::string_view(bytes_).substr(begin, ends_[index] - begin);
}

bool GgufValue::is_blank() const {
  if (is_array_) return size_ == 0;
  switch (type_) {
    case GgufType::kString:
      return bytes_.empty();
    case GgufType::kF32:
    case GgufType::kF64:
      return number() == 0.0;
    default:
      return std::all_of(bytes_.begin(), bytes_.end(), [](char c) { return c == 0; });
  }
}

GgufHeader parse_gguf(const ReadFileBytes& read, std::uint64_t file_bytes,
                      const std::string& file) {
  return HeaderParser(read, file_bytes, file).parse();
}

}  // namespace lintel
