// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/snapshot.h"

#include <algorithm>
#include <cassert>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "model/config/config.h"
#include "model/core/errors.h"
#include "model/core/tensor.h"

namespace lintel {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw SnapshotError(SnapshotError::Kind::kInvalid, message);
}

// ---- Numbers, little-endian.

std::uint32_t width_of(std::span<const std::int32_t> tokens) {
  std::int32_t largest = 0;
  for (const std::int32_t token : tokens) largest = std::max(largest, token);
  if (largest <= UINT8_MAX) return 1;
  return largest <= UINT16_MAX ? 2 : 4;
}

// Writes a number; returns the place of the next one.
std::byte* put_number(std::uint64_t value, std::size_t width, std::byte* to) {
  for (std::size_t i = 0; i < width; ++i) *to++ = static_cast<std::byte>(value >> (8 * i));
  return to;
}

std::uint64_t number_at(const std::byte* from, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    value |= std::to_integer<std::uint64_t>(from[i]) << (8 * i);
  }
  return value;
}

// ---- Sections.

std::vector<std::int32_t> tokens_of(std::span<const std::byte> section, std::uint32_t width) {
  std::vector<std::int32_t> tokens(section.size() / width);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::uint64_t token = number_at(section.data() + i * width, width);
    if (token > INT32_MAX) {
      refuse("values[" + std::to_string(i) + "]: found " + std::to_string(token) +
             ", expected at most " + std::to_string(INT32_MAX));
    }
    tokens[i] = static_cast<std::int32_t>(token);
  }
  return tokens;
}

std::vector<HistoryMark> marks_of(std::span<const std::byte> section, std::int64_t most) {
  std::vector<HistoryMark> marks(section.size() / kSnapshotMarkBytes);
  std::int64_t lowest = 0;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    const std::byte* const at = section.data() + i * kSnapshotMarkBytes;
    const auto position = static_cast<std::int64_t>(number_at(at, 8));
    const std::uint64_t source = number_at(at + 8, 8);
    const std::string name = "marks[" + std::to_string(i) + "]";
    if (position < lowest || position > most) {
      refuse(name + ".position: found " + std::to_string(position) + ", expected " +
             std::to_string(lowest) + " to " + std::to_string(most));
    }
    if (source > static_cast<std::uint64_t>(TokenSource::kPrompt)) {
      refuse(name + ".source: found " + std::to_string(source) + ", expected 0, 1 or 2");
    }
    marks[i] = {position, static_cast<TokenSource>(source)};
    lowest = position;
  }
  return marks;
}

void check_padding(std::span<const std::byte> body, const SnapshotLayout& layout) {
  for (std::size_t i = 0; i < layout.sections.size(); ++i) {
    const std::uint64_t end = layout.sections[i].offset + layout.sections[i].bytes;
    const auto padding = body.subspan(end, snapshot_padded(end) - end);
    if (std::ranges::any_of(padding, [](std::byte byte) { return byte != std::byte{0}; })) {
      refuse(std::string("section ") + kSnapshotSections[i] + " is not followed by zeros");
    }
  }
}

}  // namespace

SnapshotDraft::SnapshotDraft(const SnapshotAbout& about, const SessionImage& image,
                             std::size_t state_bytes)
    : value_bytes_(width_of(image.tokens)),
      layout_(snapshot_layout({state_bytes, image.tokens.size() * value_bytes_,
                               image.marks.size() * kSnapshotMarkBytes})) {
  SnapshotHeader header{.of = {}, .value_bytes = value_bytes_, .layout = layout_};
  static_cast<SnapshotAbout&>(header.of) = about;
  static_cast<SessionImageHead&>(header.of.image) = image;
  const std::string text = write_snapshot_header(header);
  assert(text.size() <= kMostSnapshotHeaderBytes);
  header_bytes_ = text.size();
  bytes_.reserve(kSnapshotPreambleBytes + text.size() + layout_.body_bytes);
  bytes_.resize(kSnapshotPreambleBytes);
  const auto text_bytes = std::as_bytes(std::span(text));
  bytes_.insert(bytes_.end(), text_bytes.begin(), text_bytes.end());
}

