// Bits/dim of images under a model.
#pragma once

#include <vector>

#include "client/image/image.h"
#include "model/transformer.h"

namespace lintel::bench {

// Mean of -log2 p over every pixel after the first of every image. Throws cli::Failure when the
// images are not of the model's size.
double bits_per_dim(const Transformer& model, const std::vector<GrayImage>& images, int workers);

}  // namespace lintel::bench
