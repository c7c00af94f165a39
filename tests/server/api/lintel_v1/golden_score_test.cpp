// SPDX-License-Identifier: Apache-2.0
// The vectors of tests/golden/zoo, as clients of a server that has all these models see them.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "model/formats/safetensors.h"
#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

constexpr double kBitsTolerance = 1e-3;

struct GoldenBits {
  std::vector<std::int32_t> tokens;  // [B, L]
  std::vector<float> bits;           // [B, L-1]
  std::size_t batch, length;

  explicit GoldenBits(const std::filesystem::path& directory) {
    const SafetensorsFile file(directory / "golden.safetensors");
    tokens = file.read_i32("tokens");
    bits = file.read_f32("log_likelihood_bits");
    batch = static_cast<std::size_t>(file.tensor("tokens").shape[0]);
    length = static_cast<std::size_t>(file.tensor("tokens").shape[1]);
  }
};

// Every model that has vectors, under its folder's name.
std::map<std::string, std::filesystem::path> golden_models() {
  std::map<std::string, std::filesystem::path> found;
  const std::filesystem::path all = LINTEL_TEST_DATA "/golden/zoo";
  for (const auto& entry : std::filesystem::directory_iterator(all)) {
    if (entry.is_directory()) found[entry.path().filename().string()] = entry.path();
  }
  return found;
}

}  // namespace

TEST_CASE("the Score of every kind of model has the reference's probabilities") {
  GivenModels given;
  for (const auto& [name, directory] : golden_models()) {
    given[name] = Transformer::load(directory, {});
  }
  const SteadyClock clock;
  TestServer server(test_options(), clock, given);
  for (const auto& [name, directory] : golden_models()) {
    CAPTURE(name);
    const GoldenBits golden(directory);
    v1::ScoreRequest request;
    request.set_model(name);
    for (std::size_t b = 0; b < golden.batch; ++b) {
      auto& tokens = *request.add_sequences()->mutable_tokens();
      for (std::size_t t = 0; t < golden.length; ++t) {
        tokens.add_ids(golden.tokens[b * golden.length + t]);
      }
    }
    const Scored scored = score(server, request);
    REQUIRE(scored.status.ok());
    REQUIRE(scored.responses.size() == golden.batch);
    for (const v1::ScoreResponse& response : scored.responses) {
      REQUIRE(response.log2_probs_size() == static_cast<int>(golden.length) - 1);
      double largest = 0.0;
      for (int t = 0; t < response.log2_probs_size(); ++t) {
        const double expected = golden.bits[response.index() * (golden.length - 1) + t];
        largest = std::max(largest, std::abs(-response.log2_probs(t) - expected));
      }
      CHECK(largest <= kBitsTolerance);
    }
  }
}

}  // namespace lintel::testing
