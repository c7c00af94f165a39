// What a client must know of a model of images, and the images that are put to it.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/console.h"
#include "client/image/image.h"
#include "client/lib/client.h"

namespace lintel::cli {

struct ImageModel {
  int height = 0;
  int width = 0;
  int channels = 1;                         // 1: greys, 3: red, green and blue of each pixel
  std::optional<std::uint8_t> start_token;  // the first value when there is no prompt
};

// Throws UsageError when the model is not one of 8-bit grey or coloured images, Failure when what
// the server says of it makes no sense.
ImageModel image_model(const v1::Model& model);

// How a file's images are turned into what the model takes.
struct ImageFileFlags {
  std::string file;   // --images
  std::string index;  // --index
  bool invert = false;
  bool fit = false;

  void add_to(CLI::App& app, const std::string& images_help, const std::string& index_default);
};

struct IndexedImage {
  std::int64_t index = 0;  // in the file
  GrayImage image;         // the model's values: of colours [height, 3 * width]
};

// The images of --index, in its order, or where that is empty the first `most`. Warns on standard
// error when their borders are as far from the model's background as can be: light where it draws
// on black. Throws UsageError or Failure naming the flag, ImageError naming the file.
std::vector<IndexedImage> read_images_for(const ImageModel& model, const ImageFileFlags& flags,
                                          std::int64_t most, Console& console);

}  // namespace lintel::cli
