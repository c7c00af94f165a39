#include "server/engine/stop_gate.h"

#include <algorithm>

namespace lintel {

void StopGate::replay(const std::string& tail) {
  matcher_.reset();
  matcher_.replay(tail);
}

std::optional<FinishReason> StopGate::pass(const TokenEvent& event, std::string& tail) {
  const StopOptions& stop = context_.request.stop;
  std::optional<std::size_t> match;
  if (context_.is_bytes) {
    const char byte = static_cast<char>(event.token);
    match = matcher_.push(byte);
    if (tail.size() >= kMaxStopStringBytes - 1)
      tail.erase(0, tail.size() - kMaxStopStringBytes + 2);
    tail.push_back(byte);
  }

  std::optional<FinishReason> reason;
  if (std::find(stop.tokens.begin(), stop.tokens.end(), event.token) != stop.tokens.end()) {
    reason = FinishReason::kStopToken;
    flush();
    if (stop.include_in_output) outlet_.emit(event);
  } else if (context_.stop_strings.empty() || stop.include_in_output) {
    outlet_.emit(event);
  } else {
    held_.push_back({event, {event.top.begin(), event.top.end()}});
    if (!match) flush(matcher_.undecided());
  }
  if (!match || reason) return reason;

  stop_string_ = context_.stop_strings[*match];
  if (!stop.include_in_output) {
    // The match may begin in an earlier call, whose output is out already.
    const std::size_t excluded = std::min(stop_string_.size(), held_.size());
    flush(excluded);
    held_.clear();
  }
  tail.clear();  // the next match begins after this one
  return FinishReason::kStopString;
}

void StopGate::interrupt(std::string& tail) {
  flush();
  matcher_.reset();
  tail.clear();
}

void StopGate::flush(std::size_t keep) {
  if (held_.size() <= keep) return;
  const auto end = held_.end() - static_cast<std::ptrdiff_t>(keep);
  for (auto held = held_.begin(); held != end; ++held) {
    held->event.top = held->top;
    outlet_.emit(held->event);
  }
  held_.erase(held_.begin(), end);
}

}  // namespace lintel
