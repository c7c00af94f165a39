#include "bench/scoring.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "bench/measure.h"
#include "client/cli/console.h"

namespace lintel::bench {
namespace {

constexpr std::size_t kRows = 64;  // of one step

double bits_of(const Transformer& model, const std::vector<std::uint8_t>& values,
               Workspace& workspace) {
  SequenceState sequence = model.new_sequence();
  double bits = 0;
  std::vector<StepRow> rows;
  for (std::size_t begin = 0; begin + 1 < values.size(); begin += kRows) {
    const std::size_t end = std::min(begin + kRows, values.size() - 1);
    rows.clear();
    for (std::size_t t = begin; t < end; ++t) rows.push_back({values[t], &sequence, true});
    const auto outputs = model.step(rows, workspace);
    for (std::size_t t = begin; t < end; ++t) {
      bits -= model.head().log2_prob(outputs.row(t - begin), values[t + 1]);
    }
  }
  return bits;
}

}  // namespace

double bits_per_dim(const Transformer& model, const std::vector<GrayImage>& images, int workers) {
  const auto values = static_cast<std::size_t>(model.config().max_values());
  for (const GrayImage& image : images) {
    if (image.pixels.size() == values) continue;
    throw cli::Failure("images of " + std::to_string(image.pixels.size()) +
                       " pixels for a model of " + std::to_string(values));
  }
  std::vector<double> bits(images.size());
  run_on_workers(workers, [&](int w) {
    Workspace workspace = model.new_workspace(kRows);
    for (std::size_t i = static_cast<std::size_t>(w); i < images.size();
         i += static_cast<std::size_t>(workers)) {
      bits[i] = bits_of(model, images[i].pixels, workspace);
    }
  });
  return std::accumulate(bits.begin(), bits.end(), 0.0) /
         static_cast<double>(images.size() * (values - 1));
}

}  // namespace lintel::bench
