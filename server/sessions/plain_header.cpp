#include "server/sessions/plain_header.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>

#include "server/sessions/header_fields.h"

namespace lintel {
namespace {

// Stands for itself between the quotes of JSON.
bool stands_for_itself(char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; }

class HeaderWriter {
 public:
  void name(std::string_view key) {
    out += out.empty() || out.back() == '[' || out.back() == '{' ? "" : ",";
    if (out.empty()) out += '{';
    out += '"';
    out += key;
    out += "\":";
  }
  void text(std::string_view key, const std::string& value) {
    name(key);
    if (std::ranges::all_of(value, stands_for_itself)) {
      out += '"';
      out += value;
      out += '"';
    } else {
      using nlohmann::json;
      out += json(value).dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false,
                              json::error_handler_t::replace);
    }
  }
  void digest(std::string_view key, const Digest& value) { text(key, to_hex(value)); }
  void number(std::string_view key, std::int64_t value, std::int64_t = 0, std::int64_t = 0) {
    name(key);
    out += std::to_string(value);
  }
  void number_unless_0(std::string_view key, std::int64_t value, std::int64_t) {
    if (value != 0) number(key, value);
  }

  std::string out;
};

// Reads fields in the order in which they are written; `ok` is false from the first other one on.
class HeaderReader {
 public:
  explicit HeaderReader(std::string_view text) : left_(text) {}

  void skip(std::string_view expected) {
    ok = ok && left_.starts_with(expected);
    if (ok) left_.remove_prefix(expected.size());
  }
  void name(std::string_view before, std::string_view key) {
    skip(before);
    skip("\"");
    skip(key);
    skip("\":");
  }
  void text(std::string_view key, std::string& value) {
    name(first_ ? "{" : ",", key);
    first_ = false;
    skip("\"");
    const auto end = std::ranges::find_if_not(left_, stands_for_itself);
    const auto size = static_cast<std::size_t>(end - left_.begin());
    ok = ok && size <= kMostSnapshotTextBytes;
    if (!ok) return;
    value = left_.substr(0, size);
    left_.remove_prefix(size);
    skip("\"");
  }
  void digest(std::string_view key, Digest& value) {
    std::string hex;
    text(key, hex);
    const std::optional<Digest> digest = digest_from_hex(hex);
    ok = ok && digest.has_value();
    value = digest.value_or(Digest());
  }
  std::int64_t number(std::int64_t low, std::int64_t high) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(left_.data(), left_.data() + left_.size(), value);
    ok = ok && error == std::errc() && low <= value && value <= high;
    if (!ok) return 0;
    left_.remove_prefix(static_cast<std::size_t>(end - left_.data()));
    return value;
  }
  void number(std::string_view key, std::int64_t& value, std::int64_t low, std::int64_t high) {
    name(",", key);
    value = number(low, high);
  }
  void number_unless_0(std::string_view key, std::int64_t& value, std::int64_t high) {
    if (left_.starts_with(",\"" + std::string(key) + "\"")) number(key, value, 1, high);
  }

  bool ok = true;

 private:
  std::string_view left_;
  bool first_ = true;
};

}  // namespace

std::optional<Digest> digest_from_hex(std::string_view hex) {
  Digest digest;
  if (hex.size() != 2 * digest.bytes.size()) return std::nullopt;
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (std::size_t i = 0; i < digest.bytes.size(); ++i) {
    const int high = digit(hex[2 * i]);
    const int low = digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    digest.bytes[i] = static_cast<std::byte>(16 * high + low);
  }
  return digest;
}

std::string write_snapshot_header(const SnapshotHeader& header) {
  HeaderWriter to;
  SnapshotHeader fields = header;  // without lists
  each_header_field(to, fields);
  to.name("sections");
  for (std::size_t i = 0; i < kSnapshotSections.size(); ++i) {
    to.out += i == 0 ? "[{" : ",{";
    to.text("name", std::string(kSnapshotSections[i]));
    to.number("offset", static_cast<std::int64_t>(header.layout.sections[i].offset));
    to.number("bytes", static_cast<std::int64_t>(header.layout.sections[i].bytes));
    to.out += '}';
  }
  to.out += "]}";
  to.out.resize(snapshot_padded(to.out.size()), ' ');
  return to.out;
}

std::optional<SnapshotHeader> read_plain_header(std::string_view text, std::uint64_t body_bytes) {
  HeaderReader from(text);
  SnapshotHeader header;
  each_header_field(from, header);
  from.name(",", "sections");
  const auto most = static_cast<std::int64_t>(
      std::min(body_bytes, static_cast<std::uint64_t>(kMostSnapshotPosition)));
  std::array<std::uint64_t, kSnapshotSections.size()> sizes{};
  for (std::size_t i = 0; i < kSnapshotSections.size(); ++i) {
    from.name(i == 0 ? "[{" : ",{", "name");
    from.skip("\"");
    from.skip(kSnapshotSections[i]);
    from.skip("\"");
    std::int64_t offset = 0, bytes = 0;
    from.number("offset", offset, 0, most);
    from.number("bytes", bytes, 0, most);
    sizes[i] = static_cast<std::uint64_t>(bytes);
    from.skip("}");
  }
  if (!from.ok || header.value_bytes == 3) return std::nullopt;
  header.layout = snapshot_layout(sizes);
  // Offsets, spaces, and how numbers are written: all is said once more by writing it.
  const bool is_plain =
      header.layout.body_bytes == body_bytes && write_snapshot_header(header) == text;
  return is_plain ? std::optional(std::move(header)) : std::nullopt;
}

}  // namespace lintel
