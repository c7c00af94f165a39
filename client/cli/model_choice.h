// SPDX-License-Identifier: Apache-2.0
// Chooses the model of a command where --model does not say.
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

// A client's view of a model of images, and of the images to complete with it.

struct ImageModel {
  int height = 0;
  int width = 0;
  int channels = 1;                         // 1: greys, 3: red, green and blue of each pixel
  std::optional<std::uint8_t> start_token;  // the first token when there is no prompt
};

// Throws UsageError when the model is not one of 8-bit grey or coloured images, Failure when what
// the server says of it makes no sense.
ImageModel image_model(const v1::Model& model);

// Flags that turn a file's images into input of the model.
struct ImageFileFlags {
  std::string file;   // --images
  std::string index;  // --index
  bool invert = false;
  bool fit = false;

  void add_to(CLI::App& app, const std::string& images_help, const std::string& index_default);
  // Throws UsageError for a flag that goes with --images. REQUIRES: that is not given.
  void check_unused() const;
};

struct IndexedImage {
  std::int64_t index = 0;  // in the file
  GrayImage image;         // the model's tokens: of colours [height, 3 * width]
};

// The images of --index, in its order, or where that is empty the first `most`. Warns on standard
// error when their borders are as far from the model's background as can be: light where it draws
// on black. Throws UsageError or Failure naming the flag, ImageError naming the file.
std::vector<IndexedImage> read_images_for(const ImageModel& model, const ImageFileFlags& flags,
                                          std::int64_t most, Console& console);

// The model `name`. Without a name: the only one that is loaded, or of several the only one of
// `modality`, where one is needed ("image", "bytes"; empty: any will do, so several are too many).
// Throws UsageError where several are left, else what the server said.
v1::Model choose_model(const Client& client, const std::string& name, const std::string& modality,
                       Cancellation& cancellation);

// `error`, or where the server knows the model and has not loaded it, one that says which command
// loads it.
CallError load_hint(const Client& client, Cancellation& cancellation, const CallError& error);

// Returns the result of `call`; a CallError becomes the one of load_hint.
template <typename Call>
auto with_load_hint(const Client& client, Cancellation& cancellation, const Call& call) {
  try {
    return call();
  } catch (const CallError& error) {
    throw load_hint(client, cancellation, error);
  }
}

}  // namespace lintel::cli
