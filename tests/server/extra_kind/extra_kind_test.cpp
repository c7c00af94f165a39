// SPDX-License-Identifier: Apache-2.0
// A kind of attention that is a file and a line: recent.cpp and kinds.inc. The tests of all kinds,
// from its step to promise 1, run with it in this program; what is here is said of it alone.
#include <nlohmann/json.hpp>
#include <set>

#include "model/config/attention_spec.h"
#include "model/model_files.h"
#include "model/transformer.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"
#include "tools/convert/convert_model.h"

namespace lintel {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using testing::tiny_config;
using testing::TinyModel;

ModelConfig recent_model() {
  ModelConfig config = tiny_config(TinyModel::kBytes);
  config.attention.assign(2, attention_of("recent:window=5"));
  return config;
}

TEST_CASE("a kind that is a file and a line is one of those there are") {
  const std::vector<std::string> types = attention_types();
  CHECK(types.size() > 1);
  CHECK(types.back() == "recent");
  CHECK_THAT(kinds_help(), EndsWith("; recent (window, gated)"));
  CHECK(nlohmann::json::parse(kinds_json())["kinds"].back()["type"] == "recent");
}

TEST_CASE("its tensors are those that it declares") {
  std::set<std::string> names;
  for (const TensorSpec& spec : list_tensors(recent_model())) names.insert(spec.name);
  const std::string layer = "transformer.layers.1.attention.";
  for (const char* name :
       {"gate_projection.weight", "value_projection.weight", "value_projection.bias",
        "query_projection.weight", "out_projection.weight", "inner_attention.weights"}) {
    CHECK(names.contains(layer + name));
  }
  CHECK_FALSE(names.contains(layer + "gate_projection.bias"));
  CHECK_FALSE(names.contains(layer + "key_projection.weight"));
  // Per layer E = 16, H = 2, D + 1 = 9: gate, value, out of 18, the unused query, 5
  // weights.
  const std::int64_t attention = 18 * 16 + 18 * 16 + 18 + 16 * 18 + 16 + 16 * 16 + 16 + 5;
  const std::int64_t linear = 3 * (16 * 16 + 16) + 16 * 16 + 16;
  CHECK(count_parameters(recent_model()) - count_parameters(tiny_config(TinyModel::kBytes)) ==
        2 * (attention - linear));
}

TEST_CASE("its keys that do not go with the model are refused by name") {
  ModelConfig config = recent_model();
  config.max_length = 4;
  CHECK_THROWS_WITH(parse_config(to_json(config), "f"),
                    Contains("f: key \"attention.window\": found 5, expected at most max_length"));
  CHECK_THROWS_WITH(with_attention(config, parse_attention_spec("recent:window=6")),
                    Contains("key \"window\": found 6, expected at most max_length = 4"));
}

TEST_CASE("a model of it is converted") {
  const testing::TemporaryDirectory directory;
  write_random_model(directory.path() / "from", recent_model(), 3);
  convert_model(directory.path() / "from", directory.path() / "to", WeightType::kBf16);
  const Transformer::Options bf16{.weight_type = WeightType::kBf16};
  const auto from = Transformer::load(directory.path() / "from", bf16);
  const auto to = Transformer::load(directory.path() / "to", bf16);
  CHECK(from->weight_bytes() == to->weight_bytes());
  CHECK(from->num_parameters() == to->num_parameters());
  const auto walk = [](const Transformer& model) {
    Workspace workspace = model.new_workspace(1);
    SequenceState sequence = model.new_sequence();
    std::vector<float> all;
    for (std::int32_t token = 0; token < 12; ++token) {
      const BatchRow row{token, &sequence, /*wants_output=*/true};
      const auto out = model.step({&row, 1}, workspace).row(0);
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  };
  CHECK(walk(*from) == walk(*to));
}

}  // namespace
}  // namespace lintel
