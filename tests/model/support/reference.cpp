// SPDX-License-Identifier: Apache-2.0
#include "tests/model/support/reference.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace lintel::testing {
namespace {

Rows dense_rows(const Rows& x, const LinearWeights& linear) {
  Rows y;
  for (const Row& row : x) {
    y.push_back(dense_reference(row, linear.weight.values(), linear.bias.values()));
  }
  return y;
}

Rows norm_rows(const Rows& x, const NormWeights& norm, double eps) {
  Rows y;
  for (const Row& row : x) {
    y.push_back(layer_norm_reference(row, norm.weight.values(), norm.bias.values(), eps));
  }
  return y;
}

void add_rows(const Rows& delta, Rows& x) {
  for (std::size_t t = 0; t < x.size(); ++t) {
    for (std::size_t i = 0; i < x[t].size(); ++i) x[t][i] += delta[t][i];
  }
}

double sinusoid(std::int64_t position, std::size_t i, std::size_t width) {
  const double exponent = -2.0 * static_cast<double>(i / 2) / static_cast<double>(width);
  const double angle = static_cast<double>(position) * std::pow(10000.0, exponent);
  return i % 2 == 0 ? std::sin(angle) : std::cos(angle);
}

double position_part(const ModelConfig& config, const ModelWeights& weights, std::size_t position,
                     std::size_t i, std::size_t width) {
  return config.position_encoding == PositionEncoding::kLearned
             ? weights.position_embedding.row(position)[i]
             : sinusoid(static_cast<std::int64_t>(position), i, width);
}

Row embedded(const ModelConfig& config, const ModelWeights& weights, std::int32_t token,
             std::size_t position) {
  const auto value = weights.value_embedding.row(static_cast<std::size_t>(token));
  Row row(value.begin(), value.end());
  if (config.embedding == EmbeddingKind::kValue) return row;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const double part = position_part(config, weights, position, i, value.size());
    if (config.embedding == EmbeddingKind::kValueConcatPosition) {
      row.push_back(part);
    } else {
      row[i] += part;
    }
  }
  return row;
}

// Adds the inputs of layer i to x, before its mixers.
void add_inputs(const ModelConfig& config, const ModelWeights& weights, int i, Rows& x) {
  for (std::size_t t = 0; t < x.size(); ++t) {
    for (std::size_t c = 0; c < x[t].size(); ++c) {
      if (i > 0 && config.position_injection == PositionInjection::kEveryLayer) {
        x[t][c] += position_part(config, weights, t, c, x[t].size());
      }
      if (config.step_embedding) x[t][c] += weights.step_embedding.row(i)[c];
    }
  }
}

// The output of the streams of a reversible model.
Rows joined(const ModelConfig& config, const Rows& x, const Rows& y) {
  Rows both = x;
  for (std::size_t t = 0; t < x.size(); ++t) {
    if (config.residual == Residual::kReversibleConcat) {
      both[t].insert(both[t].end(), y[t].begin(), y[t].end());
      continue;
    }
    for (std::size_t c = 0; c < x[t].size(); ++c) both[t][c] = (x[t][c] + y[t][c]) / 2;
  }
  return both;
}

Rows attention_sublayer(const ModelConfig& config, int i, const LayerWeights& layer,
                        const Rows& x) {
  if (config.attention[i].type() != std::string("linear"))
    throw std::logic_error("linear attention only");
  return dense_rows(linear_attention_reference(dense_rows(x, layer.projections[0]),
                                               dense_rows(x, layer.projections[1]),
                                               dense_rows(x, layer.projections[2]), config.n_heads,
                                               config.d_head, config.attention[i].number("eps")),
                    layer.out);
}

Rows feed_forward(const ModelConfig& config, const LayerWeights& layer, const Rows& x) {
  Rows hidden = dense_rows(x, layer.linear1);
  for (Row& row : hidden) {
    for (double& h : row) {
      h = config.activation == Activation::kRelu ? std::max(h, 0.0) : exact_gelu(h);
    }
  }
  return dense_rows(hidden, layer.linear2);
}

}  // namespace

double phi(double x) { return x > 0.0 ? x + 1.0 : std::exp(x); }

double exact_gelu(double x) { return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0))); }

Row layer_norm_reference(const Row& x, std::span<const float> gain, std::span<const float> bias,
                         double eps) {
  const auto n = static_cast<double>(x.size());
  double mean = 0.0;
  for (const double value : x) mean += value / n;
  double variance = 0.0;
  for (const double value : x) variance += (value - mean) * (value - mean) / n;
  Row y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = (x[i] - mean) / std::sqrt(variance + eps) * gain[i] + bias[i];
  }
  return y;
}

Row dense_reference(const Row& x, std::span<const float> weight, std::span<const float> bias) {
  Row y(bias.begin(), bias.end());
  for (std::size_t n = 0; n < y.size(); ++n) {
    for (std::size_t k = 0; k < x.size(); ++k) y[n] += x[k] * weight[n * x.size() + k];
  }
  return y;
}

Rows linear_attention_reference(const Rows& q, const Rows& k, const Rows& v, int n_heads,
                                int d_head, double eps) {
  const auto width = static_cast<std::size_t>(d_head);
  Rows out(q.size(), Row(static_cast<std::size_t>(n_heads) * width));
  for (std::size_t t = 0; t < q.size(); ++t) {
    for (std::size_t first = 0; first < out[t].size(); first += width) {
      double normalizer = eps;
      for (std::size_t s = 0; s <= t; ++s) {
        double similarity = 0.0;
        for (std::size_t c = first; c < first + width; ++c)
          similarity += phi(q[t][c]) * phi(k[s][c]);
        normalizer += similarity;
        for (std::size_t m = first; m < first + width; ++m) out[t][m] += similarity * v[s][m];
      }
      for (std::size_t m = first; m < first + width; ++m) out[t][m] /= normalizer;
    }
  }
  return out;
}

Rows model_reference(const ModelConfig& config, const ModelWeights& weights,
                     std::span<const std::int32_t> tokens) {
  Rows x;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    x.push_back(embedded(config, weights, tokens[t], t));
  }
  Rows y = x;  // the other stream of a reversible model
  const double eps = config.layer_norm_eps;
  for (int i = 0; i < config.n_layers; ++i) {
    const LayerWeights& layer = weights.layers[static_cast<std::size_t>(config.weights_of(i))];
    for (Rows* const stream : {&x, &y}) add_inputs(config, weights, i, *stream);
    if (config.norm_placement == NormPlacement::kPost) {
      add_rows(attention_sublayer(config, i, layer, x), x);
      x = norm_rows(x, layer.norm1, eps);
      add_rows(feed_forward(config, layer, x), x);
      x = norm_rows(x, layer.norm2, eps);
    } else if (!config.is_reversible()) {
      add_rows(attention_sublayer(config, i, layer, norm_rows(x, layer.norm1, eps)), x);
      add_rows(feed_forward(config, layer, norm_rows(x, layer.norm2, eps)), x);
    } else {
      add_rows(attention_sublayer(config, i, layer, norm_rows(y, layer.norm1, eps)), x);
      add_rows(feed_forward(config, layer, norm_rows(x, layer.norm2, eps)), y);
    }
  }
  if (config.is_reversible()) x = joined(config, x, y);
  if (config.final_norm) x = norm_rows(x, weights.final_norm, eps);
  return dense_rows(x, weights.predictor);
}

}  // namespace lintel::testing