SnapshotDraft::~SnapshotDraft() { zero_memory(std::span(bytes_)); }

std::vector<std::byte> SnapshotDraft::finish(const SessionImage& image) {
  const std::size_t body = kSnapshotPreambleBytes + header_bytes_;
  assert(bytes_.size() == body + layout_.sections[0].bytes);
  bytes_.resize(body + layout_.body_bytes);  // zeros after each section
  std::byte* to = bytes_.data() + body + layout_.sections[1].offset;
  for (const std::int32_t token : image.tokens) {
    to = put_number(static_cast<std::uint32_t>(token), value_bytes_, to);
  }
  to = bytes_.data() + body + layout_.sections[2].offset;
  for (const HistoryMark& mark : image.marks) {
    to = put_number(static_cast<std::uint64_t>(mark.position), 8, to);
    to = put_number(static_cast<std::uint64_t>(mark.source), 8, to);
  }
  const SnapshotPreamble preamble{
      .header_bytes = static_cast<std::uint32_t>(header_bytes_),
      .body_bytes = layout_.body_bytes,
      .checksum = digest_of(std::span(bytes_).subspan(kSnapshotPreambleBytes))};
  std::ranges::copy(preamble.encode(), bytes_.begin());
  return std::exchange(bytes_, {});
}

std::vector<std::byte> write_snapshot(const SnapshotOf& snapshot) {
  const std::span<const std::byte> state = snapshot.image.state_bytes();
  SnapshotDraft draft(snapshot, snapshot.image, state.size());
  draft.bytes().insert(draft.bytes().end(), state.begin(), state.end());
  return draft.finish(snapshot.image);
}

SnapshotOf read_snapshot(std::span<const std::byte> bytes) {
  SnapshotOf of = view_snapshot(bytes);
  const std::span<const std::byte> state = std::exchange(of.image.state_elsewhere, {});
  of.image.state.assign(state.begin(), state.end());
  return of;
}

SnapshotOf view_snapshot(std::span<const std::byte> bytes) {
  const SnapshotPreamble preamble = read_snapshot_preamble(bytes);
  check_snapshot_bytes(preamble, bytes.size());
  const auto rest = bytes.subspan(kSnapshotPreambleBytes);
  if (const Digest found = digest_of(rest); found != preamble.checksum) {
    throw SnapshotError(SnapshotError::Kind::kDamaged, "checksum: found " + to_hex(found) +
                                                           " of its bytes, expected " +
                                                           to_hex(preamble.checksum));
  }
  const auto text = rest.first(preamble.header_bytes);
  const auto body = rest.subspan(preamble.header_bytes);
  SnapshotHeader header = read_snapshot_header(
      {reinterpret_cast<const char*>(text.data()), text.size()}, preamble.body_bytes);
  check_padding(body, header.layout);
  const auto section = [&](std::size_t i) {
    return body.subspan(header.layout.sections[i].offset, header.layout.sections[i].bytes);
  };
  SnapshotOf of = std::move(header.of);
  of.image.state_elsewhere = section(0);
  of.image.tokens = tokens_of(section(1), header.value_bytes);
  of.image.marks = marks_of(section(2), of.image.position);
  return of;
}

