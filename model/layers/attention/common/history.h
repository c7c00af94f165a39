// SPDX-License-Identifier: Apache-2.0
// History: what a state keeps of every position, in pages that never move.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "model/core/errors.h"
#include "model/core/state_bytes.h"
#include "model/core/tensor.h"
#include "model/layers/layer_state.h"

namespace lintel {

// Counts positions and holds their pages; how they lie in a page is its owner's affair. Pages are
// zeroed before their memory goes back. One thread at a time.
class History {
 public:
  static constexpr std::size_t kPage = 64;  // positions

  // page_floats: of kPage positions.
  explicit History(std::size_t page_floats) : page_floats_(page_floats), pages_(page_floats) {}

  std::size_t length() const { return length_; }
  // The page that holds the position, and the position's slot in it.
  float* page_of(std::size_t position) { return pages_.page(position / kPage); }
  const float* page_of(std::size_t position) const { return pages_.page(position / kPage); }
  static std::size_t slot_of(std::size_t position) { return position % kPage; }

  // Makes room for one more position, and returns it. Throws std::bad_alloc.
  std::size_t append() {
    pages_.grow_to(length_ / kPage + 1);
    return length_++;
  }
  // Takes back the newest position and returns it. Its owner zeroes what it held.
  std::size_t remove_last() { return --length_; }
  // Frees the pages that remove_last left empty.
  void shrink() { pages_.shrink_to(num_pages(length_)); }

  void assign(const History& other) {  // with pages of the same size
    pages_.assign(other.pages_);
    length_ = other.length_;
  }
  void clear() {
    pages_.clear();
    length_ = 0;
  }

  std::size_t bytes() const { return pages_.bytes(); }
  // bytes() of so many positions; SIZE_MAX where no history can hold them.
  static std::size_t bytes_of(std::int64_t num_positions, std::size_t page_floats) {
    if (num_positions > INT32_MAX) return SIZE_MAX;  // smaller numbers do not overflow
    return PagedArray<float>::bytes_of(num_pages(static_cast<std::size_t>(num_positions)),
                                       page_floats);
  }

  // Save and load as LayerState does, of `length` positions then: whole pages.
  void save(std::size_t since, StateWriter& writer) const {
    assert(since <= length_);
    writer.value<std::uint64_t>(since);
    writer.value<std::uint64_t>(length_);
    for (std::size_t p = since / kPage; p < num_pages(length_); ++p) {
      writer.values(std::span<const float>(pages_.page(p), page_floats_));
    }
  }
  void load(std::size_t length, StateReader& reader) {
    check_saved("positions from", reader.value<std::uint64_t>(), length_);
    check_saved("positions up to", reader.value<std::uint64_t>(), length);
    const std::size_t since = length_;
    if (length < since || length > INT32_MAX) {
      throw ModelError("saved state: found positions " + std::to_string(since) + " to " +
                       std::to_string(length));
    }
    for (std::size_t p = since / kPage; p < num_pages(length); ++p) {
      pages_.grow_to(p + 1);  // not all at once: the length may be a lie
      read_finite(reader, std::span(pages_.page(p), page_floats_));
    }
    length_ = length;
  }

 private:
  static std::size_t num_pages(std::size_t positions) { return (positions + kPage - 1) / kPage; }

  std::size_t page_floats_;
  PagedArray<float> pages_;
  std::size_t length_ = 0;
};

}  // namespace lintel
