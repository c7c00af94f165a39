// SPDX-License-Identifier: Apache-2.0
#include "model/token_counts.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <string>
#include <utility>

#include "model/core/errors.h"
#include "model/core/tensor.h"

namespace lintel {
namespace {

constexpr std::size_t kLeastPairs = 16;
constexpr std::uint32_t kPairs = std::uint32_t{1} << 31;  // of a header: pairs follow

// Cells that a table needs for so many tokens; vocab_size where it is dense by then.
std::size_t cells_for(std::size_t vocab_size, std::size_t num_tokens) {
  if (vocab_size <= TokenCounts::kMostDense) return vocab_size;
  if (num_tokens == 0) return 0;
  const std::size_t pairs = std::bit_ceil(std::max(kLeastPairs, (num_tokens * 4 + 2) / 3));
  return std::min(2 * pairs, vocab_size);
}

}  // namespace

TokenCounts::TokenCounts(std::size_t vocab_size)
    : vocab_size_(vocab_size), cells_(cells_for(vocab_size, 0)) {}

TokenCounts::TokenCounts(TokenCounts&& other) noexcept
    : vocab_size_(std::exchange(other.vocab_size_, 0)),
      num_tokens_(std::exchange(other.num_tokens_, 0)),
      cells_(std::exchange(other.cells_, {})) {}

TokenCounts& TokenCounts::operator=(TokenCounts&& other) noexcept {
  if (this == &other) return *this;
  zero();
  vocab_size_ = std::exchange(other.vocab_size_, 0);
  num_tokens_ = std::exchange(other.num_tokens_, 0);
  cells_ = std::exchange(other.cells_, {});
  return *this;
}

TokenCounts& TokenCounts::operator=(const TokenCounts& other) {
  if (this == &other) return *this;
  if (cells_.size() == other.cells_.size()) {
    std::ranges::copy(other.cells_, cells_.begin());
    vocab_size_ = other.vocab_size_;
    num_tokens_ = other.num_tokens_;
    return *this;
  }
  return *this = TokenCounts(other);
}

void TokenCounts::zero() { zero_memory(std::span(cells_)); }

void TokenCounts::clear() noexcept {
  zero();
  num_tokens_ = 0;
  if (vocab_size_ > kMostDense) std::vector<std::uint32_t>().swap(cells_);
}

// The place of a token's count; takes a free one. Null: the table has none.
std::uint32_t* TokenCounts::find(std::int32_t token) {
  const std::size_t pairs = cells_.size() / 2;
  if (pairs == 0) return nullptr;
  const std::uint32_t key = static_cast<std::uint32_t>(token) + 1;
  const std::size_t first = (key * 2654435761u) >> (32 - std::bit_width(pairs - 1));
  for (std::size_t i = first;; i = (i + 1) % pairs) {
    if (cells_[2 * i] == key) return &cells_[2 * i + 1];
    if (cells_[2 * i] != 0) continue;
    if (num_tokens_ * 4 >= pairs * 3) return nullptr;
    ++num_tokens_;
    cells_[2 * i] = key;
    return &cells_[2 * i + 1];
  }
}

void TokenCounts::grow() {
  TokenCounts larger;
  larger.vocab_size_ = vocab_size_;
  larger.cells_.resize(cells_for(vocab_size_, num_tokens_ + 1));
  for_each([&](std::int32_t token, std::uint32_t count) { larger.add(token, count); });
  *this = std::move(larger);
}

void TokenCounts::add(std::int32_t token, std::uint32_t times) {
  assert(token >= 0 && static_cast<std::size_t>(token) < vocab_size_);
  if (!is_dense()) {
    if (std::uint32_t* const count = find(token)) {
      *count += times;
      return;
    }
    grow();
    return add(token, times);
  }
  cells_[static_cast<std::size_t>(token)] += times;
}

void TokenCounts::remove(std::int32_t token) {
  std::uint32_t* const count = is_dense() ? &cells_[static_cast<std::size_t>(token)] : find(token);
  assert(count != nullptr && *count > 0);
  --*count;
}

template <typename Body>
void TokenCounts::for_each(const Body& body) const {
  if (is_dense()) {
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (cells_[i] > 0) body(static_cast<std::int32_t>(i), cells_[i]);
    }
    return;
  }
  for (std::size_t i = 0; i + 1 < cells_.size(); i += 2) {
    if (cells_[i + 1] > 0) body(static_cast<std::int32_t>(cells_[i] - 1), cells_[i + 1]);
  }
}