namespace {

constexpr char kMagic[] = "LNTLSNP1";
constexpr std::size_t kMagicBytes = sizeof(kMagic) - 1;
constexpr std::size_t kVersionAt = 8, kHeaderBytesAt = 12, kBodyBytesAt = 16, kChecksumAt = 24,
                      kZerosAt = 40;

template <typename T>
void put(T value, std::byte* to) {
  for (std::size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

template <typename T>
T get(const std::byte* from) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(from[i]) << (8 * i);
  return value;
}

}  // namespace

std::array<std::byte, kSnapshotPreambleBytes> SnapshotPreamble::encode() const {
  std::array<std::byte, kSnapshotPreambleBytes> bytes{};
  std::memcpy(bytes.data(), kMagic, kMagicBytes);
  put(version, bytes.data() + kVersionAt);
  put(header_bytes, bytes.data() + kHeaderBytesAt);
  put(body_bytes, bytes.data() + kBodyBytesAt);
  std::copy(checksum.bytes.begin(), checksum.bytes.end(), bytes.begin() + kChecksumAt);
  return bytes;
}

std::optional<SnapshotPreamble> SnapshotPreamble::decode(
    std::span<const std::byte, kSnapshotPreambleBytes> bytes) {
  const bool zeros = std::all_of(bytes.begin() + kZerosAt, bytes.end(),
                                 [](std::byte byte) { return byte == std::byte{0}; });
  if (std::memcmp(bytes.data(), kMagic, kMagicBytes) != 0 || !zeros) return std::nullopt;
  SnapshotPreamble preamble;
  preamble.version = get<std::uint32_t>(bytes.data() + kVersionAt);
  preamble.header_bytes = get<std::uint32_t>(bytes.data() + kHeaderBytesAt);
  preamble.body_bytes = get<std::uint64_t>(bytes.data() + kBodyBytesAt);
  std::copy_n(bytes.begin() + kChecksumAt, preamble.checksum.bytes.size(),
              preamble.checksum.bytes.begin());
  return preamble;
}

SnapshotPreamble read_snapshot_preamble(std::span<const std::byte> bytes) {
  using Kind = SnapshotError::Kind;
  if (bytes.size() < kSnapshotPreambleBytes) {
    throw SnapshotError(Kind::kDamaged, "found " + std::to_string(bytes.size()) +
                                            " bytes, expected at least " +
                                            std::to_string(kSnapshotPreambleBytes));
  }
  const auto preamble = SnapshotPreamble::decode(bytes.first<kSnapshotPreambleBytes>());
  if (!preamble) throw SnapshotError(Kind::kInvalid, "preamble: these bytes are no snapshot");
  if (preamble->version != kSnapshotVersion) {
    throw SnapshotError(Kind::kInvalid, "version: found " + std::to_string(preamble->version) +
                                            ", expected " + std::to_string(kSnapshotVersion));
  }
  if (preamble->header_bytes == 0 || preamble->header_bytes > kMostSnapshotHeaderBytes ||
      preamble->header_bytes % kSnapshotAlignment != 0) {
    throw SnapshotError(Kind::kInvalid, "header_bytes: found " +
                                            std::to_string(preamble->header_bytes) +
                                            ", expected a multiple of 64 up to 65536");
  }
  constexpr std::uint64_t kMostBodyBytes = std::uint64_t{1} << 62;
  if (preamble->body_bytes > kMostBodyBytes || preamble->body_bytes % kSnapshotAlignment != 0) {
    throw SnapshotError(Kind::kInvalid, "body_bytes: found " +
                                            std::to_string(preamble->body_bytes) +
                                            ", expected a multiple of 64 up to 2^62");
  }
  return *preamble;
}

void check_snapshot_bytes(const SnapshotPreamble& preamble, std::uint64_t found) {
  if (found == preamble.total_bytes()) return;
  throw SnapshotError(SnapshotError::Kind::kDamaged, "found " + std::to_string(found) +
                                                         " bytes, expected " +
                                                         std::to_string(preamble.total_bytes()));
}

// The fields of a snapshot's header, in their order: one list for writing and reading.

// Ranges of the header's numbers, and of its texts.
inline constexpr std::int64_t kMostSnapshotPosition = std::int64_t{1} << 62;
inline constexpr std::size_t kMostSnapshotTextBytes = 4096;
inline constexpr std::int64_t kMostSnapshotMillis = std::int64_t{1} << 53;

// Visits all fields except the sections. `each` has functions of a key and a field: text(),
// digest(), number() with the range, and number_unless_0() and text_unless_empty() for fields that
// are left out if they are 0 or empty; each reads the field or writes it. Values read bound later
// ones.
template <typename Each>
void each_header_field(Each& each, SnapshotHeader& header) {
  SnapshotOf& of = header.of;
  SessionImageHead& image = of.image;
  each.text("model", image.model);
  each.text("adapter", image.adapter);
  each.text("adapter_fingerprint", image.adapter_fingerprint);
  each.number("max_values", image.max_tokens, 0, kMostSnapshotPosition);
  each.number("window", image.window, 0, kMostSnapshotPosition);
  each.number("position", image.position, 0,
              image.max_tokens == 0 ? kMostSnapshotPosition : image.max_tokens);
  each.number("base", image.base, 0, image.position);
  each.number("state_position", image.state_position, 0, image.position);
  each.digest("digest", image.digest);
  each.digest("base_digest", image.base_digest);
  each.text("model_fingerprint", of.model_fingerprint);
  each.text("attention", of.attention);
  each.text("weight_type", of.weight_type);
  each.text_unless_empty("kv_type", of.kv_type);
  each.text("numerics", of.numerics);
  each.text("numerics_text", of.numerics_text);
  each.number_unless_0("numerics_changed_at", of.numerics_changed_at, image.position);
  each.text("lintel_version", of.lintel_version);
  std::int64_t made =
      std::chrono::duration_cast<std::chrono::milliseconds>(of.made.time_since_epoch()).count();
  each.number("made_unix_millis", made, 0, kMostSnapshotMillis);
  of.made = std::chrono::system_clock::time_point(std::chrono::milliseconds(made));
  std::int64_t value_bytes = header.value_bytes;
  each.number("value_bytes", value_bytes, 1, 4);
  header.value_bytes = static_cast<std::uint32_t>(value_bytes);
}

// The header of a snapshot as this program writes it: read without a parser of JSON, which would
// take longer than all the rest of a restored session.

// The header; nothing if a byte differs from what write_snapshot_header() writes, or a number is
// out of its range: read_snapshot_header() then gives the reason, or accepts it all the same. Does
// not check sizes and positions against each other.
std::optional<SnapshotHeader> read_plain_header(std::string_view text, std::uint64_t body_bytes);

// The digest of hexadecimal text in a header; nothing for other text.
std::optional<Digest> digest_from_hex(std::string_view hex);

namespace {

// True if the character needs no escape in a string of JSON.
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
  void text_unless_empty(std::string_view key, const std::string& value) {
    if (!value.empty()) text(key, value);
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
  void text_unless_empty(std::string_view key, std::string& value) {
    if (left_.starts_with(",\"" + std::string(key) + "\"")) text(key, value);
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
  // Writing the header again checks offsets, spaces and the form of numbers.
  const bool is_plain =
      header.layout.body_bytes == body_bytes && write_snapshot_header(header) == text;
  return is_plain ? std::optional(std::move(header)) : std::nullopt;
}

namespace {

using nlohmann::json;

constexpr const char* kFile = "header";

std::string text_field(Fields& fields, const char* key) {
  const std::string expected = "a string of at most " + std::to_string(kMostSnapshotTextBytes) +
                               " bytes without control characters";
  const json& value = fields.value(key, expected);
  const auto is_plain = [](const std::string& text) {
    return text.size() <= kMostSnapshotTextBytes && std::ranges::none_of(text, [](char c) {
             return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
           });
  };
  if (!value.is_string() || !is_plain(value.get_ref<const std::string&>())) {
    fields.fail(key, found_text(value), expected);
  }
  return value.get<std::string>();
}

Digest digest_field(Fields& fields, const char* key) {
  const std::string hex = text_field(fields, key);
  const std::optional<Digest> digest = digest_from_hex(hex);
  if (!digest) fields.fail(key, found_text(hex), "32 hexadecimal digits, small letters");
  return *digest;
}

// Reads the fields of each_header_field() from parsed JSON.
struct JsonFields {
  void text(const char* key, std::string& value) { value = text_field(fields, key); }
  void text_unless_empty(const char* key, std::string& value) {
    if (fields.has(key)) value = text_field(fields, key);
  }
  void digest(const char* key, Digest& value) { value = digest_field(fields, key); }
  void number(const char* key, std::int64_t& value, std::int64_t low, std::int64_t high) {
    value = fields.integer(key, low, high);
  }
  void number_unless_0(const char* key, std::int64_t& value, std::int64_t high) {
    if (fields.has(key)) value = fields.integer(key, 1, high);
  }

  Fields& fields;
};

SnapshotLayout read_sections(Fields& fields, std::uint64_t body_bytes) {
  const json& list = fields.value("sections", "a list of the sections");
  if (!list.is_array() || list.size() != kSnapshotSections.size()) {
    fields.fail("sections", found_text(list), "a list of three sections");
  }
  std::array<std::uint64_t, kSnapshotSections.size()> sizes{};
  std::array<std::uint64_t, kSnapshotSections.size()> offsets{};
  const auto most = static_cast<std::int64_t>(body_bytes);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string path = "sections[" + std::to_string(i) + "].";
    if (!list[i].is_object()) fields.fail(path, found_text(list[i]), "an object");
    Fields section(list[i], kFile, path);
    const std::string name = text_field(section, "name");
    if (name != kSnapshotSections[i]) {
      section.fail("name", found_text(name), std::string("\"") + kSnapshotSections[i] + "\"");
    }
    offsets[i] = static_cast<std::uint64_t>(section.integer("offset", 0, most));
    sizes[i] = static_cast<std::uint64_t>(section.integer("bytes", 0, most));
    section.finish();
  }
  // Each size is at most the body's, which was received: the sum does not overflow.
  const SnapshotLayout layout = snapshot_layout(sizes);
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] == layout.sections[i].offset) continue;
    fields.fail("sections[" + std::to_string(i) + "].offset", std::to_string(offsets[i]),
                std::to_string(layout.sections[i].offset));
  }
  if (layout.body_bytes != body_bytes) {
    fields.fail("sections", std::to_string(layout.body_bytes) + " bytes of sections",
                std::to_string(body_bytes) + ", which the preamble says");
  }
  return layout;
}

