// SPDX-License-Identifier: Apache-2.0
// The keys of linear attention: which of them go together, how large a state may become, and the
// random features that are drawn where a model has none.
#include <cmath>
#include <string>
#include <vector>

#include "model/config/attention_spec.h"
#include "model/config/config.h"
#include "model/layers/attention/attention.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

using Catch::Matchers::Contains;

constexpr LayerDims kDims{.d_model = 64, .n_heads = 4, .d_head = 16, .max_length = 256};

std::string error_of(const std::string& keys, const LayerDims& dims = kDims) {
  try {
    check_attention(attention_of("linear:" + keys), dims, "f", "attention.");
  } catch (const ModelError& error) {
    return error.what();
  }
  return "accepted";
}

TEST_CASE("eps may be 0 where the denominator cannot be") {
  for (const char* map : {"exp", "taylor2", "favor,features=8"}) {
    CHECK(error_of(std::string("eps=0,feature_map=") + map) == "accepted");
  }
  for (const char* map : {"elu_plus_one", "relu", "squared_relu", "dpfp,nu=1", "taylor1",
                          "fourier,features=8,smoothing=1"}) {
    CHECK_THAT(error_of(std::string("eps=0,feature_map=") + map),
               Contains("f: key \"attention.eps\": found 0, expected above 0 for feature_map"));
  }
}

TEST_CASE("a key that the feature map does not read is refused where it is not its default") {
  struct Case {
    const char* key;
    const char* value;
    const char* left_out;
    std::vector<std::string> maps;  // the maps that read it
  };
  const std::vector<std::string> all = {"elu_plus_one", "relu",    "squared_relu",
                                        "dpfp",         "taylor1", "taylor2",
                                        "fourier",      "exp",     "favor"};
  for (const Case& which :
       {Case{"features", "8", "null", {"relu", "squared_relu", "fourier", "favor"}},
        Case{"feature_scale",
             "0.5",
             "null",
             {"relu", "squared_relu", "taylor2", "fourier", "exp", "favor"}},
        Case{"feature_eps", "0.25", "0.001", {"relu", "squared_relu"}},
        Case{"nu", "2", "null", {"dpfp"}}, Case{"smoothing", "1.5", "0", {"fourier"}},
        Case{"hyperbolic", "true", "false", {"favor"}}}) {
    for (const std::string& map : all) {
      const std::string key = which.key;
      std::string keys = "feature_map=" + map;
      if (map == "dpfp" && key != "nu") keys += ",nu=1";
      if ((map == "fourier" || map == "favor") && key != "features") keys += ",features=8";
      CAPTURE(key, map);
      const bool is_read = std::find(which.maps.begin(), which.maps.end(), map) != which.maps.end();
      const std::string error = error_of(keys + "," + key + "=" + which.value);
      if (is_read) {
        CHECK(error == "accepted");
      } else {
        CHECK_THAT(error,
                   Contains("key \"attention." + key + "\": found " + which.value + ", expected " +
                            which.left_out + " for feature_map \"" + map + "\""));
        CHECK(error_of(keys + "," + key + "=" + which.left_out) == "accepted");
      }
    }
  }
}

TEST_CASE("a feature map that cannot be without a key asks for it") {
  for (const char* map : {"fourier", "favor"}) {
    CHECK_THAT(error_of(std::string("feature_map=") + map),
               Contains("key \"attention.features\": found null, expected a number"));
  }
  CHECK_THAT(error_of("feature_map=dpfp"),
             Contains("key \"attention.nu\": found null, expected a number"));
}

TEST_CASE("features and state are bounded") {
  const LayerDims wide{.d_model = 1024, .n_heads = 1, .d_head = 1024};
  CHECK(error_of("feature_map=dpfp,nu=32", wide) == "accepted");
  CHECK_THAT(
      error_of("feature_map=dpfp,nu=33", wide),
      Contains("key \"attention.nu\": found 67584 features of a head, expected at most 65536"));
  CHECK_THAT(error_of("feature_map=taylor2", wide),
             Contains("key \"attention.feature_map\": found 1049601 features"));
  CHECK(error_of("feature_map=taylor2", {.n_heads = 1, .d_head = 255}) == "accepted");
  // Packed it would be 33,153.
  CHECK_THAT(error_of("feature_map=taylor2", {.n_heads = 1, .d_head = 256}),
             Contains("found 65793 features of a head"));
  CHECK(error_of("feature_map=favor,features=65536,hyperbolic=false", kDims) == "accepted");
  CHECK_THAT(error_of("feature_map=favor,features=65536,hyperbolic=true", kDims),
             Contains("key \"attention.features\": found 131072 features"));
  CHECK_THAT(error_of("feature_map=fourier,features=32768,smoothing=1", kDims),
             Contains("found 65537 features"));
  // H*C*(D+2)
  const LayerDims heads{.d_model = 1024, .n_heads = 64, .d_head = 62};
  CHECK(error_of("feature_map=favor,features=65536", heads) == "accepted");
  const LayerDims more_heads{.d_model = 1024, .n_heads = 65, .d_head = 62};
  CHECK_THAT(
      error_of("feature_map=favor,features=65536", more_heads),
      Contains("found a state of 272629760 floats, expected at most 268435456 for feature_map"));
  // Sizes bounded by the model's dimensions have no bound of their own.
  CHECK(error_of("eps=1e-6", {.n_heads = 16, .d_head = 4096}) == "accepted");
}

