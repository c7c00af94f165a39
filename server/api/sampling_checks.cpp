#include "server/api/sampling_checks.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <string>

#include "model/config/names.h"

namespace lintel {
namespace {

// Beyond these the arithmetic of float logits says nothing any more.
constexpr float kLowestTemperature = 1e-3f;
constexpr float kHighestTemperature = 1e3f;
constexpr float kLargestPenalty = 1e3f;
constexpr float kLargestBias = 1e4f;
constexpr std::uint32_t kLongestPenaltyWindow = 65'536;  // each sample keeps its values

std::string text(float value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

// A value inside [low, high]; NaN is not.
bool within(float value, float low, float high) { return value >= low && value <= high; }

class SamplingCheck {
 public:
  SamplingCheck(const v1::Sampling& wire, Violations& violations)
      : wire_(wire), violations_(violations) {}

  // `allowed` describes what in_range accepts.
  void require(bool in_range, const char* field, float value, const std::string& allowed) {
    if (!in_range) violations_.add(name(field), text(value) + " is not " + allowed);
  }

  // On a head without filters: what would change the distribution is refused, not ignored.
  void refuse(bool set, const char* field, const char* head) {
    if (set) violations_.add(name(field), std::string("does not apply to a head of type ") + head);
  }

  static std::string name(const char* field) { return std::string("sampling.") + field; }

  void temperature(SamplingOptions& out) {
    if (!wire_.has_temperature()) return;
    out.temperature = wire_.temperature();
    require(
        out.temperature == 0.0f || within(out.temperature, kLowestTemperature, kHighestTemperature),
        "temperature", out.temperature, "0 or from 0.001 to 1000");
  }

  void filters(int vocab_size, SamplingOptions& out) {
    if (wire_.has_top_k()) {
      out.top_k = static_cast<int>(
          std::min<std::uint32_t>(wire_.top_k(), static_cast<std::uint32_t>(vocab_size)));
    }
    if (wire_.has_top_p()) {
      out.top_p = wire_.top_p();
      require(out.top_p > 0.0f && out.top_p <= 1.0f, "top_p", out.top_p,
              "more than 0 and at most 1");
    }
    if (wire_.has_min_p()) {
      out.min_p = wire_.min_p();
      require(within(out.min_p, 0.0f, 1.0f), "min_p", out.min_p, "from 0 to 1");
    }
  }

  void penalties(SamplingOptions& out) {
    if (wire_.has_repetition_penalty()) {
      out.repetition_penalty = wire_.repetition_penalty();
      require(within(out.repetition_penalty, 1.0f / kLargestPenalty, kLargestPenalty),
              "repetition_penalty", out.repetition_penalty, "from 0.001 to 1000");
    }
    if (wire_.has_presence_penalty()) {
      out.presence_penalty = wire_.presence_penalty();
      require(within(out.presence_penalty, -kLargestPenalty, kLargestPenalty), "presence_penalty",
              out.presence_penalty, "from -1000 to 1000");
    }
    if (wire_.has_frequency_penalty()) {
      out.frequency_penalty = wire_.frequency_penalty();
      require(within(out.frequency_penalty, -kLargestPenalty, kLargestPenalty), "frequency_penalty",
              out.frequency_penalty, "from -1000 to 1000");
    }
  }

  void penalty_window(SamplingOptions& out) {
    if (wire_.penalty_window() > kLongestPenaltyWindow) {
      violations_.add("sampling.penalty_window", std::to_string(wire_.penalty_window()) +
                                                     " is not from 0 to " +
                                                     std::to_string(kLongestPenaltyWindow));
      return;
    }
    out.penalty_window = static_cast<int>(wire_.penalty_window());
  }

  void logit_bias(int vocab_size, SamplingOptions& out) {
    // A protobuf map has no order: sort, so that the same request is the same options.
    std::map<std::int32_t, float> sorted(wire_.logit_bias().begin(), wire_.logit_bias().end());
    for (const auto& [token, bias] : sorted) {
      if (violations_.full()) return;
      const std::string field = "logit_bias[" + std::to_string(token) + "]";
      if (token < 0 || token >= vocab_size) {
        violations_.add(name(field.c_str()), "token id " + std::to_string(token) +
                                                 " is not from 0 to " +
                                                 std::to_string(vocab_size - 1));
        continue;
      }
      require(within(bias, -kLargestBias, kLargestBias), field.c_str(), bias,
              "from -10000 to 10000");
      out.logit_bias.emplace_back(token, bias);
    }
  }

 private:
  const v1::Sampling& wire_;
  Violations& violations_;
};

}  // namespace

SamplingOptions read_sampling(const v1::Sampling& wire, const ModelConfig& config, const Head& head,
                              Violations& violations) {
  SamplingOptions out;
  SamplingCheck check(wire, violations);
  check.temperature(out);
  if (head.supports_filters()) {
    check.filters(config.vocab_size, out);
    check.penalties(out);
    check.penalty_window(out);
    check.logit_bias(config.vocab_size, out);
    return out;
  }
  // Neutral values ask for nothing and are let through.
  const char* const type = to_string(config.head);
  check.refuse(wire.top_k() != 0, "top_k", type);
  check.refuse(wire.has_top_p() && wire.top_p() != 1.0f, "top_p", type);
  check.refuse(wire.has_min_p() && wire.min_p() != 0.0f, "min_p", type);
  check.refuse(wire.has_repetition_penalty() && wire.repetition_penalty() != 1.0f,
               "repetition_penalty", type);
  check.refuse(wire.has_presence_penalty() && wire.presence_penalty() != 0.0f, "presence_penalty",
               type);
  check.refuse(wire.has_frequency_penalty() && wire.frequency_penalty() != 0.0f,
               "frequency_penalty", type);
  check.refuse(wire.penalty_window() != 0, "penalty_window", type);
  check.refuse(!wire.logit_bias().empty(), "logit_bias", type);
  return out;
}

}  // namespace lintel
