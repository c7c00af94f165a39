#include "server/sessions/snapshot_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "model/config/json_fields.h"
#include "model/core/model_error.h"
#include "server/sessions/header_fields.h"
#include "server/sessions/plain_header.h"

namespace lintel {
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

// What each_header_field() asks, of parsed JSON.
struct JsonFields {
  void text(const char* key, std::string& value) { value = text_field(fields, key); }
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
  // Each at most the body, which is at most what came: the sum does not overflow.
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

// What sizes and positions have to have to do with each other.
void check_lengths(const Fields& fields, const SnapshotHeader& header) {
  const SessionImage& image = header.of.image;
  const auto bytes_of = [&](std::size_t i) { return header.layout.sections[i].bytes; };
  if (bytes_of(1) % header.value_bytes != 0) {
    fields.fail("sections[1].bytes", std::to_string(bytes_of(1)),
                "a multiple of value_bytes " + std::to_string(header.value_bytes));
  }
  const auto span = static_cast<std::uint64_t>(image.position - image.base);
  const std::uint64_t values = bytes_of(1) / header.value_bytes;
  if (values != span && values != 0) {
    fields.fail("sections[1].bytes", std::to_string(values) + " values",
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
    if (image.base != 0 || values != span) {
      fields.fail("sections[0].bytes", "0", "a state where not all values are there");
    }
    return;
  }
  // What the state lacks is read from the values.
  const std::int64_t lowest = values == span ? image.base : image.position;
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

}  // namespace lintel