std::size_t block_floats(const std::string& spec) {
  const AttentionConfig config = attention_of(spec);
  std::vector<Matrix> own;
  for (const OwnTensor& tensor : own_tensors(config, kDims)) {
    own.emplace_back(static_cast<std::size_t>(tensor.shape[0]),
                     static_cast<std::size_t>(tensor.shape[1]));
  }
  const auto backend = make_attention({config, kDims, own});
  CHECK(backend->state_bytes(0) == backend->block_floats() * sizeof(float));
  CHECK(backend->state_bytes(1'000'000) == backend->state_bytes(0));
  return backend->block_floats();
}

TEST_CASE("a state holds a row of sums for each feature, and a maximum where values have no end") {
  constexpr std::size_t kHeads = 4, kHead = 16;
  CHECK(block_floats("linear") == kHeads * 16 * (kHead + 1));
  CHECK(block_floats("linear:feature_map=squared_relu") == kHeads * 16 * (kHead + 1));
  CHECK(block_floats("linear:feature_map=relu,features=24") == kHeads * 24 * (kHead + 1));
  CHECK(block_floats("linear:feature_map=dpfp,nu=3") == kHeads * 96 * (kHead + 1));
  CHECK(block_floats("linear:feature_map=taylor1") == kHeads * 17 * (kHead + 1));
  CHECK(block_floats("linear:feature_map=taylor2") == kHeads * (1 + 16 + 136) * (kHead + 1));
  CHECK(block_floats("linear:feature_map=fourier,features=10") == kHeads * 20 * (kHead + 1));
  CHECK(block_floats("linear:feature_map=fourier,features=10,smoothing=1") ==
        kHeads * 21 * (kHead + 1));
  CHECK(block_floats("linear:feature_map=exp") == kHeads * 16 * (kHead + 2));
  CHECK(block_floats("linear:feature_map=favor,features=10") == kHeads * 10 * (kHead + 2));
  CHECK(block_floats("linear:feature_map=favor,features=10,hyperbolic=true") ==
        kHeads * 20 * (kHead + 2));
  CHECK(block_floats("efficient") == kHeads * 16 * (kHead + 2));
}

TEST_CASE("random features are drawn orthogonal, of the lengths of Gaussian vectors") {
  constexpr LayerDims kNarrow{.d_model = 24, .n_heads = 2, .d_head = 12};
  const auto drawn = [&](std::uint64_t seed, int layer) {
    const auto config = attention_of("linear:feature_map=favor,features=600");
    const OwnTensor tensor = own_tensors(config, kNarrow).at(0);
    CHECK(tensor.name == "feature_map.omega");
    CHECK(tensor.shape == std::vector<std::int64_t>{12, 600});
    CHECK_FALSE(tensor.is_learned);
    Matrix omega(12, 600);
    draw_tensor(omega.values(), tensor, seed, layer, 0);
    return omega;
  };
  const Matrix omega = drawn(5, 2);
  const auto product = [&](std::size_t a, std::size_t b) {
    double sum = 0.0;
    for (std::size_t i = 0; i < 12; ++i) sum += double{omega.row(i)[a]} * omega.row(i)[b];
    return sum;
  };
  double lengths = 0.0, mean = 0.0, between_groups = 0.0;
  for (std::size_t f = 0; f < 600; ++f) {
    lengths += product(f, f) / 600;
    mean += omega.row(0)[f] / 600;
    for (std::size_t g = f / 12 * 12; g < f; ++g) REQUIRE(std::abs(product(f, g)) < 1e-5);
    if (f >= 12) between_groups = std::max(between_groups, std::abs(product(f, f - 12)));
  }
  // A squared length is chi squared with 12 degrees: mean 12, standard deviation 4.9.
  CHECK(lengths == Approx(12.0).margin(1.0));
  CHECK(std::abs(mean) < 0.2);
  CHECK(between_groups > 5.0);
  const auto values = [](const Matrix& m) {
    return std::vector<float>(m.values().begin(), m.values().end());
  };
  CHECK(values(drawn(5, 2)) == values(omega));
  CHECK(values(drawn(6, 2)) != values(omega));
  CHECK(values(drawn(5, 3)) != values(omega));
}

}  // namespace
}  // namespace lintel
