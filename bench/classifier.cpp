// SPDX-License-Identifier: Apache-2.0
#include "bench/classifier.h"

#include <algorithm>
#include <cassert>
#include <ranges>
#include <string>

#include "bench/measure.h"
#include "bench/sequences.h"
#include "client/cli/console.h"
#include "model/config/config.h"
#include "model/core/tensor.h"
#include "model/formats/safetensors.h"

namespace lintel::bench {
namespace {

std::unique_ptr<Dense> read_layer(const SafetensorsFile& file, const std::string& name,
                                  Dense::Fused fused) {
  const TensorEntry& weight = file.tensor(name + ".weight");
  const TensorEntry& bias = file.tensor(name + ".bias");
  if (weight.shape.size() != 2 || bias.shape != std::vector{weight.shape[0]}) {
    throw ModelError(file.name() + ": " + name + " has weight " + shape_to_string(weight.shape) +
                     " and bias " + shape_to_string(bias.shape) + ", expected [out, in] and [out]");
  }
  return std::make_unique<Dense>(file.read_f32(name + ".weight"), file.read_f32(name + ".bias"),
                                 static_cast<std::size_t>(weight.shape[1]),
                                 static_cast<std::size_t>(weight.shape[0]),
                                 Dense::Options{.fused = fused});
}

// Completes `images` together.
void complete_group(Sequences& sequences, std::span<GrayImage> images, std::size_t given,
                    std::uint64_t seed) {
  sequences.start(images.size(), seed);
  const std::size_t tokens = images.front().pixels.size();
  for (std::size_t i = 0; i < images.size(); ++i) {
    const std::vector<std::int32_t> prompt(
        images[i].pixels.begin(), images[i].pixels.begin() + static_cast<std::ptrdiff_t>(given));
    sequences.read(i, prompt);  // draws the first of the hidden tokens
  }
  sequences.generate(static_cast<std::int64_t>(tokens - given) - 1);
  for (std::size_t i = 0; i < images.size(); ++i) {
    const std::vector<std::int32_t>& drawn = sequences.drawn(i);
    assert(drawn.size() == tokens - given);
    std::ranges::transform(drawn, images[i].pixels.begin() + static_cast<std::ptrdiff_t>(given),
                           [](std::int32_t token) { return static_cast<std::uint8_t>(token); });
  }
}

}  // namespace

Classifier::Classifier(const std::filesystem::path& directory) {
  const SafetensorsFile file(directory / "model.safetensors");
  for (int i = 0;; ++i) {
    const std::string name = "hidden." + std::to_string(i);
    if (!file.tensors().contains(name + ".weight")) break;
    layers_.push_back(read_layer(file, name, Dense::Fused::kRelu));
  }
  layers_.push_back(read_layer(file, "output", Dense::Fused::kNone));
  for (std::size_t i = 1; i < layers_.size(); ++i) {
    if (layers_[i]->in_features() == layers_[i - 1]->out_features()) continue;
    throw ModelError(file.name() + ": a layer of " + std::to_string(layers_[i]->in_features()) +
                     " inputs follows one of " + std::to_string(layers_[i - 1]->out_features()) +
                     " outputs");
  }
}

std::vector<int> Classifier::classify(std::span<const GrayImage> images) const {
  DenseInput x(WeightType::kF32, images.size(), num_pixels());
  for (std::size_t i = 0; i < images.size(); ++i) {
    if (images[i].pixels.size() != num_pixels()) {
      throw cli::Failure("an image of " + std::to_string(images[i].pixels.size()) +
                         " pixels for a classifier of " + std::to_string(num_pixels()));
    }
    std::ranges::transform(images[i].pixels, x.values().row(i).begin(),
                           [](std::uint8_t pixel) { return static_cast<float>(pixel) / 255.0f; });
  }
  for (const auto& layer : layers_) {
    DenseInput y(WeightType::kF32, images.size(), layer->out_features());
    x.prepare(0, images.size());
    layer->apply(x, y.values());
    x = std::move(y);
  }
  std::vector<int> classes;
  for (std::size_t i = 0; i < images.size(); ++i) {
    const auto row = x.values().row(i);
    classes.push_back(static_cast<int>(std::ranges::max_element(row) - row.begin()));
  }
  return classes;
}

double accuracy(const Classifier& classifier, std::span<const GrayImage> images,
                std::span<const std::uint8_t> labels) {
  assert(images.size() == labels.size() && !images.empty());
  const std::vector<int> classes = classifier.classify(images);
  const auto right = std::ranges::count(std::views::iota(std::size_t{0}, labels.size()), true,
                                        [&](std::size_t i) { return classes[i] == labels[i]; });
  return static_cast<double>(right) / static_cast<double>(labels.size());
}

std::vector<GrayImage> complete(const Transformer& model, std::span<const GrayImage> images,
                                const CompletionOptions& options) {
  assert(options.given >= 1);
  std::vector<GrayImage> completed(images.begin(), images.end());
  for (GrayImage& image : completed) {
    assert(options.given < image.pixels.size());
    // The hidden pixels are unknown from here on.
    std::fill(image.pixels.begin() + static_cast<std::ptrdiff_t>(options.given), image.pixels.end(),
              std::uint8_t{0});
  }
  const auto workers = static_cast<std::size_t>(options.workers);
  const auto most = static_cast<std::size_t>(options.batch);
  run_on_workers(options.workers, [&](int worker) {
    // An even share of the images, in groups as even as can be.
    const auto w = static_cast<std::size_t>(worker);
    const std::size_t begin = images.size() * w / workers;
    const std::size_t share = images.size() * (w + 1) / workers - begin;
    if (share == 0) return;
    const std::size_t groups = (share + most - 1) / most;
    Sequences sequences(model, (share + groups - 1) / groups);
    for (std::size_t g = 0; g < groups; ++g) {
      const std::size_t first = begin + share * g / groups;
      const std::size_t count = begin + share * (g + 1) / groups - first;
      complete_group(sequences, std::span(completed).subspan(first, count), options.given,
                     options.seed + first);
      if (options.on_progress) options.on_progress(count);
    }
  });
  return completed;
}

}  // namespace lintel::bench
