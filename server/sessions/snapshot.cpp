#include "server/sessions/snapshot.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "model/core/tensor.h"
#include "server/sessions/snapshot_header.h"
#include "server/sessions/snapshot_preamble.h"

namespace lintel {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw SnapshotError(SnapshotError::Kind::kInvalid, message);
}

// ---- Numbers, little-endian.

std::uint32_t width_of(std::span<const std::int32_t> values) {
  std::int32_t largest = 0;
  for (const std::int32_t value : values) largest = std::max(largest, value);
  if (largest <= UINT8_MAX) return 1;
  return largest <= UINT16_MAX ? 2 : 4;
}

// Returns where the next one goes.
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

std::vector<std::int32_t> values_of(std::span<const std::byte> section, std::uint32_t width) {
  std::vector<std::int32_t> values(section.size() / width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t value = number_at(section.data() + i * width, width);
    if (value > INT32_MAX) {
      refuse("values[" + std::to_string(i) + "]: found " + std::to_string(value) +
             ", expected at most " + std::to_string(INT32_MAX));
    }
    values[i] = static_cast<std::int32_t>(value);
  }
  return values;
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
    if (source > static_cast<std::uint64_t>(ValueSource::kPrompt)) {
      refuse(name + ".source: found " + std::to_string(source) + ", expected 0, 1 or 2");
    }
    marks[i] = {position, static_cast<ValueSource>(source)};
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
    : value_bytes_(width_of(image.values)),
      layout_(snapshot_layout({state_bytes, image.values.size() * value_bytes_,
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
  for (const std::int32_t value : image.values) {
    to = put_number(static_cast<std::uint32_t>(value), value_bytes_, to);
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
  of.image.values = values_of(section(1), header.value_bytes);
  of.image.marks = marks_of(section(2), of.image.position);
  return of;
}

}  // namespace lintel
