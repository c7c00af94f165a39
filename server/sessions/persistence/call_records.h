// SPDX-License-Identifier: Apache-2.0
// What a storage's row has no column for, as bytes: what a session is to be, where its tokens came
// from, the call in progress, the last ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/transformer.h"
#include "server/engine/token_sink.h"
#include "server/sessions/digest.h"
#include "server/sessions/session_history.h"
#include "server/sessions/session_options.h"
#include "server/sessions/storage/session_storage.h"

namespace lintel {

// A position and the digest of the history up to there.
struct HistoryBase {
  std::int64_t position = 0;
  Digest digest;

  bool operator==(const HistoryBase&) const = default;
};

// Row.marks.
struct StoredMarks {
  SessionOptions options;  // without max_tokens, durability and `initial`
  std::string adapter, adapter_fingerprint;
  Digest base_digest;  // of the history up to the row's base
  // That its last tokens were computed with; empty: as the row says. From where on they are other
  // ones than those before them; 0: there are none such.
  std::string numerics;
  std::int64_t numerics_changed_at = 0;
  std::vector<HistoryMark> marks;  // of tokens from there on, those of a call in progress excluded
  // Where histories in memory began after they had dropped earlier tokens, ascending and after the
  // row's base: the history of a session that is loaded again begins at the last one. Tokens before
  // it are kept for calls that may be replayed.
  std::vector<HistoryBase> bases;

  // The lowest position that the session can go back to.
  std::int64_t oldest(const SessionStorage::Row& row) const {
    return bases.empty() ? row.base : bases.back().position;
  }
};
std::string encode_marks(const StoredMarks& marks);
std::optional<StoredMarks> decode_marks(const std::string& bytes);
// What a stored session continues on (Row.model_print): the weights, and the type of KV caches
// unless it is f32.
std::string stored_model_print(const Transformer& model);
// Whether the tokens of a session were computed with others than these.
bool other_numerics(const SessionStorage::Row& row, const StoredMarks& marks,
                    const std::string& numerics);

// Row.call.
struct StoredCall {
  std::string id;          // empty: it cannot be repeated
  Digest request;          // of what it asks for
  std::int64_t start = 0;  // tokens before it
  std::uint64_t seed = 0;
  std::string numerics;            // that it is drawn with
  std::vector<HistoryMark> marks;  // of all tokens it may have, from `start` on
};
std::string encode_call(const StoredCall& call);
// The tokens of the call are the session's now.
void note_numerics(const StoredCall& call, const SessionStorage::Row& row, StoredMarks& marks);
std::optional<StoredCall> decode_call(const std::string& bytes);

// Of Row.last_calls, the oldest first.
struct LastCall {
  std::string id;
  Digest request;
  std::int64_t start = 0, end = 0;  // its tokens
  std::int64_t shown_end = 0;       // a stop excluded those after it
  bool finished = false;            // else it was interrupted, and resumes when it is repeated
  // Without timings, digest and what follows from positions: its window, restarts and
  // skipped_tokens, which are among prompt_tokens.
  SampleResult result;
};
// A client that lost its connection repeats a call after other calls have run: the session
// remembers this many calls, 140 bytes each, and replays the one that is repeated.
inline constexpr std::size_t kLastCalls = 16;
std::string encode_last_calls(const std::vector<LastCall>& calls);
std::optional<std::vector<LastCall>> decode_last_calls(const std::string& bytes);
// Position of its first token after the prompt.
std::int64_t first_new_of(const LastCall& call);
// Of a prompt's tokens [begin, end) those that a call in this window does not read (0: none).
// scores: it reports their probabilities, and reads them all.
std::int64_t skipped_prompt(std::int64_t window, bool scores, std::int64_t begin, std::int64_t end);

// The storage need not keep tokens that neither memory has nor one of `calls`: moves
// marks.base_digest and marks.bases on. Returns the row's new base.
std::int64_t release_tokens(const std::vector<LastCall>& calls, std::int64_t base,
                            StoredMarks& marks);
// Those of tokens from `base` on.
std::vector<HistoryMark> marks_from(std::int64_t base, std::vector<HistoryMark> marks);

// `marks` after those of a history that ends where a call starts, for the tokens that it has up to
// `position`.
void append_marks(const StoredCall& call, std::int64_t base, std::int64_t position,
                  std::vector<HistoryMark>& marks);

// Those of [base, position), where the first are `stored` and the history has the others.
std::vector<HistoryMark> marks_of(const std::vector<HistoryMark>& stored, std::int64_t base,
                                  const SessionHistory& history, std::int64_t position);

}  // namespace lintel
