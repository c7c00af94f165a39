#include "server/snapshot/plain_header.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

namespace lintel {
namespace {

// Stands for itself between the quotes of JSON.
bool stands_for_itself(char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; }

class HeaderWriter {
 public:
  void name(std::string_view key) {
    text += text.empty() || text.back() == '[' || text.back() == '{' ? "" : ",";
    if (text.empty()) text += '{';
    text += '"';
    text += key;
    text += "\":";
  }
  void field(std::string_view key, const std::string& value) {
    name(key);
    if (std::ranges::all_of(value, stands_for_itself)) {
      text += '"';
      text += value;
      text += '"';
    } else {
      using nlohmann::json;
      text += json(value).dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false,
                               json::error_handler_t::replace);
    }
  }
  void field(std::string_view key, std::uint64_t value) {
    name(key);
    text += std::to_string(value);
  }
  void field(std::string_view key, std::int64_t value) {
    name(key);
    text += std::to_string(value);
  }

  std::string text;
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
  std::string text(std::string_view key) {
    name(first_ ? "{" : ",", key);
    first_ = false;
    skip("\"");
    const auto end = std::ranges::find_if_not(left_, stands_for_itself);
    const auto size = static_cast<std::size_t>(end - left_.begin());
    ok = ok && size <= kMostSnapshotTextBytes;
    if (!ok) return {};
    std::string value(left_.substr(0, size));
    left_.remove_prefix(size);
    skip("\"");
    return value;
  }
  Digest digest(std::string_view key) {
    const std::optional<Digest> value = digest_from_hex(text(key));
    ok = ok && value.has_value();
    return value.value_or(Digest());
  }
  std::int64_t number(std::int64_t low, std::int64_t high) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(left_.data(), left_.data() + left_.size(), value);
    ok = ok && error == std::errc() && low <= value && value <= high;
    if (!ok) return 0;
    left_.remove_prefix(static_cast<std::size_t>(end - left_.data()));
    return value;
  }
  std::int64_t number(std::string_view key, std::int64_t low, std::int64_t high) {
    name(",", key);
    return number(low, high);
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
  const SnapshotOf& of = header.of;
  const SessionImage& image = of.image;
  HeaderWriter to;
  to.field("model", image.model);
  to.field("adapter", image.adapter);
  to.field("adapter_fingerprint", image.adapter_fingerprint);
  to.field("max_values", image.max_values);
  to.field("window", image.window);
  to.field("position", image.position);
  to.field("base", image.base);
  to.field("state_position", image.state_position);
  to.field("digest", to_hex(image.digest));
  to.field("base_digest", to_hex(image.base_digest));
  to.field("model_fingerprint", of.model_fingerprint);
  to.field("attention", of.attention);
  to.field("weight_type", of.weight_type);
  to.field("numerics", of.numerics);
  to.field("numerics_text", of.numerics_text);
  to.field("lintel_version", of.lintel_version);
  to.field(
      "made_unix_millis",
      std::int64_t{std::chrono::duration_cast<std::chrono::milliseconds>(of.made.time_since_epoch())
                       .count()});
  to.field("value_bytes", std::uint64_t{header.value_bytes});
  to.name("sections");
  for (std::size_t i = 0; i < kSnapshotSections.size(); ++i) {
    to.text += i == 0 ? "[{" : ",{";
    to.field("name", std::string(kSnapshotSections[i]));
    to.field("offset", header.layout.sections[i].offset);
    to.field("bytes", header.layout.sections[i].bytes);
    to.text += '}';
  }
  to.text += "]}";
  to.text.resize(snapshot_padded(to.text.size()), ' ');
  return to.text;
}

std::optional<SnapshotHeader> read_plain_header(std::string_view text, std::uint64_t body_bytes) {
  HeaderReader from(text);
  SnapshotHeader header;
  SnapshotOf& of = header.of;
  SessionImage& image = of.image;
  image.model = from.text("model");
  image.adapter = from.text("adapter");
  image.adapter_fingerprint = from.text("adapter_fingerprint");
  image.max_values = from.number("max_values", 0, kMostSnapshotPosition);
  image.window = from.number("window", 0, kMostSnapshotPosition);
  image.position =
      from.number("position", 0, image.max_values == 0 ? kMostSnapshotPosition : image.max_values);
  image.base = from.number("base", 0, image.position);
  image.state_position = from.number("state_position", 0, image.position);
  image.digest = from.digest("digest");
  image.base_digest = from.digest("base_digest");
  of.model_fingerprint = from.text("model_fingerprint");
  of.attention = from.text("attention");
  of.weight_type = from.text("weight_type");
  of.numerics = from.text("numerics");
  of.numerics_text = from.text("numerics_text");
  of.lintel_version = from.text("lintel_version");
  of.made = std::chrono::system_clock::time_point(
      std::chrono::milliseconds(from.number("made_unix_millis", 0, kMostSnapshotMillis)));
  header.value_bytes = static_cast<std::uint32_t>(from.number("value_bytes", 1, 4));
  from.name(",", "sections");
  const auto most = static_cast<std::int64_t>(
      std::min(body_bytes, static_cast<std::uint64_t>(kMostSnapshotPosition)));
  std::array<std::uint64_t, kSnapshotSections.size()> sizes{};
  for (std::size_t i = 0; i < kSnapshotSections.size(); ++i) {
    from.name(i == 0 ? "[{" : ",{", "name");
    from.skip("\"");
    from.skip(kSnapshotSections[i]);
    from.skip("\"");
    from.number("offset", 0, most);
    sizes[i] = static_cast<std::uint64_t>(from.number("bytes", 0, most));
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
