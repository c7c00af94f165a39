// SPDX-License-Identifier: Apache-2.0
// KvCache: keys and values of the positions of a sequence, in pages that sequences share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/core/shared_block.h"
#include "model/layers/layer_state.h"
#include "model/ops/kv_kernels.h"

namespace lintel {

// The state of a layer of softmax attention: pages of kKvPage positions, in the format of
// kv_kernels.h. assign() takes references to the pages of the other cache; a page with several
// owners is copied before it is written, so that only the last one, which is not full, ever is.
// Slots after the last position are zeros.
//
// Where queries see a window of positions, pages that have left it are released after each run,
// as far as no draft can be taken back to where they are seen.
//
// load() takes a cache that was saved in any type, and holds it in its own.
class KvCache final : public LayerState {
 public:
  // shape: outlives the state. window: positions that a query sees, its own among them.
  KvCache(const KvShape& shape, std::size_t window) : shape_(shape), window_(window) {}

  std::size_t bytes() const override;  // with those of shared pages
  void assign(const LayerState& other) override;
  void reset() override;
  // Until they are judged, drafts may take as many pages more as they fill.
  void begin_speculation(std::size_t num_rows, std::span<float> /*memory*/) override {
    drafts_ = num_rows;
  }
  void rollback(std::size_t num_rows) override;
  void save(std::int64_t since, StateWriter& writer) const override;
  void load(std::int64_t position, StateReader& reader) override;

  std::size_t length() const { return length_; }  // positions
  // The page of a position that is held.
  const std::byte* page_of(std::size_t position) const {
    return pages_[position / kKvPage - first_page_].data();
  }
  // Pages that other sequences hold, too.
  std::size_t shared_pages() const;

  // A run of so many rows follows. Those announced by begin_speculation are its last.
  void begin_run(std::size_t num_rows);
  // Keys and values [HKV D] of the next position. Throws std::bad_alloc.
  void append(const float* k, const float* v);
  // Releases the pages that no position from the next on can see.
  void release_unseen();

 private:
  std::byte* writable(std::size_t page);
  // StateWriter::block's `end` for a page of a cache of `length` positions.
  std::int64_t full_at(std::size_t page, std::size_t length) const;

  const KvShape& shape_;
  const std::size_t window_;
  std::vector<SharedBlock> pages_;
  std::size_t first_page_ = 0;  // number of pages_[0] in the sequence
  std::size_t length_ = 0;
  std::size_t settled_ = 0;  // positions that no rollback takes back, those of this run included
  std::size_t drafts_ = 0;   // of the next run
};

class KvCacheLayout final : public StateLayout {
 public:
  // window: SIZE_MAX: all positions.
  KvCacheLayout(const KvShape& shape, std::size_t window) : shape_(shape), window_(window) {}

  std::size_t block_floats() const override { return 0; }
  std::unique_ptr<LayerState> new_state(std::span<float> /*block*/) const override {
    return std::make_unique<KvCache>(shape_, window_);
  }
  std::size_t state_bytes(std::int64_t num_tokens) const override;
  std::int64_t tokens_until_full() const override;
  std::int64_t page_tokens() const override { return kKvPage; }
  std::size_t rollback_floats(std::size_t /*num_rows*/, std::int64_t /*end*/) const override {
    return 0;
  }
  const KvShape& shape() const { return shape_; }

 private:
  const KvShape shape_;
  const std::size_t window_;
};

}  // namespace lintel
