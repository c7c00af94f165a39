// How fast a Generate call was, as who waited for it and as the server saw it.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "client/lib/client.h"

namespace lintel::cli {

// Made when a call begins.
class GenerationSpeed {
 public:
  void on_chunk(const v1::Chunk& chunk);
  void on_finish(const v1::SampleFinish& finish) { finishes_.push_back(finish); }

  // "200 values at 152.1/s, the first after 38 ms; prompt: 21 values at 1750/s". The time to the
  // first value is the caller's, with the way to the server and its queue; the rates are of the
  // server's own times, so they do not depend on how values were put into messages. What there is
  // no measure of is left out.
  std::string text() const;

 private:
  std::string prompt_text() const;

  using Clock = std::chrono::steady_clock;
  const Clock::time_point start_ = Clock::now();
  std::optional<Clock::time_point> first_;  // new value
  std::vector<v1::SampleFinish> finishes_;
};

}  // namespace lintel::cli
