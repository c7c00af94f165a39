// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/persistence/replayed_response.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "model/core/tensor.h"
#include "server/core/threads.h"
#include "server/engine/request.h"
#include "server/sessions/persistence/persistent_sessions.h"
#include "server/sessions/session_history.h"

namespace lintel {
namespace {

std::int64_t first_told(const LastCall& call, const IdempotencyKey& terms) {
  return std::max(terms.echo_prompt ? call.start : first_new_of(call), terms.from_position);
}

// Adds the fields that follow from positions, which are not stored.
LastCall in_window(LastCall call, std::int64_t window, bool scores) {
  SampleResult& result = call.result;
  const std::int64_t first = call.start + result.cached_tokens;
  result.window = window;
  result.restarts = window_restarts(window, call.start, result.position);
  result.skipped_tokens = skipped_prompt(window, scores, first, first_new_of(call));
  result.prompt_tokens -= result.skipped_tokens;
  return call;
}

}  // namespace

std::shared_ptr<ReplayedResponse> ReplayedResponse::of(
    PersistentSessions& durable, const SessionStorage::Row& row, const StoredMarks& marks,
    const LastCall& call, std::optional<Digest> digest, const IdempotencyKey& terms) {
  if (call.end == row.position) digest = row.digest;
  const std::int64_t first = first_told(call, terms);
  if (first < row.base && first < call.shown_end) return nullptr;
  if (!digest && call.end < row.base) return nullptr;
  return std::shared_ptr<ReplayedResponse>(
      new ReplayedResponse(durable, row, marks, call, digest, terms));
}

ReplayedResponse::ReplayedResponse(PersistentSessions& durable, const SessionStorage::Row& row,
                                   const StoredMarks& marks, const LastCall& call,
                                   std::optional<Digest> digest, const IdempotencyKey& terms)
    : durable_(durable),
      session_(row.id),
      owner_(row.owner),
      call_(call),
      told_(in_window(call, marks.options.window, terms.scores_prompt()).result),
      first_(first_told(call, terms)),
      end_(std::max(first_, call.shown_end)),
      base_{row.base, marks.base_digest},
      marks_(marks.marks),
      digest_(digest),
      next_(first_) {}

void ReplayedResponse::tell(std::shared_ptr<TokenSink> sink) {
  {
    MutexLock lock(mutex_);
    sink_ = std::move(sink);
    is_telling_ = true;
  }
  go_on();
}

void ReplayedResponse::resume() {
  {
    MutexLock lock(mutex_);
    is_resumed_ = true;
    if (sink_ == nullptr || std::exchange(is_telling_, true)) return;
  }
  go_on();
}

void ReplayedResponse::cancel() {
  {
    MutexLock lock(mutex_);
    is_cancelled_ = true;
    if (sink_ == nullptr || std::exchange(is_telling_, true)) return;
  }
  go_on();
}

void ReplayedResponse::go_on() {
  const bool runs = catch_exceptions(
      [&] { return durable_.run([self = shared_from_this()] { self->tell_on(); }); },
      [] { return false; });
  if (!runs) finish(SessionError::kStoreAway);
}

void ReplayedResponse::tell_on() {
  while (true) {
    {
      MutexLock lock(mutex_);
      if (!has_room_ && !is_resumed_ && !is_cancelled_) {
        is_telling_ = false;
        return;
      }
      is_resumed_ = false;
      has_room_ = true;
    }
    const std::optional<RequestOutcome> outcome = catch_exceptions(
        [&] { return tell_piece(); },
        []() -> std::optional<RequestOutcome> { return RequestOutcome::kInternal; });
    if (outcome) return finish(*outcome);
  }
}

std::optional<RequestOutcome> ReplayedResponse::tell_piece() {
  std::shared_ptr<TokenSink> sink;
  {
    MutexLock lock(mutex_);
    if (is_cancelled_) return RequestOutcome::kCancelled;
    sink = sink_;
  }
  if (next_ == end_) {
    if (!digest_) digest_ = find_digest();
    if (!digest_) return SessionError::kStoreAway;
    SampleResult result = told_;
    result.digest = to_hex(*digest_);
    sink->on_sample_finish(result);
    sink->on_step_end();
    return RequestOutcome::kDone;
  }
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(std::min(kPieceTokens, end_ - next_)));
  if (durable_.read_past(*this, next_, tokens) != SessionError::kNone) {
    return SessionError::kStoreAway;
  }
  TokenEvent event;
  for (const std::int32_t value : tokens) {
    event.position = next_;
    event.token = value;
    event.source = source_at(next_++);
    if (next_ == end_) event.cut_bytes = told_.cut_bytes;
    has_room_ = sink->on_token(event);
  }
  zero_memory(std::span(tokens));
  sink->on_step_end();
  return std::nullopt;
}

TokenSource ReplayedResponse::source_at(std::int64_t position) {
  for (; next_mark_ < marks_.size() && marks_[next_mark_].position <= position; ++next_mark_) {
    source_ = marks_[next_mark_].source;
  }
  return source_;
}

std::optional<Digest> ReplayedResponse::find_digest() {
  // Only the last ones stay in memory.
  SessionHistory history(
      {.vocab_size = std::numeric_limits<int>::max(), .kept_tokens = kPieceTokens});
  if (base_.position > 0) history.begin_at(base_.position, base_.digest, "");
  next_mark_ = 0;
  source_ = TokenSource::kSampled;
  std::vector<std::int32_t> tokens;
  for (std::int64_t position = base_.position; position < call_.end;) {
    tokens.resize(static_cast<std::size_t>(std::min(kPieceTokens, call_.end - position)));
    if (durable_.read_past(*this, position, tokens) != SessionError::kNone) return std::nullopt;
    for (const std::int32_t value : tokens) history.append(value, source_at(position++));
  }
  zero_memory(std::span(tokens));
  return history.extent().digest;
}

void ReplayedResponse::finish(RequestOutcome outcome) {
  std::shared_ptr<TokenSink> sink;
  {
    MutexLock lock(mutex_);
    sink = std::move(sink_);
    sink_ = nullptr;
  }
  if (sink != nullptr) catch_exceptions([&] { sink->on_finish(outcome); }, [] {});
}

}  // namespace lintel
