// StopGate: lets the sampled tokens of one sample out, but for what stop tokens and strings
// exclude.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "server/engine/outlet.h"
#include "server/engine/request_context.h"
#include "server/engine/stop_matcher.h"

namespace lintel {

// Tokens that may turn out to be the beginning of an excluded stop string are held back until that
// is known. `tail` is the sequence's generated_tail: what a match may begin in. Used by the one
// thread that runs the request.
class StopGate {
 public:
  // The references outlive the gate.
  StopGate(const RequestContext& context, Outlet& outlet)
      : context_(context), outlet_(outlet), matcher_(context.stop_strings) {}

  // Takes the text that the sequence begins with, in place of what there was.
  void replay(const std::string& tail);
  // Takes the next sampled token, and its byte into the tail. Returns why the sample ends, if it
  // does.
  std::optional<FinishReason> pass(const TokenEvent& event, std::string& tail);
  // A token that was not sampled comes next: nothing is held back, and no match reaches across it.
  void interrupt(std::string& tail);
  // Nothing comes any more that could complete a match: lets go of what is held back.
  void flush() { flush(0); }

  const std::string& stop_string() const { return stop_string_; }  // the match; empty: none

 private:
  struct HeldToken {
    TokenEvent event;
    std::vector<TopValue> top;
  };

  // Lets go of held-back tokens but the last `keep`.
  void flush(std::size_t keep);

  const RequestContext& context_;
  Outlet& outlet_;
  StopMatcher matcher_;
  std::vector<HeldToken> held_;
  std::string stop_string_;
};

}  // namespace lintel