// Checks sizes and positions against each other.
void check_lengths(const Fields& fields, const SnapshotHeader& header) {
  const SessionImage& image = header.of.image;
  const auto bytes_of = [&](std::size_t i) { return header.layout.sections[i].bytes; };
  if (bytes_of(1) % header.value_bytes != 0) {
    fields.fail("sections[1].bytes", std::to_string(bytes_of(1)),
                "a multiple of value_bytes " + std::to_string(header.value_bytes));
  }
  const auto span = static_cast<std::uint64_t>(image.position - image.base);
  const std::uint64_t tokens = bytes_of(1) / header.value_bytes;
  if (tokens != span && tokens != 0) {
    fields.fail("sections[1].bytes", std::to_string(tokens) + " tokens",
                std::to_string(span) + ", or none");
  }
  if (bytes_of(2) % kSnapshotMarkBytes != 0) {
    fields.fail("sections[2].bytes", std::to_string(bytes_of(2)),
                "a multiple of " + std::to_string(kSnapshotMarkBytes));
  }
  if (bytes_of(0) == 0) {
    if (image.state_position != 0) {
      fields.fail("state_position", std::to_string(image.state_position), "0 without a state");
    }
    if (image.base != 0 || tokens != span) {
      fields.fail("sections[0].bytes", "0", "a state where not all tokens are there");
    }
    return;
  }
  // Tokens that the state lacks are read from the snapshot's.
  const std::int64_t lowest = tokens == span ? image.base : image.position;
  if (image.state_position < lowest) {
    fields.fail("state_position", std::to_string(image.state_position),
                "at least " + std::to_string(lowest));
  }
}

