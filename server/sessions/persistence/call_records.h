// SPDX-License-Identifier: Apache-2.0
// Fields without a column of their own in a storage's row, as bytes: a session's options, the
// sources of its tokens, the call in progress, the last ones.
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

// The content of Row.marks.
struct StoredMarks {
  SessionOptions options;  // without max_tokens, durability and `initial`
  std::string adapter, adapter_fingerprint;
  Digest base_digest;  // of the history up to the row's base
  // The numerics of its last tokens; empty: the row's. Tokens before numerics_changed_at have
  // others; 0: none have.
  std::string numerics;
  std::int64_t numerics_changed_at = 0;
  std::vector<HistoryMark> marks;  // of tokens from there on, without a call in progress
  // The beginnings of histories in memory after they had dropped earlier tokens, ascending and
  // after the row's base: the history of a session that is loaded again begins at the last one.
  // Tokens before it are kept for calls that may be replayed.
  std::vector<HistoryBase> bases;

  // The lowest position that the session can go back to.
  std::int64_t oldest(const SessionStorage::Row& row) const {
    return bases.empty() ? row.base : bases.back().position;
  }
};
std::string encode_marks(const StoredMarks& marks);
std::optional<StoredMarks> decode_marks(const std::string& bytes);
// The model that a stored session was created on (Row.model_print): the weights, and the type of KV
// caches unless it is f32.
std::string stored_model_print(const Transformer& model);
// True if a session of that print continues on a model: with equal weights, and KV caches of any
// type.
bool continues_on(const SessionStorage::Fingerprint& model_print, const Transformer& model);
// True if the tokens of a session were computed with other numerics than these.
bool other_numerics(const SessionStorage::Row& row, const StoredMarks& marks,
                    const std::string& numerics);

// The content of Row.call.
struct StoredCall {
  std::string id;          // empty: it cannot be repeated
  Digest request;          // of the request
  std::int64_t start = 0;  // tokens before it
  std::uint64_t seed = 0;
  std::string numerics;            // of the machine that draws it
  std::vector<HistoryMark> marks;  // of all possible tokens, from `start` on
};
std::string encode_call(const StoredCall& call);
// Notes the numerics of the call's tokens, which are the session's now.
void note_numerics(const StoredCall& call, const SessionStorage::Row& row, StoredMarks& marks);
std::optional<StoredCall> decode_call(const std::string& bytes);

// An element of Row.last_calls, the oldest first.
struct LastCall {
  std::string id;
  Digest request;
  std::int64_t start = 0, end = 0;  // its tokens
  std::int64_t shown_end = 0;       // a stop excluded later ones
  bool finished = false;            // else it was interrupted, and resumes when it is repeated
  // Without timings, digest and the fields that follow from positions: its window, restarts and
  // skipped_tokens, which are among prompt_tokens.
  SampleResult result;
};
// A client that lost its connection repeats a call after other calls have run: the session
// remembers this many calls, 140 bytes each, and replays the one that is repeated.
inline constexpr std::size_t kLastCalls = 16;
std::string encode_last_calls(const std::vector<LastCall>& calls);
std::optional<std::vector<LastCall>> decode_last_calls(const std::string& bytes);
// The position of its first token after the prompt.
std::int64_t first_new_of(const LastCall& call);
// The number of a prompt's tokens [begin, end) that a call in this window does not read (0: none).
// scores: it reports their probabilities, and reads them all.
std::int64_t skipped_prompt(std::int64_t window, bool scores, std::int64_t begin, std::int64_t end);

// Releases tokens that neither memory has nor one of `calls`: advances marks.base_digest and
// marks.bases. Returns the row's new base.
std::int64_t release_tokens(const std::vector<LastCall>& calls, std::int64_t base,
                            StoredMarks& marks);
// The marks of tokens from `base` on.
std::vector<HistoryMark> marks_from(std::int64_t base, std::vector<HistoryMark> marks);

// Appends the call's marks to those of the history before its start, for the tokens that it has up
// to `position`.
void append_marks(const StoredCall& call, std::int64_t base, std::int64_t position,
                  std::vector<HistoryMark>& marks);

// The marks of tokens [base, position): the first are `stored`, and the history has the others.
std::vector<HistoryMark> marks_of(const std::vector<HistoryMark>& stored, std::int64_t base,
                                  const SessionHistory& history, std::int64_t position);

}  // namespace lintel
