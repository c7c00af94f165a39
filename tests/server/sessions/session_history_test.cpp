// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/session_history.h"

#include <atomic>
#include <random>
#include <thread>

#include "model/tokenizer/tokenizer.h"
#include "server/engine/request.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"
#include "tests/support/text_model.h"
#include "tests/support/watched_memory.h"

namespace lintel::testing {
namespace {

static_assert(SessionHistory::kMostTailBytes == kMaxStopStringBytes - 1);

// The definition of a history, as simply as it can be said.
struct PlainHistory {
  struct Entry {
    std::int32_t token;
    TokenSource source;
    bool new_match;
  };
  std::vector<Entry> entries;
  bool match_begins = false;

  void append(std::int32_t token, TokenSource source) {
    entries.push_back({token, source, match_begins && source == TokenSource::kSampled});
    match_begins = false;
  }
  void rewind(std::size_t position) {
    if (position == entries.size()) return;
    match_begins = entries[position].new_match;
    entries.resize(position);
  }
  bool begins_at(std::size_t p) const {
    return p == entries.size() ? match_begins : entries[p].new_match;
  }
  std::vector<std::int32_t> tokens(std::size_t from, std::size_t to) const {
    std::vector<std::int32_t> result;
    for (std::size_t p = from; p < to; ++p) result.push_back(entries[p].token);
    return result;
  }
  // Computes it as SequenceState::generated_tail does: from the first token on.
  std::string tail_at(std::size_t position, const Tokenizer& tokenizer) const {
    std::string tail;
    for (std::size_t p = 0; p < position; ++p) {
      if (entries[p].source != TokenSource::kSampled || entries[p].new_match) tail.clear();
      if (entries[p].source == TokenSource::kSampled) {
        tail += tokenizer.bytes_of(entries[p].token);
      }
    }
    if (begins_at(position)) tail.clear();
    if (tail.size() > 255) tail.erase(0, tail.size() - 255);
    return tail;
  }
};

// Tokenizers of models with 256 and 300 tokens.
std::shared_ptr<const Tokenizer> tokenizer_of(int vocab_size) {
  static const auto bytes = std::make_shared<const ByteTokenizer>();
  if (vocab_size == 300) return text_model()->tokenizer();
  return vocab_size == 256 ? bytes : nullptr;
}

SessionHistory::Options options_of(int vocab_size, std::int64_t max_tokens = 0,
                                   std::int64_t kept_tokens = 0) {
  return {vocab_size, tokenizer_of(vocab_size), max_tokens, kept_tokens};
}

void require_equal(const SessionHistory& history, const PlainHistory& plain, std::size_t from,
                   std::size_t to) {
  const auto first = static_cast<std::int64_t>(from), last = static_cast<std::int64_t>(to);
  REQUIRE(history.tokens(first, last) == plain.tokens(from, to));
  std::vector<HistoryMark> marks;
  for (std::size_t p = from; p < to; ++p) {
    const PlainHistory::Entry& entry = plain.entries[p];
    if (p == from || entry.source != plain.entries[p - 1].source || entry.new_match) {
      marks.push_back({static_cast<std::int64_t>(p), entry.source});
    }
  }
  if (plain.begins_at(to)) marks.push_back({last, TokenSource::kSampled});
  REQUIRE(history.marks(first, last) == marks);
}

TEST_CASE("a history agrees with a plain vector over random appends, forks and rewinds") {
  const int vocab_size = GENERATE(2, 256, 257, 300, 65'536, 65'537);
  const unsigned seed = 4711;
  CAPTURE(vocab_size, seed);
  std::mt19937 random(seed);
  const auto below = [&](std::size_t bound) { return random() % std::max<std::size_t>(bound, 1); };
  struct Pair {
    std::unique_ptr<SessionHistory> history;
    PlainHistory plain;
  };
  std::vector<Pair> pairs;
  pairs.push_back({std::make_unique<SessionHistory>(options_of(vocab_size)), {}});
  const int rounds = kSanitized ? 100 : 400;
  for (int round = 0; round < rounds; ++round) {
    Pair& pair = pairs[below(pairs.size())];
    const auto at = below(pair.plain.entries.size() + 1);
    const auto position = static_cast<std::int64_t>(at);
    switch (below(5)) {
      case 0:
        pair.history->rewind(position);
        pair.plain.rewind(at);
        break;
      case 1: {
        Pair copy{pair.history->fork(position), pair.plain};
        copy.plain.rewind(at);
        REQUIRE(copy.history != nullptr);
        if (pairs.size() < 8) {
          pairs.push_back(std::move(copy));
        } else {
          pairs[below(pairs.size())] = std::move(copy);
        }
        break;
      }
      default:
        for (auto count = below(1500); count > 0; --count) {
          const auto token = static_cast<std::int32_t>(below(static_cast<std::size_t>(vocab_size)));
          const auto source = static_cast<TokenSource>(below(8) < 6 ? 0 : 1 + below(2));
          if (below(100) == 0) {
            pair.history->begin_match();
            pair.plain.match_begins = true;
          }
          pair.history->append(token, source);
          pair.plain.append(token, source);
        }
    }
    const Pair& any = pairs[below(pairs.size())];
    const std::size_t size = any.plain.entries.size();
    REQUIRE(any.history->position() == static_cast<std::int64_t>(size));
    const std::size_t from = below(size + 1);
    require_equal(*any.history, any.plain, from, from + below(size - from + 1));
    if (const auto tokenizer = tokenizer_of(vocab_size)) {
      const std::size_t p = below(size + 1);
      REQUIRE(any.history->tail_at(static_cast<std::int64_t>(p)) ==
              any.plain.tail_at(p, *tokenizer));
    }
    // However it came to be: the digest is that of the same tokens in one go.
    SessionHistory straight(options_of(vocab_size));
    for (const auto& entry : any.plain.entries) straight.append(entry.token, entry.source);
    REQUIRE(any.history->extent().digest == straight.extent().digest);
    const auto p = static_cast<std::int64_t>(below(size + 1));
    REQUIRE(any.history->digest_at(p) == straight.fork(p)->extent().digest);
  }
}

TEST_CASE("another token, another source or another order is another digest") {
  const auto digest = [](std::vector<std::pair<std::int32_t, TokenSource>> tokens) {
    SessionHistory history(options_of(256));
    for (const auto& [token, source] : tokens) history.append(token, source);
    return to_hex(history.extent().digest);
  };
  constexpr auto kSampled = TokenSource::kSampled, kPrompt = TokenSource::kPrompt;
  const std::vector<std::string> all = {
      digest({}),
      digest({{0, kPrompt}}),
      digest({{1, kPrompt}}),
      digest({{1, kSampled}}),
      digest({{1, kPrompt}, {2, kPrompt}}),
      digest({{2, kPrompt}, {1, kPrompt}}),
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(all[i].size() == 32);
    for (std::size_t j = 0; j < i; ++j) CHECK(all[i] != all[j]);
  }
}

TEST_CASE("an image's tokens make the same history") {
  const std::int64_t base = GENERATE(0, 1, 1000, 1024, 1030);
  SessionHistory source(options_of(256, 3000));
  std::mt19937 random(7);
  for (int i = 0; i < 2500; ++i) {
    if (i % 97 == 0) source.begin_match();
    source.append(static_cast<int>(random() % 256), static_cast<TokenSource>(i / 300 % 3));
  }
  const bool match_begins = GENERATE(false, true);
  if (match_begins) source.begin_match();
  SessionImage image;
  image.base = base;
  image.tokens = source.tokens(base, 2500);
  image.marks = source.marks(base, 2500);
  SessionHistory copy(options_of(256, 3000));
  if (base > 0) copy.begin_at(base, *source.digest_at(base), source.tail_at(base));
  copy.append(image);
  CHECK(copy.base() == base);
  CHECK(copy.extent().digest == source.extent().digest);
  CHECK(copy.tokens(0, 3000) == image.tokens);
  CHECK(copy.marks(base, 3000) == image.marks);
  for (std::int64_t p = base; p <= 2500; p += 13) {
    CAPTURE(p);
    REQUIRE(copy.tail_at(p) == source.tail_at(p));
    REQUIRE(copy.digest_at(p) == source.digest_at(p));
  }
  copy.rewind(base);
  CHECK(copy.extent().digest == *source.digest_at(base));
  copy.append(image);
  CHECK(copy.extent().digest == source.extent().digest);
}

TEST_CASE("a history that is bounded keeps what it promises and lets whole chunks go") {
  const std::int64_t kept = GENERATE(1, 100, 1024, 3000);
  const std::int64_t max_tokens = GENERATE(0, 9000);
  CAPTURE(kept, max_tokens);
  const int vocab_size = GENERATE(256, 300);
  SessionHistory history(options_of(vocab_size, max_tokens, kept));
  SessionHistory whole(options_of(vocab_size));
  for (std::int64_t i = 0; i < 9000; ++i) {
    const auto source = i % 700 == 0 ? TokenSource::kGiven : TokenSource::kSampled;
    const auto token = static_cast<std::int32_t>((i * i + i % 7 * 41) % (vocab_size - 5));
    history.append(token, source);
    whole.append(token, source);
    const std::int64_t base = history.base();
    REQUIRE(base % SessionHistory::kChunkTokens == 0);
    REQUIRE((base == 0 || i + 1 - base >= kept));
    REQUIRE(i + 1 - base <= kept + 2 * SessionHistory::kChunkTokens);
  }
  const std::int64_t base = history.base();
  CHECK(base > 0);
  CHECK(history.extent().digest == whole.extent().digest);
  CHECK(history.tokens(0, 9000) == whole.tokens(base, 9000));
  CHECK(history.fork(base - 1) == nullptr);
  CHECK_FALSE(history.digest_at(base - 1));
  // Text before the base is remembered as far as stop strings may reach back.
  for (std::int64_t p = base; p < base + 300; ++p) REQUIRE(history.tail_at(p) == whole.tail_at(p));
}

TEST_CASE("a match that ends in a token began within the bytes of a stop string before it") {
  SessionHistory bytes(options_of(256)), text(options_of(300)), ids(options_of(257));
  for (int i = 0; i < 600; ++i) {
    for (SessionHistory* history : {&bytes, &text, &ids}) {
      history->append(i % 2 == 0 ? 97 : 98, TokenSource::kSampled);
    }
  }
  CHECK(bytes.first_of_match(500) == 500 - 256);
  CHECK(text.first_of_match(500) == 500 - 256);
  CHECK(ids.first_of_match(500) == 499);
  CHECK(bytes.first_of_match(100) < 0);
  // Tokens of 16 bytes, and of none.
  for (int i = 0; i < 20; ++i) text.append(i < 10 ? 285 : 0, TokenSource::kSampled);
  CHECK(text.first_of_match(620) == 600 - 95);
  CHECK(text.first_of_match(601) == 600 - 255);
}

TEST_CASE("whole chunks are shared between forks, and none that is written") {
  SessionHistory history(options_of(256));
  for (int i = 0; i < 2500; ++i) history.append(i % 256, TokenSource::kSampled);
  CHECK(history.shared_chunks() == 0);
  const auto fork = history.fork(2500);
  CHECK(history.shared_chunks() == 2);
  const auto early = history.fork(1500);
  CHECK(early->shared_chunks() == 1);
  history.append(7, TokenSource::kGiven);
  fork->append(9, TokenSource::kSampled);
  CHECK(history.tokens(2499, 2501) == std::vector<std::int32_t>{2499 % 256, 7});
  CHECK(fork->tokens(2499, 2501) == std::vector<std::int32_t>{2499 % 256, 9});
  // Cut in a chunk that others have, too.
  fork->rewind(500);
  fork->append(11, TokenSource::kPrompt);
  CHECK(fork->shared_chunks() == 0);
  CHECK(history.tokens(499, 502) == std::vector<std::int32_t>{499 % 256, 500 % 256, 501 % 256});
  CHECK(fork->tokens(499, 502) == std::vector<std::int32_t>{499 % 256, 11});
}

TEST_CASE("readers see a past that does not change while a writer appends") {
  SessionHistory history(options_of(65'536, 0, 5000));
  std::atomic<bool> done = false;
  constexpr std::int64_t kTokens = kSanitized ? 20'000 : 200'000;
  const auto token_at = [](std::int64_t p) { return static_cast<std::int32_t>(p * 31 % 65'536); };
  std::vector<std::thread> readers;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!done) {
        const SessionHistory::Extent extent = history.extent();
        const std::int64_t from = std::max(extent.base, extent.position - 700);
        const auto tokens = history.tokens(from, extent.position);
        // The base may have moved on meanwhile; what there is ends where it was asked to.
        for (std::size_t v = 0; v < tokens.size(); ++v) {
          const auto behind = static_cast<std::int64_t>(tokens.size() - v);
          if (tokens[v] != token_at(extent.position - behind)) ++wrong;
        }
        const auto digest = history.digest_at(extent.position);
        if (digest && *digest != extent.digest) ++wrong;
        const auto fork = history.fork(extent.position);
        if (fork != nullptr && fork->extent().digest != extent.digest) ++wrong;
      }
    });
  }
  for (std::int64_t p = 0; p < kTokens; ++p) history.append(token_at(p), TokenSource::kSampled);
  done = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(wrong == 0);
  CHECK(history.position() == kTokens);
}

#ifdef LINTEL_WATCHED_MEMORY
TEST_CASE("memory that a history releases holds nothing of it") {
  const std::string secret = "a secret of some length";
  const FreedMemory freed(std::as_bytes(std::span(secret)));
  {
    SessionHistory history(options_of(256, 0, 100));
    const auto write = [&](SessionHistory& to) {
      for (const char c : secret) to.append(c, TokenSource::kSampled);
    };
    write(history);
    history.rewind(3);
    write(history);
    const auto fork = history.fork(history.position());
    for (int i = 0; i < 3000; ++i) write(history);
    CHECK(history.base() > 0);
  }
  CHECK(freed.blocks() > 10);
  CHECK(freed.dirty() == 0);
}
#endif

}  // namespace
}  // namespace lintel::testing
