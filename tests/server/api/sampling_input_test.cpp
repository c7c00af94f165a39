// SPDX-License-Identifier: Apache-2.0
// Which sampling a head honours, and which it refuses by name.
#include <functional>
#include <limits>

#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Case {
  const char* field;
  std::function<void(v1::Sampling&, float)> set;
  std::vector<float> good;
  std::vector<float> bad;
};

const std::vector<Case>& cases() {
  using S = v1::Sampling;
  static const std::vector<Case> all = {
      {"sampling.temperature",
       [](S& s, float v) { s.set_temperature(v); },
       {0, 1e-40f, 1e-6f, 0.0001f, 0.001f, 1, 1000},
       {-0.5f, -1e-6f, 1001, kNan, kInf, -kInf}},
      {"sampling.top_p",
       [](S& s, float v) { s.set_top_p(v); },
       {1e-6f, 0.5f, 1},
       {0, -1, 1.0001f, kNan, kInf}},
      {"sampling.min_p",
       [](S& s, float v) { s.set_min_p(v); },
       {0, 0.5f, 1},
       {-0.001f, 1.001f, kNan, kInf}},
      {"sampling.repetition_penalty",
       [](S& s, float v) { s.set_repetition_penalty(v); },
       {0.5f, 1, 2},
       {0, -1, 1e6f, kNan, kInf}},
      {"sampling.presence_penalty",
       [](S& s, float v) { s.set_presence_penalty(v); },
       {-2, 0, 2},
       {1e6f, -1e6f, kNan, kInf, -kInf}},
      {"sampling.frequency_penalty",
       [](S& s, float v) { s.set_frequency_penalty(v); },
       {-2, 0, 2},
       {1e6f, -1e6f, kNan, kInf, -kInf}},
      {"sampling.logit_bias[3]",
       [](S& s, float v) { (*s.mutable_logit_bias())[3] = v; },
       {-10'000, 0, 5},
       {1e6f, -1e6f, kNan, kInf, -kInf}},
  };
  return all;
}

TEST_CASE("every number of sampling has a range, and NaN and infinity are outside") {
  TestServer server({"tokens"});
  for (const Case& tested : cases()) {
    for (const float value : tested.good) {
      v1::GenerateRequest request = request_for("tokens", {1}, 3);
      tested.set(*request.mutable_sampling(), value);
      INFO(tested.field << " = " << value);
      CHECK(generate(server, request).status.ok());
    }
    for (const float value : tested.bad) {
      v1::GenerateRequest request = request_for("tokens", {1}, 3);
      tested.set(*request.mutable_sampling(), value);
      INFO(tested.field << " = " << value);
      CHECK(violated_fields(generate(server, request).status) ==
            std::vector<std::string>{tested.field});
    }
  }
}

TEST_CASE("a window of penalties has a greatest length") {
  TestServer server({"tokens"});
  for (const std::uint32_t window : {0u, 1u, 65'536u}) {
    v1::GenerateRequest request = request_for("tokens", {1}, 3);
    request.mutable_sampling()->set_penalty_window(window);
    CHECK(generate(server, request).status.ok());
  }
  v1::GenerateRequest request = request_for("tokens", {1}, 3);
  request.mutable_sampling()->set_penalty_window(65'537);
  CHECK(violated_fields(generate(server, request).status) ==
        std::vector<std::string>{"sampling.penalty_window"});
}

TEST_CASE("a biased token has to be one of the model's") {
  TestServer server({"tokens"});
  for (const int token : {-1, 50, std::numeric_limits<int>::max()}) {
    v1::GenerateRequest request = request_for("tokens", {1}, 3);
    (*request.mutable_sampling()->mutable_logit_bias())[token] = 1;
    CHECK(violated_fields(generate(server, request).status) ==
          std::vector<std::string>{"sampling.logit_bias[" + std::to_string(token) + "]"});
  }
}

TEST_CASE("a strong bias decides, so sampling options reach the head") {
  TestServer server({"tokens"});
  v1::GenerateRequest request = request_for("tokens", {1}, 10);
  (*request.mutable_sampling()->mutable_logit_bias())[42] = 1000;
  CHECK(generate(server, request).only().tokens == std::vector<std::int32_t>(10, 42));
}

TEST_CASE("sampling options without a meaning for a mixture of logistics are refused by name") {
  TestServer server({"image"});
  const std::pair<const char*, std::function<void(v1::Sampling&)>> refused[] = {
      {"sampling.top_k", [](v1::Sampling& s) { s.set_top_k(5); }},
      {"sampling.top_p", [](v1::Sampling& s) { s.set_top_p(0.9f); }},
      {"sampling.min_p", [](v1::Sampling& s) { s.set_min_p(0.1f); }},
      {"sampling.repetition_penalty", [](v1::Sampling& s) { s.set_repetition_penalty(1.1f); }},
      {"sampling.presence_penalty", [](v1::Sampling& s) { s.set_presence_penalty(0.1f); }},
      {"sampling.frequency_penalty", [](v1::Sampling& s) { s.set_frequency_penalty(kNan); }},
      {"sampling.penalty_window", [](v1::Sampling& s) { s.set_penalty_window(9); }},
      {"sampling.logit_bias", [](v1::Sampling& s) { (*s.mutable_logit_bias())[1] = 1; }},
  };
  for (const auto& [field, set] : refused) {
    v1::GenerateRequest request = request_for("image", {}, 3);
    set(*request.mutable_sampling());
    const Generated out = generate(server, request);
    CHECK(violated_fields(out.status) == std::vector<std::string>{field});
    CHECK(out.status.error_message().find("mixture_of_logistics") != std::string::npos);
  }
  v1::GenerateRequest neutral = request_for("image", {}, 3);
  neutral.mutable_sampling()->set_top_k(0);
  neutral.mutable_sampling()->set_top_p(1);
  neutral.mutable_sampling()->set_temperature(0.5f);
  CHECK(generate(server, neutral).status.ok());
}

}  // namespace
}  // namespace lintel::testing
