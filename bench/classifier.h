// SPDX-License-Identifier: Apache-2.0
// A small network that names digits, to judge completed images with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "client/image/image.h"
#include "model/ops/dense.h"
#include "model/transformer.h"

namespace lintel::bench {

// Fully connected with relu, trained by training/lintel_training/classifier.py. The tensors of
// DIRECTORY/model.safetensors are hidden.I.weight [out, in], hidden.I.bias [out] for I = 0, 1, ...,
// then output.weight and output.bias. Pixels are divided by 255.
class Classifier {
 public:
  // Throws ModelError naming the file and what is wrong with it.
  explicit Classifier(const std::filesystem::path& directory);

  // The digit of each image: the class with the greatest output. Throws cli::Failure for an image
  // of another size.
  std::vector<int> classify(std::span<const GrayImage> images) const;

  std::size_t num_pixels() const { return layers_.front()->in_features(); }

 private:
  std::vector<std::unique_ptr<Dense>> layers_;  // the last has no relu
};

// Share of `labels` that `classifier` names from the images. REQUIRES: as many of both, not none.
double accuracy(const Classifier& classifier, std::span<const GrayImage> images,
                std::span<const std::uint8_t> labels);

// Completes occluded images: the first tokens are given, the model draws the rest.

struct CompletionOptions {
  std::size_t given = 392;  // tokens, in raster order: the upper half of an MNIST digit
  int workers = 1;
  int batch = 1;           // images a worker completes together, at most
  std::uint64_t seed = 0;  // image i draws with seed + i, so a completion is the same in any batch
  std::function<void(std::size_t images)> on_progress;  // by any worker; may be empty
};

// Completed images, in order. Nothing of an image past its `given` tokens is read.
// REQUIRES: 1 <= given < tokens of an image; images of the model's size.
std::vector<GrayImage> complete(const Transformer& model, std::span<const GrayImage> images,
                                const CompletionOptions& options);

}  // namespace lintel::bench
