// SPDX-License-Identifier: Apache-2.0
#include "model/formats/gguf.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <optional>
#include <utility>

#include "model/core/errors.h"

namespace lintel {
namespace {

constexpr std::size_t kFingerprintPieceBytes = 1 << 20;
constexpr std::size_t kPartDigits = 5;

// NAME-00002-of-00003.gguf
struct PartName {
  std::string prefix;  // NAME
  std::size_t number = 0;
  std::size_t count = 0;
};

std::string part_file(const std::string& prefix, std::size_t number, std::size_t count) {
  const auto digits = [](std::size_t value) {
    const std::string text = std::to_string(value);
    return std::string(kPartDigits - std::min(kPartDigits, text.size()), '0') + text;
  };
  return prefix + "-" + digits(number) + "-of-" + digits(count) + ".gguf";
}

// Takes five digits from the end of `text`.
std::optional<std::size_t> take_part_digits(std::string_view& text) {
  if (text.size() < kPartDigits) return std::nullopt;
  const std::string_view digits = text.substr(text.size() - kPartDigits);
  std::size_t value = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return std::nullopt;
    value = 10 * value + static_cast<std::size_t>(c - '0');
  }
  text.remove_suffix(kPartDigits);
  return value;
}

bool take_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

std::optional<PartName> parse_part_name(const std::string& file) {
  std::string_view text = file;
  if (!take_suffix(text, ".gguf")) return std::nullopt;
  const std::optional<std::size_t> count = take_part_digits(text);
  if (!count || !take_suffix(text, "-of-")) return std::nullopt;
  const std::optional<std::size_t> number = take_part_digits(text);
  if (!number || !take_suffix(text, "-")) return std::nullopt;
  return PartName{std::string(text), *number, *count};
}

[[noreturn]] void fail_at_key(const std::string& file, std::string_view key,
                              const std::string& what) {
  throw ModelError(file + ": key " + quote(key) + ": " + what);
}

const GgufValue& value_of_key(const GgufKeys& keys, std::string_view key, const std::string& file,
                              bool is_array, const char* expected) {
  const auto found = keys.find(key);
  if (found == keys.end()) fail_at_key(file, key, std::string("missing, expected ") + expected);
  const GgufValue& value = found->second;
  if (value.is_array() != is_array) {
    fail_at_key(file, key, "found " + value.type_name() + ", expected " + expected);
  }
  return value;
}

const GgufValue& list_of_key(const GgufKeys& keys, std::string_view key, const std::string& file,
                             const char* expected) {
  const GgufValue& value = value_of_key(keys, key, file, true, expected);
  if (value.size() <= kMaxGgufListSize) return value;
  fail_at_key(file, key,
              "found " + std::to_string(value.size()) + " elements, expected at most " +
                  std::to_string(kMaxGgufListSize));
}

// The value as the expected type. Throws ModelError for a value of another type.
template <typename Found>
Found expect_type(const std::optional<Found>& found, const GgufValue& value, std::string_view key,
                  const std::string& file, const char* expected) {
  if (!found) fail_at_key(file, key, "found " + value.type_name() + ", expected " + expected);
  return *found;
}

std::int64_t integer_of(const GgufValue& value, std::size_t index, std::string_view key,
                        const std::string& file) {
  const std::optional<std::int64_t> found = value.integer(index);
  if (!found && value.type() == GgufType::kU64) {
    fail_at_key(file, key, "found an integer of 2^63 or more, expected less");
  }
  return expect_type(found, value, key, file,
                     value.is_array() ? "array of integers" : "an integer");
}

std::int64_t integer_of_key(const GgufKeys& keys, std::string_view key, const std::string& file) {
  return integer_of(value_of_key(keys, key, file, false, "an integer"), 0, key, file);
}

void expect_part_key(const GgufKeys& keys, const char* key, std::int64_t expected,
                     const std::string& file) {
  const std::int64_t found = integer_of_key(keys, key, file);
  if (found == expected) return;
  fail_at_key(file, key,
              "found " + std::to_string(found) + ", expected " + std::to_string(expected));
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path) : name_(path.string()) {
  const std::optional<PartName> part = parse_part_name(path.filename().string());
  if (!part || (part->number == 1 && part->count == 1)) {
    GgufHeader header = open_file(path);
    keys_ = std::move(header.keys);
    add_tensors(std::move(header.tensors));
    const std::int64_t count = has("split.count") ? integer("split.count") : 0;
    if (count <= 1) return;
    fail_at_key(name_, "split.count",
                "found " + std::to_string(count) +
                    " parts, expected 1 by the file's name, which is not NAME-00001-of-0000N.gguf");
  }
  if (part->count == 0 || part->count > kMaxGgufParts) {
    throw ModelError(name_ + ": found " + std::to_string(part->count) +
                     " parts in the file's name, expected 1 to " + std::to_string(kMaxGgufParts));
  }
  if (part->number != 1) {
    throw ModelError(name_ + ": is part " + std::to_string(part->number) + " of " +
                     std::to_string(part->count) + "; give the first part, " +
                     part_file(part->prefix, 1, part->count));
  }
  open_parts(path, part->prefix, part->count);
}

GgufFile::~GgufFile() = default;

void GgufFile::open_parts(const std::filesystem::path& path, const std::string& prefix,
                          std::size_t count) {
  std::int64_t num_tensors = 0;
  for (std::size_t i = 0; i < count; ++i) {
    GgufHeader header =
        open_file(i == 0 ? path : path.parent_path() / part_file(prefix, i + 1, count));
    const std::string& file = files_.back()->name();
    expect_part_key(header.keys, "split.no", static_cast<std::int64_t>(i), file);
    expect_part_key(header.keys, "split.count", static_cast<std::int64_t>(count), file);
    if (i == 0) {
      num_tensors = integer_of_key(header.keys, "split.tensors.count", file);
      keys_ = std::move(header.keys);
    } else {
      expect_part_key(header.keys, "split.tensors.count", num_tensors, file);
    }
    add_tensors(std::move(header.tensors));
  }
  if (num_tensors == static_cast<std::int64_t>(tensors_.size())) return;
  fail_at_key(name_, "split.tensors.count",
              "found " + std::to_string(num_tensors) + ", expected " +
                  std::to_string(tensors_.size()) + ", the tensors of all parts");
}

GgufHeader GgufFile::open_file(const std::filesystem::path& path) {
  files_.push_back(std::make_unique<const OpenFile>(path));
  const OpenFile& file = *files_.back();
  GgufHeader header =
      parse_gguf([&](std::uint64_t offset, std::span<char> out) { file.read(offset, out); },
                 file.size(), file.name());
  file.check_unchanged();
  return header;
}

void GgufFile::add_tensors(std::vector<TensorInfo> tensors) {
  for (TensorInfo& tensor : tensors) {
    tensor.file = files_.size() - 1;
    const auto [place, is_new] = by_name_.emplace(tensor.name, tensors_.size());
    if (!is_new) {
      throw ModelError(files_.back()->name() + ": tensor " + quote(tensor.name) + ": is also in " +
                       files_[tensors_[place->second].file]->name() + ", expected in one part");
    }
    tensors_.push_back(std::move(tensor));
  }
}

const TensorInfo* GgufFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

void GgufFile::read(const TensorInfo& tensor, std::uint64_t first, std::span<std::byte> out) const {
  assert(out.size() <= tensor.num_bytes() && first <= tensor.num_bytes() - out.size());
  const OpenFile& file = *files_[tensor.file];
  file.read(tensor.offset + first, {reinterpret_cast<char*>(out.data()), out.size()});
  file.check_unchanged();
}

void GgufFile::read_all(const std::function<void(std::span<const std::byte>)>& take) const {
  std::vector<std::byte> piece(kFingerprintPieceBytes);
  for (const auto& file : files_) {
    std::byte length[8];
    for (int i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(file->size() >> (8 * i));
    take(length);
    for (std::uint64_t done = 0; done < file->size();) {
      const std::size_t count = std::min<std::uint64_t>(piece.size(), file->size() - done);
      file->read(done, {reinterpret_cast<char*>(piece.data()), count});
      take(std::span(piece).first(count));
      done += count;
    }
    file->check_unchanged();
  }
}

const GgufValue* GgufFile::find_key(std::string_view key) const {
  const auto found = keys_.find(key);
  return found == keys_.end() ? nullptr : &found->second;
}

std::int64_t GgufFile::integer(std::string_view key) const {
  return integer_of_key(keys_, key, name_);
}

double GgufFile::number(std::string_view key) const {
  const GgufValue& value = value_of_key(keys_, key, name_, false, "a float");
  const double number = expect_type(value.number(), value, key, name_, "a float");
  if (std::isfinite(number)) return number;
  fail_at_key(name_, key, "found " + std::to_string(number) + ", expected a finite number");
}

bool GgufFile::boolean(std::string_view key) const {
  const GgufValue& value = value_of_key(keys_, key, name_, false, "bool");
  return expect_type(value.boolean(), value, key, name_, "bool");
}

std::string_view GgufFile::text(std::string_view key) const {
  const GgufValue& value = value_of_key(keys_, key, name_, false, "string");
  return expect_type(value.text(), value, key, name_, "string");
}

std::vector<std::int64_t> GgufFile::integers(std::string_view key) const {
  const GgufValue& value = list_of_key(keys_, key, name_, "array of integers");
  std::vector<std::int64_t> all(value.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = integer_of(value, i, key, name_);
  return all;
}

std::vector<bool> GgufFile::booleans(std::string_view key) const {
  const GgufValue& value = list_of_key(keys_, key, name_, "array of bool");
  std::vector<bool> all(value.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = expect_type(value.boolean(i), value, key, name_, "array of bool");
  }
  return all;
}

std::vector<std::string_view> GgufFile::texts(std::string_view key) const {
  const GgufValue& value = list_of_key(keys_, key, name_, "array of string");
  std::vector<std::string_view> all(value.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = expect_type(value.text(i), value, key, name_, "array of string");
  }
  return all;
}

}  // namespace lintel
