// SPDX-License-Identifier: Apache-2.0
#include "client/cli/model_choice.h"

#include <algorithm>
#include <cmath>

#include "client/cli/flags.h"
#include "client/image/fit.h"
#include "client/image/image_file.h"
#include "client/image/png.h"

namespace lintel::cli {
namespace {

// The models at hand draw light on a dark ground, as MNIST does; their start token is the ground.
void warn_if_inverted(const ImageModel& model, const ImageFileFlags& flags,
                      const std::vector<IndexedImage>& chosen, Console& console) {
  std::vector<GrayImage> images;
  for (const IndexedImage& one : chosen) images.push_back(one.image);
  const double border = border_mean(images), ground = model.start_token.value_or(0);
  if (std::abs(border - ground) < 128) return;
  console.err("lintel: warning: --images " + flags.file + " looks inverted: its borders are " +
              (border > ground ? "light" : "dark") + " and the model's ground is " +
              (border > ground ? "dark" : "light") + "; try it with" + (flags.invert ? "out" : "") +
              " --invert\n");
}

// Whole pictures of any size, made such as the model's.
std::vector<GrayImage> fitted_images(const ImageModel& model, const std::string& file) {
  if (model.channels > 1) {
    throw UsageError("--fit is for digits, which are grey; this model's images have colours");
  }
  std::vector<GrayImage> images = read_whole_images(file);
  for (GrayImage& image : images) {
    try {
      image = fit_digit(image, model.height, model.width);
    } catch (const std::invalid_argument& error) {
      throw ImageError(file + ": " + error.what());
    }
    if (model.start_token.value_or(0) < 128) continue;  // of a model that draws dark on light
    for (std::uint8_t& pixel : image.pixels) pixel = static_cast<std::uint8_t>(~pixel);
  }
  return images;
}

}  // namespace

ImageModel image_model(const v1::Model& model) {
  if (model.modality() != "image" || !model.has_image()) {
    throw UsageError("model " + model.name() + " is one of " + model.modality() +
                     ", not of images");
  }
  const v1::ImageShape& shape = model.image();
  if (shape.channels() != 1 && shape.channels() != 3) {
    throw UsageError("model " + model.name() + " has " + std::to_string(shape.channels()) +
                     " channels; only grey images and those of red, green and blue can be read "
                     "and drawn");
  }
  constexpr std::uint32_t kMaxSide = 4096;
  if (shape.height() == 0 || shape.width() == 0 || shape.height() > kMaxSide ||
      shape.width() > kMaxSide || shape.height() * shape.width() < 2) {
    throw Failure("model " + model.name() + ": images of " + std::to_string(shape.height()) + "x" +
                  std::to_string(shape.width()));
  }
  ImageModel image{static_cast<int>(shape.height()), static_cast<int>(shape.width()),
                   static_cast<int>(shape.channels()), std::nullopt};
  if (shape.has_start_token()) {
    if (shape.start_token() < 0 || shape.start_token() > 255) {
      throw Failure("model " + model.name() + ": start token " +
                    std::to_string(shape.start_token()) + " is no pixel");
    }
    image.start_token = static_cast<std::uint8_t>(shape.start_token());
  }
  return image;
}

void ImageFileFlags::add_to(CLI::App& app, const std::string& images_help,
                            const std::string& index_default) {
  add_text(app, "--images", file, "FILE", images_help);
  add_text(app, "--index", index, "LIST",
           "Which images of the file, from 0, e.g. 0-9 or 3,5,8 [" + index_default + "]");
  app.add_flag("--invert", invert, "The file is dark on light: turn its greys round");
  app.add_flag("--fit", fit,
               "The file is a photograph of one digit, of any size, or has images of another size: "
               "put as MNIST's are, light on dark, scaled, its centre of mass in the middle");
}

void ImageFileFlags::check_unused() const {
  if (!index.empty()) throw UsageError("--index goes with --images");
  if (invert) throw UsageError("--invert goes with --images");
  if (fit) throw UsageError("--fit goes with --images");
}

std::vector<IndexedImage> read_images_for(const ImageModel& model, const ImageFileFlags& flags,
                                          std::int64_t most, Console& console) {
  const std::vector<GrayImage> file = flags.fit ? fitted_images(model, flags.file)
                                      : model.channels == 3
                                          ? read_color_images(flags.file, model.height, model.width)
                                          : read_images(flags.file, model.height, model.width);
  const auto count = static_cast<std::int64_t>(file.size());
  const std::string first = "0-" + std::to_string(std::min(count, most) - 1);
  std::vector<IndexedImage> chosen;
  for (const std::int64_t index :
       parse_indices("--index", flags.index.empty() ? first : flags.index, count)) {
    IndexedImage one{index, file[static_cast<std::size_t>(index)]};
    if (flags.invert) {
      for (std::uint8_t& pixel : one.image.pixels) pixel = static_cast<std::uint8_t>(~pixel);
    }
    chosen.push_back(std::move(one));
  }
  if (model.channels > 1) return chosen;
  if (!flags.fit) warn_if_inverted(model, flags, chosen, console);
  if (is_colored_png(flags.file)) {
    console.err("lintel: --images " + flags.file +
                " has colours; the model is grey, and sees how light they are\n");
  }
  return chosen;
}

namespace {

bool says_several(const CallError& error) {
  return std::any_of(error.violations().begin(), error.violations().end(),
                     [](const FieldViolation& violation) {
                       return violation.description.rfind("several models are loaded", 0) == 0;
                     });
}

}  // namespace

CallError load_hint(const Client& client, Cancellation& cancellation, const CallError& error) {
  std::string name;
  for (const ResourceProblem& resource : error.resources()) {
    if (resource.type == "model") name = resource.name;
  }
  if (error.code() != grpc::StatusCode::NOT_FOUND || name.empty()) return error;
  try {
    for (const v1::Model& model : client.list_all_models(&cancellation)) {
      if (model.name() != name || model.state() != v1::MODEL_STATE_UNAVAILABLE) continue;
      const bool failed = !model.reason().empty() && model.reason() != "not loaded";
      return CallError(error.code(), "model " + name + " is not loaded" +
                                         (failed ? " (" + model.reason() + ")" : "") +
                                         "; `lintel model load " + name + "` loads it" +
                                         (failed ? " from the server's --model-repository" : ""));
    }
  } catch (const CallError&) {  // the first one says more
  }
  return error;
}

v1::Model choose_model(const Client& client, const std::string& name, const std::string& modality,
                       Cancellation& cancellation) {
  try {
    return with_load_hint(client, cancellation,
                          [&] { return client.get_model(name, &cancellation); });
  } catch (const CallError& error) {
    if (!name.empty() || modality.empty() || !says_several(error)) throw;
    std::vector<v1::Model> fitting;
    for (v1::Model& model : client.list_models(&cancellation)) {
      const bool has_text = modality == "bytes" && !model.tokenizer().empty();
      if (model.modality() == modality || has_text) fitting.push_back(std::move(model));
    }
    if (fitting.empty()) throw;
    if (fitting.size() == 1) return fitting.front();
    std::string names;
    for (const v1::Model& model : fitting) names += (names.empty() ? "" : ", ") + model.name();
    const std::string several = modality == "bytes" ? "several models that read text"
                                                    : "several models of modality " + modality;
    throw UsageError("--model: " + several + " are loaded, name one: " + names);
  }
}

}  // namespace lintel::cli