SnapshotHeader read_fields(std::string_view text, std::uint64_t body_bytes) {
  if (std::optional<SnapshotHeader> plain = read_plain_header(text, body_bytes)) {
    check_lengths(Fields(json::object(), kFile, ""), *plain);
    return *std::move(plain);
  }
  const json root = parse_strictly(text, kFile);
  if (!root.is_object()) throw ModelError("header: found no object");
  Fields fields(root, kFile, "");
  SnapshotHeader header;
  JsonFields each{fields};
  each_header_field(each, header);
  if (header.value_bytes == 3) fields.fail("value_bytes", "3", "1, 2 or 4");
  header.layout = read_sections(fields, body_bytes);
  fields.finish();
  check_lengths(fields, header);
  return header;
}

}  // namespace

SnapshotHeader read_snapshot_header(std::string_view text, std::uint64_t body_bytes) {
  try {
    return read_fields(text, body_bytes);
  } catch (const ModelError& error) {
    throw SnapshotError(SnapshotError::Kind::kInvalid, error.what());
  }
}

namespace {

// More than any preamble and header, so that these are taken whole.
constexpr std::size_t kLeastCapacity = 4096;
// Memory for snapshots of up to this size is allocated at once, unverified.
constexpr std::uint64_t kAtOnce = 1 << 20;

}  // namespace

