#include "server/durable/past_call.h"

#include <algorithm>

namespace lintel {

std::optional<PastCall> past_call(const LastCall& call, const SessionHistory& history,
                                  bool echo_prompt, std::int64_t from_position) {
  const std::int64_t first_new = call.start + call.result.cached_tokens + call.result.prompt_tokens;
  PastCall past;
  past.first = std::max(echo_prompt ? call.start : first_new, from_position);
  const std::int64_t end = std::max(past.first, call.shown_end);
  if (past.first < history.base() && past.first < end) return std::nullopt;
  const std::optional<Digest> digest = history.digest_at(call.end);
  if (!digest) return std::nullopt;
  past.values = history.values(past.first, end);
  past.marks = history.marks(past.first, end);
  past.result = call.result;
  past.result.digest = to_hex(*digest);
  return past;
}

void tell(const PastCall& call, TokenSink& sink) {
  auto mark = call.marks.begin();
  TokenEvent event;
  event.position = call.first;
  for (const std::int32_t value : call.values) {
    if (mark != call.marks.end() && mark->position == event.position) event.source = mark++->source;
    event.token = value;
    sink.on_token(event);
    ++event.position;
  }
  sink.on_sample_finish(call.result);
  sink.on_step_end();
  sink.on_finish(RequestOutcome::kDone);
}

}  // namespace lintel
