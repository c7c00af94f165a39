#include "client/cli/complete_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "client/cli/generate_output.h"
#include "client/cli/json_writer.h"

namespace lintel::cli {
namespace {

struct Totals {
  std::int64_t images = 0;  // completed ones: every sample is one
  std::int64_t tokens = 0;  // values produced, sampled and given
};

Totals totals_of(const CompletionRun& run) {
  Totals totals;
  for (const CompletedImage& image : run.images) {
    for (const Completion& sample : image.samples) {
      if (!sample.done) continue;
      totals.images += 1;
      totals.tokens += sample.finish.generated_tokens();
    }
  }
  return totals;
}

double per_second(std::int64_t count, double seconds) {
  return static_cast<double>(count) / std::max(seconds, 1e-9);
}

// The smallest square that holds `count`.
int square_side(std::size_t count) {
  return static_cast<int>(std::ceil(std::sqrt(static_cast<double>(count))));
}

void write_sample(JsonWriter& json, const Completion& sample) {
  const v1::Timings& timings = sample.finish.timings();
  json.begin_object();
  json.field("seed", sample.finish.seed());
  if (sample.best_of > 1) json.field("best_of", sample.best_of);
  if (sample.particles > 1) {
    json.field("particles", sample.particles);
    json.field("log2_evidence", sample.finish.log2_evidence());
  }
  json.key("tokens").begin_array();
  for (const std::uint8_t pixel : sample.pixels) json.value(pixel);
  json.end_array();
  json.field("log2_prob", sample.log2_prob);
  json.field("log2_prob_given", sample.log2_prob_given);
  json.field("finish_reason", finish_reason_name(sample.finish.reason()));
  json.field("prompt_tokens", sample.finish.prompt_tokens());
  json.field("generated_tokens", sample.finish.generated_tokens());
  json.field("given_tokens", sample.finish.given_tokens());
  json.field("drafted_tokens", sample.finish.drafted_tokens());
  json.field("accepted_tokens", sample.finish.accepted_tokens());
  json.field("queued_seconds", seconds_of(timings.queued()));
  json.field("seconds", seconds_of(timings.prompt()) + seconds_of(timings.generation()));
  json.end_object();
}

}  // namespace

std::int64_t grid_pixels(const ImageModel& model, std::size_t images, int samples,
                         bool unconditional, const GridStyle& style) {
  const std::int64_t columns = unconditional ? square_side(images) : samples + 2;
  const auto rows = unconditional ? (static_cast<std::int64_t>(images) + columns - 1) / columns
                                  : static_cast<std::int64_t>(images);
  return rows * (model.height + style.gap) * columns * (model.width + style.gap) * style.scale *
         style.scale;
}

Canvas draw_grid(const CompletionRun& run, const ImageModel& model, const GridStyle& style,
                 std::size_t shown) {
  std::vector<Canvas> cells;
  const bool unconditional = run.occlusion.empty();
  const auto draw = [&](const CompletedImage& image, const Completion& sample) {
    std::vector<std::int16_t> values(image.hidden.size(), -1);
    if (shown != kAllPixels && !unconditional) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (!image.hidden[i]) values[i] = image.original.pixels[i];
      }
    }
    const std::size_t count = std::min(sample.pixels.size(), shown);
    std::copy_n(sample.pixels.begin(), count, values.begin());
    cells.push_back(values_canvas(values, model.height, model.width, model.channels));
  };
  int columns = square_side(run.images.size());
  for (const CompletedImage& image : run.images) {
    if (!unconditional) {
      cells.push_back(occluded_canvas(image.original, {}, model.channels));
      cells.push_back(occluded_canvas(image.original, image.hidden, model.channels));
      columns = static_cast<int>(image.samples.size()) + 2;
    }
    for (const Completion& sample : image.samples) draw(image, sample);
  }
  return arrange(cells, columns, style.gap);
}

std::int64_t num_done(const CompletionRun& run) { return totals_of(run).images; }

std::string results_json(const CompletionRun& run) {
  const Totals totals = totals_of(run);
  const auto channels = std::max<std::int64_t>(run.model.image().channels(), 1);
  JsonWriter json;
  json.begin_object();
  json.field("model", run.model.name()).field("fingerprint", run.model.fingerprint());
  json.field("weight_type", run.model.weight_type());
  if (!run.adapter.empty()) json.field("adapter", run.adapter);
  json.key("occlusion");
  run.occlusion.empty() ? json.null() : json.value(run.occlusion);
  json.key("images").begin_array();
  for (const CompletedImage& image : run.images) {
    json.begin_object();
    json.key("index");
    image.index < 0 ? json.null() : json.value(image.index);
    json.field("seed", image.seed);
    json.field("hidden_pixels",
               std::count(image.hidden.begin(), image.hidden.end(), true) / channels);
    json.key("samples").begin_array();
    for (const Completion& sample : image.samples) {
      if (sample.done) write_sample(json, sample);
    }
    json.end_array();
    json.end_object();
  }
  json.end_array();
  json.key("totals").begin_object();
  json.field("images", totals.images).field("tokens", totals.tokens);
  json.field("seconds", run.seconds);
  json.field("images_per_second", per_second(totals.images, run.seconds));
  json.field("tokens_per_second", per_second(totals.tokens, run.seconds));
  json.end_object();
  json.end_object();
  return json.take();
}

std::string speed_line(const CompletionRun& run) {
  const Totals totals = totals_of(run);
  char line[100];
  std::snprintf(line, sizeof line, "%.1f images/s, %.0f tokens/s",
                per_second(totals.images, run.seconds), per_second(totals.tokens, run.seconds));
  return line;
}

}  // namespace lintel::cli