SnapshotReader::~SnapshotReader() { zero_memory(std::span(bytes_)); }

void SnapshotReader::add(std::span<const std::byte> piece) {
  // The preamble is checked before anything after it is kept.
  while (!preamble_ && !piece.empty()) {
    const std::size_t count = std::min(piece.size(), kSnapshotPreambleBytes - bytes_.size());
    grow(bytes_.size() + count);
    bytes_.insert(bytes_.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(count));
    piece = piece.subspan(count);
    if (bytes_.size() < kSnapshotPreambleBytes) return;
    preamble_ = read_snapshot_preamble(bytes_);
    if (preamble_->total_bytes() > most_bytes_) {
      throw SnapshotError(SnapshotError::Kind::kInvalid,
                          "found " + std::to_string(preamble_->total_bytes()) +
                              " bytes, expected at most " + std::to_string(most_bytes_));
    }
  }
  if (piece.empty()) return;
  if (piece.size() > preamble_->total_bytes() - bytes_.size()) {
    check_snapshot_bytes(*preamble_, bytes_.size() + piece.size());
  }
  grow(bytes_.size() + piece.size());
  bytes_.insert(bytes_.end(), piece.begin(), piece.end());
}

SnapshotOf SnapshotReader::view() const { return view_snapshot(bytes_); }

SnapshotOf SnapshotReader::finish() {
  SnapshotOf of = read_snapshot(bytes_);
  zero_memory(std::span(bytes_));
  bytes_.clear();
  return of;
}

std::optional<std::uint64_t> SnapshotReader::total_bytes() const {
  return preamble_ ? std::optional(preamble_->total_bytes()) : std::nullopt;
}

// Small snapshots get their whole memory at once, others double it, never beyond the announced
// size; outgrown memory is zeroed.
void SnapshotReader::grow(std::size_t needed) {
  if (needed <= bytes_.capacity()) return;
  std::size_t capacity = std::max({needed, 2 * bytes_.capacity(), kLeastCapacity});
  if (preamble_ && preamble_->total_bytes() <= kAtOnce) {
    capacity = std::max<std::size_t>(needed, preamble_->total_bytes());
  } else if (preamble_) {
    capacity = std::max(needed, std::min<std::size_t>(capacity, preamble_->total_bytes()));
  }
  std::vector<std::byte> larger;
  larger.reserve(capacity);
  larger.assign(bytes_.begin(), bytes_.end());
  zero_memory(std::span(bytes_));
  bytes_ = std::move(larger);
}

}  // namespace lintel
