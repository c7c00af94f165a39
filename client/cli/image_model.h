// What a client must know of a model of images.
#pragma once

#include <cstdint>
#include <optional>

#include "client/client.h"

namespace lintel::cli {

struct ImageModel {
  int height = 0;
  int width = 0;
  std::optional<std::uint8_t> start_token;  // the first value when there is no prompt
};

// Throws UsageError when the model is not one of 8-bit grey images, Failure when what the server
// says of it makes no sense.
ImageModel image_model(const v1::Model& model);

}  // namespace lintel::cli
