// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/session_history.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

#include "model/tokenizer/tokenizer.h"

namespace lintel {
namespace {

// Bytes of a chunk besides its tokens: its members and the allocator's share.
constexpr std::size_t kChunkBytes = sizeof(HistoryChunk) + 64;

Digest with_token(const Digest& digest, std::int32_t token, TokenSource source) {
  std::array<std::byte, 5> bytes;
  for (std::size_t b = 0; b < 4; ++b) {
    bytes[b] = static_cast<std::byte>(static_cast<std::uint32_t>(token) >> (8 * b));
  }
  bytes[4] = static_cast<std::byte>(source);
  return extend(digest, DigestKind::kValues, bytes);
}

// The most chunks of a history; SIZE_MAX: unbounded.
std::size_t most_chunks(const SessionHistory::Options& options) {
  constexpr std::int64_t kEach = SessionHistory::kChunkTokens;
  const auto chunks = [](std::int64_t tokens) {
    return static_cast<std::size_t>((tokens + kEach - 1) / kEach);
  };
  const bool drops = options.kept_tokens != 0 &&
                     (options.max_tokens == 0 || options.max_tokens > options.kept_tokens);
  if (!drops) return options.max_tokens == 0 ? SIZE_MAX : chunks(options.max_tokens);
  // One more than the kept tokens need: the first is dropped when the last is started.
  const std::size_t kept = chunks(options.kept_tokens) + 1;
  return options.max_tokens == 0 ? kept : std::min(kept, chunks(options.max_tokens));
}

void zero_text(std::string& text) {
  text.resize(text.capacity());
  zero_memory(std::span(text));
  text.clear();
}

}  // namespace

std::size_t SessionHistory::bytes_of(const Options& options) {
  const std::size_t chunks = most_chunks(options);
  assert(chunks != SIZE_MAX);
  auto tokens = static_cast<std::int64_t>(chunks) * kChunkTokens;
  if (options.max_tokens != 0) tokens = std::min(tokens, options.max_tokens);
  const std::size_t width = HistoryChunk::width_of(options.vocab_size);
  return sizeof(SessionHistory) + kMostTailBytes + 1 +
         chunks * (kChunkBytes + sizeof(std::shared_ptr<HistoryChunk>)) +
         HistoryChunk::bytes_of(width, static_cast<std::size_t>(tokens)) + chunks;
}

SessionHistory::SessionHistory(const Options& options)
    : options_(options),
      most_chunks_(most_chunks(options)),
      digest_(extend(Digest(), DigestKind::kBegin, {})) {
  if (most_chunks_ != SIZE_MAX) chunks_.reserve(most_chunks_);
}

SessionHistory::~SessionHistory() {
  MutexLock lock(mutex_);
  zero_text(base_tail_);
}

std::shared_ptr<HistoryChunk> SessionHistory::new_chunk(std::int64_t first) const {
  std::int64_t capacity = kChunkTokens;
  if (options_.max_tokens != 0) capacity = std::min(capacity, options_.max_tokens - first);
  assert(capacity > 0);
  return std::make_shared<HistoryChunk>(HistoryChunk::width_of(options_.vocab_size),
                                        static_cast<std::size_t>(capacity), digest_);
}

SessionHistory::Place SessionHistory::at(std::int64_t position) const {
  assert(base_ <= position && position < position_);
  const auto chunk = static_cast<std::size_t>(position / kChunkTokens - first_chunk_);
  return {*chunks_[chunk], static_cast<std::size_t>(position % kChunkTokens)};
}

void SessionHistory::append(std::int32_t token, TokenSource source) {
  MutexLock lock(mutex_);
  put(token, source);
}

void SessionHistory::put(std::int32_t token, TokenSource source) {
  if (chunks_.empty()) first_chunk_ = position_ / kChunkTokens;
  const std::int64_t first = position_ - position_ % kChunkTokens;
  if (position_ == first || chunks_.empty()) {
    std::shared_ptr<HistoryChunk> chunk = new_chunk(first);
    if (chunks_.size() == most_chunks_) {
      const std::int64_t base = (first_chunk_ + 1) * kChunkTokens;
      std::string tail = tail_of(base);
      base_tail_.swap(tail);
      zero_text(tail);
      chunks_.erase(chunks_.begin());
      ++first_chunk_;
      base_ = base;
    }
    chunks_.push_back(std::move(chunk));
  }
  chunks_.back()->put(static_cast<std::size_t>(position_ - first), token, source, match_begins_);
  match_begins_ = false;
  digest_ = with_token(digest_, token, source);
  ++position_;
}

void SessionHistory::begin_match() {
  MutexLock lock(mutex_);
  match_begins_ = true;
}

SessionHistory::Extent SessionHistory::extent() const {
  MutexLock lock(mutex_);
  return {base_, position_, digest_};
}

Digest SessionHistory::digest_of(std::int64_t position) const {
  if (position == position_) return digest_;
  const std::int64_t first = std::max(position - position % kChunkTokens, base_);
  Digest digest = at(first).chunk.before();
  for (std::int64_t p = first; p < position; ++p) {
    const Place place = at(p);
    digest = with_token(digest, place.chunk.token(place.index), place.chunk.source(place.index));
  }
  return digest;
}

bool SessionHistory::may_forget(std::int64_t position) const {
  return options_.kept_tokens > 0 && this->position() - position >= options_.kept_tokens / 2;
}

std::optional<Digest> SessionHistory::digest_at(std::int64_t position) const {
  MutexLock lock(mutex_);
  if (position < base_ || position > position_) return std::nullopt;
  return digest_of(position);
}

std::vector<std::int32_t> SessionHistory::tokens(std::int64_t from, std::int64_t to) const {
  std::vector<std::int32_t> tokens;
  MutexLock lock(mutex_);
  from = std::max(from, base_);
  to = std::min(to, position_);
  if (from >= to) return tokens;
  tokens.resize(static_cast<std::size_t>(to - from));
  auto token = tokens.begin();
  while (from < to) {  // a chunk at a time
    const Place place = at(from);
    const std::int64_t end = std::min(to, from - from % kChunkTokens + kChunkTokens);
    for (std::size_t i = place.index; from < end; ++from) *token++ = place.chunk.token(i++);
  }
  return tokens;
}

bool SessionHistory::match_begins_at(std::int64_t position) const {
  if (position == position_) return match_begins_;
  const Place place = at(position);
  return place.chunk.new_match(place.index);
}

std::vector<HistoryMark> SessionHistory::marks(std::int64_t from, std::int64_t to) const {
  std::vector<HistoryMark> marks;
  MutexLock lock(mutex_);
  from = std::max(from, base_);
  to = std::min(to, position_);
  for (std::int64_t p = from; p < to;) {  // a chunk at a time
    const Place place = at(p);
    const std::int64_t end = std::min(to, p - p % kChunkTokens + kChunkTokens);
    for (std::size_t i = place.index; p < end; ++i, ++p) {
      const TokenSource source = place.chunk.source(i);
      const bool goes_on = !marks.empty() && marks.back().source == source;
      if (!goes_on || place.chunk.new_match(i)) marks.push_back({p, source});
    }
  }
  if (from <= to && match_begins_at(to)) marks.push_back({to, TokenSource::kSampled});
  return marks;
}

std::string_view SessionHistory::bytes_at(std::int64_t position) const {
  const Place place = at(position);
  return options_.tokenizer->bytes_of(place.chunk.token(place.index));
}

std::string SessionHistory::tail_of(std::int64_t position) const {
  std::string tail;
  if (options_.tokenizer == nullptr || match_begins_at(position)) return tail;
  std::int64_t first = position;
  std::size_t bytes = 0;
  bool ends = false;  // before `first`
  while (first > base_ && bytes < kMostTailBytes && !ends) {
    const Place place = at(first - 1);
    ends = place.chunk.source(place.index) != TokenSource::kSampled;
    if (ends) break;
    bytes += bytes_at(--first).size();
    ends = place.chunk.new_match(place.index);
  }
  // Reserved at once, so that no copy remains in outgrown memory.
  tail.reserve(kMostTailBytes);
  if (!ends && first == base_ && bytes < kMostTailBytes) {
    const std::size_t room = kMostTailBytes - bytes;
    const std::size_t from = base_tail_.size() - std::min(base_tail_.size(), room);
    tail.append(base_tail_, from);
  }
  std::size_t over = bytes - std::min(bytes, kMostTailBytes);  // of the first token
  for (; first < position; ++first) tail += bytes_at(first).substr(std::exchange(over, 0));
  return tail;
}

std::int64_t SessionHistory::first_of_match(std::int64_t position) const {
  std::int64_t first = position - 1;
  if (options_.tokenizer == nullptr) return first;
  MutexLock lock(mutex_);
  std::size_t bytes = 0;
  while (first > base_ && bytes < kMostTailBytes) bytes += bytes_at(--first).size();
  return bytes < kMostTailBytes ? base_ - 1 : first;
}

std::string SessionHistory::tail_at(std::int64_t position) const {
  MutexLock lock(mutex_);
  if (position < base_ || position > position_) return {};
  return tail_of(position);
}

std::unique_ptr<SessionHistory> SessionHistory::fork(std::int64_t position) const {
  auto copy = std::make_unique<SessionHistory>(options_);
  MutexLock lock(mutex_);
  if (position < base_ || position > position_) return nullptr;
  MutexLock other(copy->mutex_);
  copy->first_chunk_ = first_chunk_;
  copy->base_ = base_;
  copy->base_tail_.reserve(base_tail_.capacity());
  copy->base_tail_ = base_tail_;
  copy->position_ = position;
  copy->digest_ = digest_of(position);
  copy->match_begins_ = match_begins_at(position);
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    const std::int64_t first = (first_chunk_ + static_cast<std::int64_t>(i)) * kChunkTokens;
    if (position <= first) break;
    const std::int64_t count = position - first;
    copy->chunks_.push_back(
        count >= kChunkTokens ? chunks_[i] : chunks_[i]->copy(static_cast<std::size_t>(count)));
  }
  return copy;
}

