// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/world.h"

#include <algorithm>
#include <cassert>
#include <charconv>
#include <optional>

#include "model/core/errors.h"
#include "model/tokenizer/limits.h"
#include "model/tokenizer/unicode.h"

namespace lintel {

ByteTrie::ByteTrie(std::vector<TextId> texts) {
  if (texts.empty()) return;
  std::ranges::sort(texts, {}, &TextId::text);
  // Texts [begin, end) share the bytes up to a node, which is `depth` bytes from the root.
  struct Part {
    std::size_t begin;
    std::size_t end;
    std::size_t depth;
    std::uint32_t node;  // kNone: the root
  };
  roots_.fill(kNone);
  std::vector<Part> open{{0, texts.size(), 0, kNone}};
  while (!open.empty()) {
    Part part = open.back();
    open.pop_back();
    if (part.node != kNone && texts[part.begin].text.size() == part.depth) {
      nodes_[part.node].id = texts[part.begin++].id;
    }
    if (part.node != kNone)
      nodes_[part.node].first_child = static_cast<std::uint32_t>(nodes_.size());
    while (part.begin < part.end) {
      const char byte = texts[part.begin].text[part.depth];
      std::size_t end = part.begin + 1;
      while (end < part.end && texts[end].text[part.depth] == byte) ++end;
      const auto node = static_cast<std::uint32_t>(nodes_.size());
      nodes_.push_back({.byte = static_cast<std::uint8_t>(byte)});
      if (part.node == kNone) {
        roots_[static_cast<unsigned char>(byte)] = node;
      } else {
        ++nodes_[part.node].num_children;
      }
      open.push_back({part.begin, end, part.depth + 1, node});
      part.begin = end;
    }
  }
  nodes_.shrink_to_fit();
}

std::uint32_t ByteTrie::child(std::uint32_t node, unsigned char byte) const {
  const Node* const first = nodes_.data() + nodes_[node].first_child;
  const Node* const last = first + nodes_[node].num_children;
  const Node* const found = std::lower_bound(
      first, last, byte, [](const Node& child, unsigned char b) { return child.byte < b; });
  if (found == last || found->byte != byte) return kNone;
  return static_cast<std::uint32_t>(found - nodes_.data());
}

void encode_world(const ByteTrie& trie, std::string_view text, std::vector<std::int32_t>& ids) {
  while (!text.empty()) {
    std::int32_t id = -1;
    std::size_t bytes = 1;
    trie.each_prefix(text, [&](std::int32_t found, std::size_t length) {
      id = found;
      bytes = length;
    });
    assert(id >= 0);  // all single bytes are there
    ids.push_back(id);
    text.remove_prefix(bytes);
  }
}

namespace {

std::optional<std::uint32_t> read_hex(std::string_view digits) {
  std::uint32_t value = 0;
  const char* const end = digits.data() + digits.size();
  if (digits.starts_with('-')) return std::nullopt;
  const auto [at, error] = std::from_chars(digits.data(), end, value, 16);
  return error == std::errc() && at == end ? std::optional(value) : std::nullopt;
}

// Decimal digits alone.
std::optional<std::uint32_t> read_decimal(std::string_view digits) {
  std::uint32_t value = 0;
  const char* const end = digits.data() + digits.size();
  if (digits.empty() || digits.front() < '0' || digits.front() > '9') return std::nullopt;
  const auto [at, error] = std::from_chars(digits.data(), end, value);
  return error == std::errc() && at == end ? std::optional(value) : std::nullopt;
}

// The escape after a backslash. Removes it from `rest`.
bool read_escape(std::string_view& rest, const LiteralForm& form, std::string& bytes) {
  if (rest.empty()) return false;
  const char kind = rest.front();
  rest.remove_prefix(1);
  switch (kind) {
    case 't':
      bytes += '\t';
      return true;
    case 'n':
      bytes += '\n';
      return true;
    case 'r':
      bytes += '\r';
      return true;
    case '\\':
    case '\'':
      bytes += kind;
      return true;
    case '"':
      bytes += kind;
      return form.is_bare;
    case 'x':
    case 'u':
      break;
    default:
      return false;
  }
  if (kind == 'u' && form.is_bytes) return false;
  const std::size_t num_digits = kind == 'x' ? 2 : 4;
  if (rest.size() < num_digits) return false;
  const auto value = read_hex(rest.substr(0, num_digits));
  rest.remove_prefix(num_digits);
  if (!value || (*value >= 0xD800 && *value < 0xE000)) return false;
  if (form.is_bytes) {
    bytes += static_cast<char>(*value);
  } else {
    append_utf8(bytes, *value);
  }
  return true;
}

// One line of the file.
class WorldLine {
 public:
  WorldLine(std::string_view line, std::size_t number, const std::string& name)
      : line_(line), number_(number), name_(name) {}

