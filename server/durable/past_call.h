// PastCall: a call that is told again without being run.
#pragma once

#include <cstdint>
#include <vector>

#include "server/durable/call_records.h"
#include "server/generation/token_sink.h"
#include "server/history/session_history.h"

namespace lintel {

struct PastCall {
  std::int64_t first = 0;            // position of its first value that is told
  std::vector<std::int32_t> values;  // from there on, those that a stop excluded left out
  std::vector<HistoryMark> marks;    // where they came from
  SampleResult result;
};

// Nothing where the history does not reach back to it.
std::optional<PastCall> past_call(const LastCall& call, const SessionHistory& history,
                                  bool echo_prompt, std::int64_t from_position);
// All of it, and the end.
void tell(const PastCall& call, TokenSink& sink);

}  // namespace lintel
