// Completes occluded images: the first values are given, the model draws the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "client/image/image.h"
#include "model/transformer.h"

namespace lintel::bench {

struct CompletionOptions {
  std::size_t given = 392;  // values, in raster order: the upper half of an MNIST digit
  int workers = 1;
  int batch = 1;           // images a worker completes together, at most
  std::uint64_t seed = 0;  // image i draws with seed + i, so a completion is the same in any batch
  std::function<void(std::size_t images)> on_progress;  // by any worker; may be empty
};

// Completed images, in order. Nothing of an image past its `given` values is read.
// REQUIRES: 1 <= given < values of an image; images of the model's size.
std::vector<GrayImage> complete(const Transformer& model, std::span<const GrayImage> images,
                                const CompletionOptions& options);

}  // namespace lintel::bench
