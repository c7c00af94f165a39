// SPDX-License-Identifier: Apache-2.0
// FeatureMap: phi of linear attention, a function of one row of queries or keys and of nothing
// else. SIMD by Highway, chosen at run time. The rules are those of model/core/kernels.h.
#pragma once

#include <cstddef>
#include <span>

#include "model/core/tensor.h"

namespace lintel {

// With x one head's row [D], c = scale, and u = c x, or omega^T (c x) where there is an omega:
enum class FeatureMapKind {
  kEluPlusOne,   // elu(x) + 1 (Katharopoulos et al. 2020)
  kRelu,         // max(u, 0) + addend (Choromanski et al. 2021, generalized attention)
  kSquaredRelu,  // max(u, 0)^2 + addend
  kDpfp,  // y_i y_{(i-j) mod 2D}, y = [max(x, 0), max(-x, 0)], block j = 1..nu (Schlag et al. 2021)
  kTaylor1,  // [1, x / max(|x|, 1e-12)] (Li et al. 2020)
  kTaylor2,  // [1, c x, (c x)(c x)^T / sqrt(2)] (Arora et al. 2024, Based)
  kFourier,  // [cos u, sin u] / sqrt(features), then [smoothing] (Rahimi and Recht 2007)
  kExp,      // exp(c x)
  kFavor     // exp(u - |c x|^2 / 2) / sqrt(C), hyperbolic: of [u, -u] (Choromanski et al. 2021)
};

// phi for all heads of a layer. Const, and shareable between threads.
class FeatureMap {
 public:
  struct Options {
    FeatureMapKind kind = FeatureMapKind::kEluPlusOne;
    std::size_t n_heads = 0;   // H
    std::size_t d_head = 0;    // D
    std::size_t features = 0;  // columns of omega; 0: there is none
    float scale = 1.0f;        // c
    float addend = 0.0f;       // of relu and squared_relu
    std::size_t nu = 0;        // blocks of dpfp
    float smoothing = 0.0f;    // the last feature of fourier; 0: there is none
    bool is_hyperbolic = false;
  };

  // omega: [D, features], shared by the heads; copied.
  FeatureMap(const Options& options, std::span<const float> omega);

  // C, features of a head as they are kept. taylor2 keeps (c x)(c x)^T, which is symmetric, once:
  // x_i x_j for i < j stands for two that are each 1/sqrt(2) of it.
  std::size_t num_features() const { return num_features_; }
  static std::size_t num_features(const Options& options);
  // True if apply() returns the logarithm of phi: exp and favor, whose values exceed a float's
  // range.
  bool is_logarithmic() const;

  // Floats beyond the last feature that apply() may write to.
  static constexpr std::size_t kSlack = 16;
  std::size_t work_floats() const { return work_floats_; }

  // x: [H*D]; phi: H*C floats and kSlack more, of no meaning afterwards; work: work_floats(). They
  // do not overlap.
  void apply(std::span<const float> x, float* phi, float* work) const;

  const Options& options() const { return options_; }

 private:
  const Options options_;
  const std::size_t num_features_;
  const std::size_t work_floats_;
  Matrix omega_;  // [D, features], times c
};

}  // namespace lintel
