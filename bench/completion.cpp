#include "bench/completion.h"

#include <algorithm>
#include <cassert>

#include "bench/measure.h"
#include "bench/sequences.h"

namespace lintel::bench {
namespace {

// Completes `images` together.
void complete_group(Sequences& sequences, std::span<GrayImage> images, std::size_t given,
                    std::uint64_t seed) {
  sequences.start(images.size(), seed);
  const std::size_t values = images.front().pixels.size();
  for (std::size_t i = 0; i < images.size(); ++i) {
    const std::vector<std::int32_t> prompt(
        images[i].pixels.begin(), images[i].pixels.begin() + static_cast<std::ptrdiff_t>(given));
    sequences.read(i, prompt);  // draws the first of the hidden values
  }
  sequences.generate(static_cast<std::int64_t>(values - given) - 1);
  for (std::size_t i = 0; i < images.size(); ++i) {
    const std::vector<std::int32_t>& drawn = sequences.drawn(i);
    assert(drawn.size() == values - given);
    std::ranges::transform(drawn, images[i].pixels.begin() + static_cast<std::ptrdiff_t>(given),
                           [](std::int32_t value) { return static_cast<std::uint8_t>(value); });
  }
}

}  // namespace

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
