// Outlet: where the samples of one request put what they have for its sink.
#pragma once

#include "server/engine/particle_set.h"
#include "server/engine/request_control.h"
#include "server/engine/token_sink.h"

namespace lintel {

// Passes events to a sink and notes when it is full. Used by the one thread that runs the request.
class Outlet {
 public:
  Outlet(TokenSink& sink, RequestControl& control, int num_samples)
      : sink_(sink), control_(control), num_samples_(num_samples) {}

  // From now on a new token is a particle's and kept by the set, which decides later what to report
  // of it. The set outlives the outlet, or the last call of emit().
  void keep_in(ParticleSet& particles) { particles_ = &particles; }

  // Prompt tokens are read once and go to every sample.
  void emit(const TokenEvent& event) {
    if (event.source == ValueSource::kPrompt) return tell_all(event);
    if (particles_ == nullptr) return tell(event);
    particles_->append(event.sample, {.token = event.token,
                                      .log2_prob = event.log2_prob.value_or(0.0f),
                                      .has_log2_prob = event.log2_prob.has_value(),
                                      .source = event.source});
  }
  // What a particle says of a known token. REQUIRES: keep_in().
  void weigh(int particle, double log2_prob) { particles_->weigh(particle, log2_prob); }

  void tell_all(TokenEvent event) {
    for (event.sample = 0; event.sample < num_samples_; ++event.sample) tell(event);
  }
  void tell(const TokenEvent& event) {
    if (!full) control_.resumed.store(false);
    delivered = true;
    if (!sink_.on_token(event)) full = true;
  }

  bool full = false;       // a call was refused: the request pauses after this step
  bool delivered = false;  // something since the last on_step_end

 private:
  TokenSink& sink_;
  RequestControl& control_;
  const int num_samples_;
  ParticleSet* particles_ = nullptr;  // null: tokens are reported as they come
};

}  // namespace lintel
