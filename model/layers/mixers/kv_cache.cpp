// SPDX-License-Identifier: Apache-2.0
#include "model/layers/mixers/kv_cache.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "model/core/errors.h"
#include "model/core/state_bytes.h"

namespace lintel {
namespace {

constexpr std::uint32_t kFormat = 0x3150564b;  // "KVP1": what a saved cache begins with

std::size_t pages_of(std::size_t positions) { return (positions + kKvPage - 1) / kKvPage; }

// Addresses of pages are added by a cache line at a time.
std::size_t table_size(std::size_t num_pages) {
  constexpr std::size_t kStep = kAlignment / sizeof(SharedBlock);
  return (num_pages + kStep - 1) / kStep * kStep;
}

std::size_t bytes_of_pages(const KvShape& shape, std::size_t num_pages) {
  return num_pages * SharedBlock::bytes_of(kv_page_bytes(shape)) +
         table_size(num_pages) * sizeof(SharedBlock);
}

// The first page that a query at `position` or after it can see.
std::size_t first_seen_page(std::size_t position, std::size_t window) {
  return position + 1 > window ? (position + 1 - window) / kKvPage : 0;
}

// Most pages that are held between runs, and within one whose rows are fed up to the end of a page
// at a time.
std::size_t most_pages(std::size_t window) {
  return window > INT32_MAX ? SIZE_MAX : pages_of(window - 1) + 1;
}

// The values of a page in cells of another type. Throws std::bad_alloc.
SharedBlock converted(const KvShape& from, const SharedBlock& page, const KvShape& to) {
  const std::size_t width = to.heads * to.width;
  SharedBlock made(kv_page_bytes(to));
  SharedBlock row(2 * width * sizeof(float));  // zeroed afterwards
  float* const k = reinterpret_cast<float*>(row.data());
  for (std::size_t slot = 0; slot < kKvPage; ++slot) {
    kv_read(from, page.data(), slot, k, k + width);
    kv_append(to, k, k + width, slot, made.data());
  }
  return made;
}

}  // namespace

std::size_t KvCache::bytes() const { return bytes_of_pages(shape_, pages_.size()); }

std::size_t KvCache::shared_pages() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(pages_, [](const SharedBlock& page) { return page.is_shared(); }));
}

void KvCache::assign(const LayerState& other) {
  const auto& from = static_cast<const KvCache&>(other);
  std::vector<SharedBlock> pages;
  pages.reserve(table_size(from.pages_.size()));
  pages.assign(from.pages_.begin(), from.pages_.end());
  pages_ = std::move(pages);
  first_page_ = from.first_page_;
  length_ = settled_ = from.length_;
  drafts_ = 0;
}

void KvCache::reset() {
  std::vector<SharedBlock>().swap(pages_);
  first_page_ = length_ = settled_ = drafts_ = 0;
}

void KvCache::begin_run(std::size_t num_rows) {
  assert(drafts_ <= num_rows);
  settled_ = length_ + num_rows - std::exchange(drafts_, 0);
}

std::int64_t KvCache::full_at(std::size_t page, std::size_t length) const {
  const std::size_t end = (page + 1) * kKvPage;
  // Pages that leave the window are not there for every state of the sequence.
  return end > length || window_ <= INT32_MAX ? 0 : static_cast<std::int64_t>(end);
}

std::byte* KvCache::writable(std::size_t page) {
  SharedBlock& block = pages_[page - first_page_];
  if (block.is_shared()) block = block.copy();
  return block.data();
}

void KvCache::append(const float* k, const float* v) {
  const std::size_t page = length_ / kKvPage;
  if (page == first_page_ + pages_.size()) {
    if (pages_.size() == pages_.capacity()) pages_.reserve(table_size(pages_.size() + 1));
    pages_.emplace_back(kv_page_bytes(shape_));
  }
  kv_append(shape_, k, v, length_ % kKvPage, writable(page));
  ++length_;
}

void KvCache::release_unseen() {
  const std::size_t first = first_seen_page(std::min(settled_, length_), window_);
  if (first <= first_page_) return;
  const std::size_t count = std::min(first - first_page_, pages_.size());
  pages_.erase(pages_.begin(), pages_.begin() + static_cast<std::ptrdiff_t>(count));
  first_page_ = first;
}

