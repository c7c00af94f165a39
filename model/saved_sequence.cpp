// A sequence as bytes: SequenceState::save and load.
#include <algorithm>
#include <cassert>
#include <string>

#include "model/core/model_error.h"
#include "model/core/state_bytes.h"
#include "model/sequence.h"

namespace lintel {
namespace {

constexpr std::int32_t kNothingPending = -1;
// Far beyond every sequence, and positions can still be counted on from it.
constexpr std::int64_t kMostPositions = std::int64_t{1} << 62;

// Throws ModelError unless lowest <= found <= highest.
void check_range(const char* what, std::int64_t found, std::int64_t lowest, std::int64_t highest) {
  if (found >= lowest && found <= highest) return;
  throw ModelError(std::string("saved sequence: found ") + what + " " + std::to_string(found) +
                   ", expected " + std::to_string(lowest) + " to " + std::to_string(highest));
}

void check_size(const char* what, std::size_t found, std::size_t expected) {
  const auto size = static_cast<std::int64_t>(expected);
  check_range(what, static_cast<std::int64_t>(found), size, size);
}

}  // namespace

void SequenceState::save(StateWriter& writer) const {
  assert(generated_tail.size() <= kMostTailBytes && !has_drafts_);
  settle_layers();
  writer.value(position_);
  writer.value(pending.value_or(kNothingPending));
  writer.value(static_cast<std::uint32_t>(generated_tail.size()));
  writer.value(static_cast<std::uint32_t>(counts.size()));
  writer.value(static_cast<std::uint32_t>(layers_.size()));
  writer.value(origin);
  writer.values(std::span<const char>(generated_tail));
  writer.values(std::span<const std::uint32_t>(counts));
  for (const auto& layer : layers_) layer->save(/*since=*/0, writer);
  if (!layers_.empty()) return;
  const auto tokens = static_cast<std::size_t>(position_);
  for (std::size_t t = 0; t < tokens; t += kTokenPage) {
    writer.values(std::span<const std::int32_t>(tokens_.page(t / kTokenPage),
                                                std::min(kTokenPage, tokens - t)));
  }
}

std::size_t SequenceState::saved_bytes() const {
  StateByteCount count;
  save(count);
  return count.bytes();
}

void SequenceState::load(StateReader& reader, std::int64_t most_values) {
  assert(num_values() == 0);
  try {
    load_all(reader, most_values);
  } catch (...) {
    reset();
    throw;
  }
}

void SequenceState::load_all(StateReader& reader, std::int64_t most_values) {
  const auto position = reader.value<std::int64_t>();
  const auto token = reader.value<std::int32_t>();
  const auto tail_bytes = reader.value<std::uint32_t>();
  const auto num_counts = reader.value<std::uint32_t>();
  const auto num_layers = reader.value<std::uint32_t>();
  const auto begin = reader.value<std::int64_t>();
  const std::int64_t max_length = limits_.max_length == 0 ? kMostPositions : limits_.max_length;
  check_range("position", position, 0, max_length);
  check_range("pending value", token, kNothingPending, limits_.vocab_size - 1);
  check_range("values", position + (token == kNothingPending ? 0 : 1), 0, most_values);
  check_range("tail of bytes", tail_bytes, 0, static_cast<std::int64_t>(kMostTailBytes));
  check_size("counts", num_counts, counts.size());
  check_size("layers", num_layers, layers_.size());
  check_range("origin", begin, 0, kMostPositions - position);

  if (tail_bytes > 0) {
    // A tail that grows would leave what it held in the memory that it outgrew.
    generated_tail.reserve(kMostTailBytes);
    generated_tail.resize(tail_bytes);
    reader.values(std::span<char>(generated_tail));
  }
  reader.values(std::span<std::uint32_t>(counts));
  for (const auto& layer : layers_) layer->load(position, reader);
  if (layers_.empty()) {
    const auto tokens = static_cast<std::size_t>(position);
    for (std::size_t t = 0; t < tokens; t += kTokenPage) {
      tokens_.grow_to(t / kTokenPage + 1);  // not all at once: the position may be a lie
      const std::span page(tokens_.page(t / kTokenPage), std::min(kTokenPage, tokens - t));
      reader.values(page);
      for (const std::int32_t value : page) check_range("token", value, 0, limits_.vocab_size - 1);
    }
  }
  origin = begin;
  position_ = position;
  if (token != kNothingPending) pending = token;
}

}  // namespace lintel
