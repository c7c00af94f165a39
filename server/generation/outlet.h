// Outlet: where the samples of one request put what they have for its sink.
#pragma once

#include "server/generation/request_control.h"
#include "server/generation/token_sink.h"

namespace lintel {

// Passes events to a sink and notes when it is full. Used by the one thread that runs the request.
class Outlet {
 public:
  Outlet(TokenSink& sink, RequestControl& control, int num_samples)
      : sink_(sink), control_(control), num_samples_(num_samples) {}

  // Prompt values are read once and go to every sample.
  void emit(TokenEvent event) {
    const bool to_all = event.source == ValueSource::kPrompt;
    const int first = to_all ? 0 : event.sample;
    const int last = to_all ? num_samples_ - 1 : event.sample;
    for (event.sample = first; event.sample <= last; ++event.sample) {
      if (!full) control_.resumed.store(false);
      delivered = true;
      if (!sink_.on_token(event)) full = true;
    }
  }

  bool full = false;       // a call was refused: the request pauses after this step
  bool delivered = false;  // something since the last on_step_end

 private:
  TokenSink& sink_;
  RequestControl& control_;
  const int num_samples_;
};

}  // namespace lintel