void SessionHistory::rewind(std::int64_t position) {
  std::vector<std::shared_ptr<HistoryChunk>> gone;  // freed without the mutex
  MutexLock lock(mutex_);
  assert(base_ <= position && position <= position_);
  if (position == position_) return;
  const Digest digest = digest_of(position);
  const bool match_begins = match_begins_at(position);
  const std::int64_t within = position % kChunkTokens;
  const auto kept = static_cast<std::size_t>(position / kChunkTokens - first_chunk_);
  // Others may share the chunk that is cut, so it is copied; the old one has the dropped tokens.
  std::shared_ptr<HistoryChunk> cut;
  if (within != 0 && position != base_) cut = chunks_[kept]->copy(static_cast<std::size_t>(within));
  gone.assign(chunks_.begin() + static_cast<std::ptrdiff_t>(kept), chunks_.end());
  chunks_.resize(kept);
  if (cut != nullptr) chunks_.push_back(std::move(cut));
  position_ = position;
  digest_ = digest;
  match_begins_ = match_begins;
}

void SessionHistory::begin_at(std::int64_t base, const Digest& digest, std::string tail) {
  MutexLock lock(mutex_);
  assert(position_ == 0 && tail.size() <= kMostTailBytes);
  base_ = position_ = base;
  digest_ = digest;
  base_tail_.reserve(kMostTailBytes);
  base_tail_ = tail;
  zero_text(tail);
}

void SessionHistory::append(const SessionImage& image) {
  MutexLock lock(mutex_);
  assert(position_ == image.base);
  auto mark = image.marks.begin();
  TokenSource source = TokenSource::kSampled;
  const auto take_mark = [&]() REQUIRES(mutex_) {
    if (mark == image.marks.end() || mark->position != position_) return;
    // A mark of sampled tokens after sampled ones means that a match begins.
    match_begins_ = mark->source == source && source == TokenSource::kSampled && position_ > base_;
    source = mark->source;
    ++mark;
  };
  for (const std::int32_t token : image.tokens) {
    take_mark();
    put(token, source);
  }
  if (mark != image.marks.end()) match_begins_ = mark->position == position_;
}

std::size_t SessionHistory::shared_chunks() const {
  MutexLock lock(mutex_);
  return static_cast<std::size_t>(std::count_if(
      chunks_.begin(), chunks_.end(), [](const auto& chunk) { return chunk.use_count() > 1; }));
}

}  // namespace lintel