void KvCache::rollback(std::size_t num_rows) {
  assert(num_rows <= length_ - settled_);
  for (; num_rows > 0; --num_rows) {
    --length_;
    const std::size_t page = length_ / kKvPage;
    if (length_ % kKvPage == 0) {
      pages_.pop_back();
    } else {
      kv_erase(shape_, length_ % kKvPage, writable(page));
    }
  }
  settled_ = length_;
  release_unseen();
}

void KvCache::save(std::int64_t since, StateWriter& writer) const {
  assert(0 <= since && static_cast<std::size_t>(since) <= length_);
  writer.value(kFormat);
  writer.value(static_cast<std::uint32_t>(shape_.type));
  writer.value<std::uint64_t>(static_cast<std::uint64_t>(since));
  writer.value<std::uint64_t>(length_);
  const std::size_t first =
      std::max(static_cast<std::size_t>(since) / kKvPage, first_seen_page(length_, window_));
  for (std::size_t p = first; p < first_page_ + pages_.size(); ++p) {
    writer.block(pages_[p - first_page_], full_at(p, length_));
  }
}

void KvCache::load(std::int64_t position, StateReader& reader) {
  check_saved("a KV cache of format", reader.value<std::uint32_t>(), kFormat);
  const auto type = reader.value<std::uint32_t>();
  if (type >= kKvTypes.size()) {
    throw ModelError("saved state: found a KV cache of type " + std::to_string(type) +
                     ", expected at most " + std::to_string(kKvTypes.size() - 1));
  }
  KvShape saved = shape_;
  saved.type = kKvTypes[type];
  if (saved.type != shape_.type) reader.note_conversion();
  check_saved("positions from", reader.value<std::uint64_t>(), length_);
  check_saved("positions up to", reader.value<std::uint64_t>(),
              static_cast<std::uint64_t>(position));
  const auto length = static_cast<std::size_t>(position);
  const bool is_too_long = length > INT32_MAX && window_ > INT32_MAX;
  if (position < 0 || length < length_ || is_too_long) {
    throw ModelError("saved state: found positions " + std::to_string(length_) + " to " +
                     std::to_string(position));
  }
  settled_ = length;
  const std::size_t held = first_page_ + pages_.size();
  const std::size_t first = std::max(length_ / kKvPage, first_seen_page(length, window_));
  if (first > held) {  // nothing of what is held is seen from there on
    pages_.clear();
    first_page_ = first;
  }
  for (std::size_t p = first; p < pages_of(length); ++p) {
    // One by one: the length may be a lie.
    SharedBlock page = reader.block(kv_page_bytes(saved), full_at(p, length));
    bool is_finite = reader.is_trusted() || kv_is_finite(saved, page.data());
    if (saved.type != shape_.type) {
      page = converted(saved, page, shape_);
      // The largest numbers of one type are infinite in another.
      is_finite = is_finite && (reader.is_trusted() || kv_is_finite(shape_, page.data()));
    }
    if (!is_finite) {
      throw ModelError("saved state: found keys or values that are not finite");
    }
    if (p < first_page_ + pages_.size()) {
      pages_[p - first_page_] = std::move(page);
      continue;
    }
    if (pages_.size() == pages_.capacity()) pages_.reserve(table_size(pages_.size() + 1));
    pages_.push_back(std::move(page));
  }
  length_ = length;
  release_unseen();
}

std::size_t KvCacheLayout::state_bytes(std::int64_t num_tokens) const {
  if (num_tokens > INT32_MAX && window_ > INT32_MAX) return SIZE_MAX;
  // Smaller numbers of tokens do not overflow.
  const auto tokens = static_cast<std::size_t>(std::min<std::int64_t>(num_tokens, INT32_MAX));
  return bytes_of_pages(shape_, std::min(pages_of(tokens), most_pages(window_)));
}

std::int64_t KvCacheLayout::tokens_until_full() const {
  const std::size_t pages = most_pages(window_);
  return pages == SIZE_MAX ? kNeverFull : static_cast<std::int64_t>(pages * kKvPage);
}

}  // namespace lintel
