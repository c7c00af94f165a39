// SPDX-License-Identifier: Apache-2.0
#include "tests/model/attention/pattern_cases.h"

#include <algorithm>

#include "model/config/attention_spec.h"
#include "model/formats/weights.h"

namespace lintel::testing {
namespace {

using Position = std::int64_t;

std::string sparse(const std::string& keys) {
  return R"({"type": "sparse_transformer", )" + keys + "}";
}
std::string longformer(const std::string& keys) {
  return R"({"type": "longformer", )" + keys + "}";
}
std::string bigbird(const std::string& keys) { return R"({"type": "bigbird", )" + keys + "}"; }

bool sparse_sees(const AttentionConfig& config, Position h, Position t, Position s) {
  const auto l = static_cast<Position>(config.integer("stride"));
  const auto c = static_cast<Position>(config.integer("columns"));
  const auto groups = static_cast<Position>(config.integer("column_groups"));
  const bool is_strided = config.choice("pattern") == "strided";
  const bool local = is_strided ? t - s < l : s / l == t / l;
  const Position g = h % groups;
  const bool far = is_strided ? (t - s) % l == 0 : l - (g + 1) * c <= s % l && s % l < l - g * c;
  if (s == t) return true;
  const std::string part = config.choice("part");
  if (part == "both") return local || far;
  if (part == "local") return local;
  if (part == "far") return far;
  return h % 2 == 0 ? local : far;
}

bool longformer_sees(const AttentionConfig& config, Position h, Position t, Position s) {
  const auto window = static_cast<Position>(config.integer("window"));
  const auto first = static_cast<Position>(config.integer("global_tokens"));
  const std::vector<std::int64_t> dilations = config.integers("dilation");
  const Position d = dilations.size() == 1 ? dilations[0] : dilations[static_cast<std::size_t>(h)];
  if (t < first || s < first) return true;
  return (t - s) % d == 0 && (t - s) / d < window;
}

bool bigbird_sees(const TwinInputs& in, Position h, Position t, Position s) {
  const auto size = static_cast<Position>(in.config.integer("block_size"));
  const auto window = static_cast<Position>(in.config.integer("window_blocks"));
  const auto global = static_cast<Position>(in.config.integer("global_blocks"));
  const Position i = t / size;
  const Position j = s / size;
  if (i - j < window || j < global || i < global) return true;
  if (in.own.empty()) return false;
  const Position blocks = (in.dims.max_length + size - 1) / size;
  const auto named = in.own[0].row(static_cast<std::size_t>(h * blocks + i));
  return std::ranges::find(named, static_cast<float>(j)) != named.end();
}

}  // namespace

bool sees(const TwinInputs& in, std::int64_t h, std::int64_t t, std::int64_t s) {
  if (s > t) return false;
  const std::string type = in.config.type();
  if (type == "sparse_transformer") return sparse_sees(in.config, h, t, s);
  if (type == "longformer") return longformer_sees(in.config, h, t, s);
  return bigbird_sees(in, h, t, s);
}

std::vector<PatternCase> pattern_cases(std::mt19937& generator) {
  std::vector<PatternCase> cases = {
      {sparse(R"("pattern": "strided", "stride": 1)"), 2, 5, 150},
      {sparse(R"("pattern": "strided", "stride": 13)"), 2, 8, 300},
      {sparse(R"("pattern": "strided", "stride": 100)"), 1, 32, 350},
      {sparse(R"("pattern": "strided", "stride": 1, "part": "far")"), 2, 5, 70},
      {sparse(R"("pattern": "strided", "stride": 1, "part": "local")"), 2, 5, 70},
      {sparse(R"("pattern": "strided", "stride": 1000000)"), 1, 16, 200},
      {sparse(R"("pattern": "strided", "stride": 1000000, "part": "far")"), 1, 3, 80},
      {sparse(R"("pattern": "strided", "stride": 1000000, "part": "local")"), 1, 3, 80, 90},
      {sparse(R"("pattern": "strided", "stride": 70, "part": "local")"), 3, 33, 300},
      {sparse(R"("pattern": "strided", "stride": 13, "part": "by_head")"), 1, 4, 100},
      {sparse(R"("pattern": "strided", "stride": 13, "part": "by_head")"), 3, 8, 300},
      {sparse(R"("pattern": "fixed", "stride": 12, "columns": 3, "column_groups": 4)"), 5, 8, 260},
      {sparse(R"("pattern": "fixed", "stride": 12, "columns": 3, "column_groups": 4,)"
              R"( "part": "far")"),
       5, 8, 260},
      {sparse(R"("pattern": "fixed", "stride": 7, "columns": 7)"), 2, 32, 500},
      {sparse(R"("pattern": "fixed", "stride": 1)"), 2, 6, 150},
      {sparse(R"("pattern": "fixed", "stride": 1, "part": "far")"), 2, 6, 150},
      {sparse(R"("pattern": "fixed", "stride": 5, "column_groups": 5, "part": "by_head")"), 6, 4,
       333},
      {sparse(R"("pattern": "fixed", "stride": 100000, "columns": 20)"), 1, 4, 120, 120},
      {sparse(R"("pattern": "fixed", "stride": 64, "part": "local")"), 2, 16, 200},
      {longformer(R"("window": 1)"), 2, 7, 100},
      {longformer(R"("window": 1, "dilation": 65536, "global_tokens": 3)"), 2, 7, 100},
      {longformer(R"("window": 3, "dilation": 60)"), 1, 16, 300},
      {longformer(R"("window": 2, "dilation": 20000)"), 1, 2, 80},
      {longformer(R"("window": 1000000, "dilation": 2)"), 2, 8, 200, 200},
      {longformer(R"("window": 9, "dilation": [1, 7, 2])"), 3, 8, 250},
      {longformer(R"("window": 4, "global_tokens": 500)"), 2, 8, 300},
      {longformer(R"("window": 4, "global_tokens": 500)"), 2, 8, 300, 300},
      {longformer(R"("window": 66, "dilation": [3, 1], "global_tokens": 65)"), 2, 32, 400},
      {longformer(R"("window": 200, "global_tokens": 1)"), 1, 64, 500},
      {bigbird(R"("block_size": 1)"), 2, 8, 150},
      {bigbird(R"("block_size": 1, "global_blocks": 0, "window_blocks": 1)"), 2, 8, 150},
      {bigbird(R"("block_size": 1, "global_blocks": 0, "random_blocks": 3)"), 2, 8, 200, 200},
      {bigbird(R"("block_size": 7, "window_blocks": 60000)"), 1, 8, 150},
      {bigbird(R"("block_size": 6, "global_blocks": 65536, "random_blocks": 2)"), 1, 8, 150, 151},
      {bigbird(R"("block_size": 1000, "random_blocks": 1)"), 2, 4, 150, 300},
      {bigbird(R"("block_size": 16, "window_blocks": 1, "random_blocks": 2)"), 4, 16, 400, 403}};
  const auto up_to = [&](int most) { return 1 + static_cast<int>(generator() % most); };
  const auto key = [](const char* name, int value) {
    return ", \"" + std::string(name) + "\": " + std::to_string(value);
  };
  for (int i = 0; i < 24; ++i) {
    PatternCase one{
        .n_heads = up_to(5), .d_head = up_to(40), .n = static_cast<std::size_t>(100 + up_to(300))};
    const bool is_bounded = generator() % 2 == 0;
    if (is_bounded || i % 3 == 2) one.max_length = static_cast<std::int64_t>(one.n) + up_to(50) - 1;
    if (i % 3 == 0) {
      const char* const part[] = {"both", "local", "far", "by_head"};
      const bool is_fixed = generator() % 2 == 0;
      const int groups = is_fixed ? up_to(4) : 1;
      const int columns = is_fixed ? up_to(5) : 1;
      one.config = sparse(R"("part": ")" + std::string(part[generator() % 4]) +
                          R"(", "pattern": ")" + (is_fixed ? "fixed" : "strided") + "\"" +
                          key("stride", columns * groups + up_to(80) - 1) +
                          key("columns", columns) + key("column_groups", groups));
    } else if (i % 3 == 1) {
      std::string dilations = std::to_string(up_to(9));
      for (int h = 1; h < one.n_heads; ++h) dilations += ", " + std::to_string(up_to(9));
      one.config = longformer("\"dilation\": [" + dilations + "]" + key("window", up_to(90)) +
                              key("global_tokens", up_to(80) - 1));
    } else {
      one.config =
          bigbird("\"scale\": 0.5" + key("block_size", up_to(30)) + key("window_blocks", up_to(4)) +
                  key("global_blocks", up_to(4) - 1) + key("random_blocks", up_to(5) - 1));
    }
    cases.push_back(one);
  }
  return cases;
}

TwinInputs pattern_inputs(const PatternCase& which, std::mt19937& generator) {
  const AttentionConfig config = parse_attention_config(which.config, "case");
  TwinInputs in = normal_inputs(config, which.n_heads, which.d_head, which.n, generator);
  in.dims.max_length = which.max_length;
  in.own.clear();
  for (const OwnTensor& tensor : own_tensors(config, in.dims)) {
    Matrix named = TensorSpec{tensor.name, tensor.shape}.new_matrix();
    for (std::size_t row = 0; row < named.rows(); ++row) {
      const std::size_t own = row % static_cast<std::size_t>(tensor.shape[1]);
      for (float& block : named.row(row)) {
        block = static_cast<float>(generator() % (own + 2)) - 1.0f;
      }
      if (row % 3 == 0) named.row(row).back() = named.row(row).front();
    }
    in.own.push_back(std::move(named));
  }
  return in;
}

}  // namespace lintel::testing
