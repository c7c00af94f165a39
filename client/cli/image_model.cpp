#include "client/cli/image_model.h"

#include "client/cli/console.h"

namespace lintel::cli {

ImageModel image_model(const v1::Model& model) {
  if (model.modality() != "image" || !model.has_image()) {
    throw UsageError("model " + model.name() + " is one of " + model.modality() +
                     ", not of images");
  }
  const v1::ImageShape& shape = model.image();
  if (shape.channels() != 1) {
    throw UsageError("model " + model.name() + " has " + std::to_string(shape.channels()) +
                     " channels; only grey images can be read and drawn");
  }
  constexpr std::uint32_t kMaxSide = 4096;
  if (shape.height() == 0 || shape.width() == 0 || shape.height() > kMaxSide ||
      shape.width() > kMaxSide || shape.height() * shape.width() < 2) {
    throw Failure("model " + model.name() + ": images of " + std::to_string(shape.height()) + "x" +
                  std::to_string(shape.width()));
  }
  ImageModel image{static_cast<int>(shape.height()), static_cast<int>(shape.width()), std::nullopt};
  if (shape.has_start_token()) {
    if (shape.start_token() < 0 || shape.start_token() > 255) {
      throw Failure("model " + model.name() + ": start token " +
                    std::to_string(shape.start_token()) + " is no pixel");
    }
    image.start_token = static_cast<std::uint8_t>(shape.start_token());
  }
  return image;
}

}  // namespace lintel::cli