  std::int32_t read(std::string& bytes) const {
    const std::size_t first = line_.find(' ');
    const std::size_t last = line_.rfind(' ');
    if (first == std::string_view::npos || first == last) fail("an id, a literal and a length");
    const auto id = read_decimal(line_.substr(0, first));
    if (!id || *id == 0 || *id >= kMostTokens) {
      fail("an id from 1 to " + std::to_string(kMostTokens - 1));
    }
    std::string_view literal = line_.substr(first + 1, last - first - 1);
    LiteralForm form{.is_bytes = literal.starts_with('b')};
    if (form.is_bytes) literal.remove_prefix(1);
    form.quote = literal.empty() ? '\0' : literal.front();
    const bool is_quoted = literal.size() >= 2 && (form.quote == '\'' || form.quote == '"') &&
                           literal.back() == form.quote;
    if (!is_quoted || !read_python_literal(literal.substr(1, literal.size() - 2), form, bytes)) {
      fail("a string or bytes as Python writes them");
    }
    if (bytes.empty() || bytes.size() > kMostEntryBytes) {
      fail("from 1 to " + std::to_string(kMostEntryBytes) + " bytes");
    }
    const auto length = read_decimal(line_.substr(last + 1));
    if (!length || *length != bytes.size()) {
      fail("the length " + std::to_string(bytes.size()) + " of the literal");
    }
    return static_cast<std::int32_t>(*id);
  }

  [[noreturn]] void fail(const std::string& expected) const {
    throw ModelError(name_ + ": line " + std::to_string(number_) + ": found " + quote(line_) +
                     ", expected " + expected);
  }

 private:
  std::string_view line_;
  std::size_t number_;
  const std::string& name_;
};

}  // namespace

bool read_python_literal(std::string_view inside, const LiteralForm& form, std::string& bytes) {
  bytes.clear();
  while (!inside.empty()) {
    const char c = inside.front();
    inside.remove_prefix(1);
    if (c == '\\') {
      if (!read_escape(inside, form, bytes)) return false;
      continue;
    }
    const bool is_ascii = static_cast<unsigned char>(c) < 0x80;
    if (!form.is_bare && (c == form.quote || (form.is_bytes && !is_ascii))) return false;
    bytes += c;
  }
  return true;
}

WorldEntries parse_world_vocabulary(std::string_view text, const std::string& name) {
  WorldEntries entries;
  std::string bytes;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const WorldLine line(text.substr(0, end), number, name);
    text.remove_prefix(std::min(end + 1, text.size()));
    const auto id = static_cast<std::size_t>(line.read(bytes));
    if (id >= entries.size()) entries.resize(id + 1);
    if (!entries[id].empty()) line.fail("an id that no line before it has");
    entries[id] = bytes;
  }
  check_world_bytes(entries, name);
  return entries;
}

void check_world_bytes(const WorldEntries& entries, const std::string& name) {
  std::array<bool, 256> there{};
  for (const std::string& entry : entries) {
    if (entry.size() == 1) there[static_cast<unsigned char>(entry.front())] = true;
  }
  const auto missing = std::ranges::find(there, false);
  if (missing == there.end()) return;
  throw ModelError(name + ": found no entry for the byte " +
                   std::to_string(missing - there.begin()) +
                   ", expected one for each of the 256 bytes");
}

}  // namespace lintel