std::span<const std::uint32_t> TokenCounts::all(std::vector<std::uint32_t>& memory) const {
  if (is_dense()) return cells_;
  memory.assign(vocab_size_, 0);
  for_each([&](std::int32_t token, std::uint32_t count) {
    memory[static_cast<std::size_t>(token)] = count;
  });
  return memory;
}

std::vector<std::uint32_t> TokenCounts::all() const {
  std::vector<std::uint32_t> memory;
  const std::span<const std::uint32_t> counts = all(memory);
  return {counts.begin(), counts.end()};
}

std::size_t TokenCounts::most_bytes(std::size_t vocab_size, std::int64_t num_tokens) {
  const auto most = static_cast<std::size_t>(
      std::clamp<std::int64_t>(num_tokens, 0, static_cast<std::int64_t>(vocab_size)));
  return cells_for(vocab_size, most) * sizeof(std::uint32_t);
}

std::int64_t TokenCounts::tokens_until_full(std::size_t vocab_size) {
  if (vocab_size <= kMostDense) return 0;
  // The largest table that is no larger than all counts, and one more token.
  const std::size_t pairs = std::bit_floor((vocab_size - 1) / 2);
  return static_cast<std::int64_t>(pairs * 3 / 4 + 1);
}

std::uint32_t TokenCounts::header() const {
  std::size_t pairs = 0;
  for_each([&](std::int32_t /*token*/, std::uint32_t /*count*/) { ++pairs; });
  const bool is_shorter = vocab_size_ > kMostDense && 2 * pairs < vocab_size_;
  return is_shorter ? kPairs | static_cast<std::uint32_t>(pairs)
                    : static_cast<std::uint32_t>(vocab_size_);
}

void TokenCounts::save(StateWriter& writer) const {
  if ((header() & kPairs) == 0) {
    std::vector<std::uint32_t> memory;
    writer.values(all(memory));
    zero_memory(std::span(memory));
    return;
  }
  std::vector<std::pair<std::int32_t, std::uint32_t>> pairs;
  for_each([&](std::int32_t token, std::uint32_t count) { pairs.emplace_back(token, count); });
  std::ranges::sort(pairs);
  for (const auto& [token, count] : pairs) {
    writer.value(token);
    writer.value(count);
  }
  zero_memory(std::span(pairs));
}

namespace {

[[noreturn]] void fail_counts(const std::string& found, const std::string& expected) {
  throw ModelError("saved sequence: found " + found + ", expected " + expected);
}

}  // namespace

void TokenCounts::load(std::uint32_t header, std::int64_t most_tokens, StateReader& reader) {
  const std::size_t pairs = header & ~kPairs;
  if ((header & kPairs) == 0 || vocab_size_ <= kMostDense) {
    if (header != vocab_size_) {
      fail_counts("counts " + std::to_string(header),
                  std::to_string(vocab_size_) + " to " + std::to_string(vocab_size_));
    }
    if (is_dense()) return reader.values(std::span<std::uint32_t>(cells_));
    constexpr std::size_t kAtOnce = 1024;
    std::vector<std::uint32_t> some(kAtOnce);
    for (std::size_t first = 0; first < vocab_size_; first += kAtOnce) {
      const std::span part = std::span(some).first(std::min(kAtOnce, vocab_size_ - first));
      reader.values(part);
      for (std::size_t i = 0; i < part.size(); ++i) {
        if (part[i] == 0) continue;
        if (most_tokens-- == 0) fail_counts("more counts than tokens", "no more");
        add(static_cast<std::int32_t>(first + i), part[i]);
      }
    }
    zero_memory(std::span(some));
    return;
  }
  if (2 * pairs >= vocab_size_ || pairs > static_cast<std::uint64_t>(most_tokens)) {
    fail_counts("counts of " + std::to_string(pairs) + " tokens",
                "fewer than half the vocabulary, and no more than tokens");
  }
  std::int32_t last = -1;
  for (std::size_t i = 0; i < pairs; ++i) {
    const auto token = reader.value<std::int32_t>();
    const auto count = reader.value<std::uint32_t>();
    if (token <= last || static_cast<std::size_t>(token) >= vocab_size_ || count == 0) {
      fail_counts("a count " + std::to_string(count) + " of token " + std::to_string(token),
                  "ascending tokens of the vocabulary, counts above 0");
    }
    add(token, count);
    last = token;
  }
}

}  // namespace lintel
