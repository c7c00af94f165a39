#include "client/cli/generation_speed.h"

#include <algorithm>
#include <cstdio>

#include "client/cli/generate_output.h"

namespace lintel::cli {
namespace {

std::string counted(std::uint64_t number, const std::string& one) {
  return std::to_string(number) + " " + one + (number == 1 ? "" : "s");
}

// Three digits at least, as people read rates.
std::string rate_text(double rate) {
  char text[32];
  std::snprintf(text, sizeof text, rate < 1000 ? "%.1f" : "%.0f", rate);
  return std::string(text) + "/s";
}

std::string time_text(double seconds) {
  char text[32];
  if (seconds < 1) {
    std::snprintf(text, sizeof text, "%.3g ms", seconds * 1e3);
  } else {
    std::snprintf(text, sizeof text, "%.2f s", seconds);
  }
  return text;
}

}  // namespace

void GenerationSpeed::on_chunk(const v1::Chunk& chunk) {
  if (first_ || chunk.source() == v1::VALUE_SOURCE_PROMPT || chunk.tokens_size() == 0) return;
  first_ = Clock::now();
}

std::string GenerationSpeed::prompt_text() const {
  // The samples of a call share its prompt: the first one read it.
  const v1::SampleFinish& finish = finishes_.front();
  if (finish.prompt_tokens() == 0 && finish.cached_tokens() == 0) return "";
  std::string text = "; prompt: " + counted(finish.prompt_tokens(), "value");
  const double seconds = seconds_of(finish.timings().prompt());
  if (finish.prompt_tokens() > 0 && seconds > 0) {
    text += " at " + rate_text(finish.prompt_tokens() / seconds);
  }
  if (finish.cached_tokens() > 0) {
    text += ", " + std::to_string(finish.cached_tokens()) + " more from the cache";
  }
  if (finish.skipped_tokens() > 0) {
    text += ", " + std::to_string(finish.skipped_tokens()) + " before its window not read";
  }
  return text;
}

std::string GenerationSpeed::text() const {
  if (finishes_.empty()) return "nothing was generated";
  std::uint64_t values = 0;
  double seconds = 0;  // of the sample that took longest; they run at the same time
  for (const v1::SampleFinish& finish : finishes_) {
    values += finish.generated_tokens();
    seconds = std::max(seconds, seconds_of(finish.timings().generation()));
  }
  std::string text = finishes_.size() > 1 ? counted(finishes_.size(), "sample") + ", " : "";
  text += counted(values, "value");
  // The time is from a sample's first value to its last.
  if (values > finishes_.size() && seconds > 0) {
    text += " at " + rate_text(static_cast<double>(values - finishes_.size()) / seconds);
  }
  if (first_) {
    text +=
        ", the first after " + time_text(std::chrono::duration<double>(*first_ - start_).count());
  }
  return text + prompt_text();
}

}  // namespace lintel::cli
