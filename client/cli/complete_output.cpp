// SPDX-License-Identifier: Apache-2.0
#include "client/cli/complete_output.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <set>
#include <utility>

#include "client/cli/completion.h"
#include "client/cli/generate_output.h"
#include "client/cli/output.h"
#include "client/image/image.h"
#include "client/image/png.h"

namespace lintel::cli {
namespace {

struct Totals {
  std::int64_t images = 0;  // completed ones: every sample is one
  std::int64_t tokens = 0;  // tokens produced, sampled and given
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

// Pixels of the picture that draw_grid would make.
std::int64_t grid_pixels(const ImageModel& model, std::size_t images, int samples,
                         bool unconditional, const GridStyle& style) {
  const std::int64_t columns = unconditional ? square_side(images) : samples + 2;
  const auto rows = unconditional ? (static_cast<std::int64_t>(images) + columns - 1) / columns
                                  : static_cast<std::int64_t>(images);
  return rows * (model.height + style.gap) * columns * (model.width + style.gap) * style.scale *
         style.scale;
}

constexpr std::size_t kAllPixels = SIZE_MAX;

// Rows of original | occluded | samples; drawn from nothing: the samples in a square. Of a sample
// that is not done the pixels that came are shown. `shown`: of each sample only so many of its
// first pixels, beside those that were known.
Canvas draw_grid(const CompletionRun& run, const ImageModel& model, const GridStyle& style,
                 std::size_t shown) {
  std::vector<Canvas> cells;
  const bool unconditional = run.occlusion.empty();
  const auto draw = [&](const CompletedImage& image, const Completion& sample) {
    std::vector<std::int16_t> tokens(image.hidden.size(), -1);
    if (shown != kAllPixels && !unconditional) {
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (!image.hidden[i]) tokens[i] = image.original.pixels[i];
      }
    }
    const std::size_t count = std::min(sample.pixels.size(), shown);
    std::copy_n(sample.pixels.begin(), count, tokens.begin());
    cells.push_back(tokens_canvas(tokens, model.height, model.width, model.channels));
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

}  // namespace

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

namespace {

constexpr int kIndexLetters = 6;  // "#60000"
constexpr int kMargin = 2;        // between headings and grid, in cells of a letter

// Space around a picture for its headings, in its pixels.
struct Margins {
  int letter = 0;  // pixels of a letter's cell
  int top = 0, left = 0;
};

Margins margins_of(const GridStyle& style, bool unconditional) {
  if (!style.headings || unconditional) return {};
  const int letter = std::max(1, style.scale / 2);
  return {letter, (kLetterHeight + 2 * kMargin) * letter,
          (kIndexLetters * kLetterWidth + 2 * kMargin) * letter};
}

// The part of a word that fits its column.
std::string_view cut_to(std::string_view text, int width, int letter) {
  while (text_width(text, letter) > width) text.remove_suffix(1);
  return text;
}

void write_headings(Canvas& picture, const CompletionRun& run, const ImageModel& model,
                    const GridStyle& style, const Margins& margins) {
  const int column_width = (model.width + style.gap) * style.scale;
  const int row_height = (model.height + style.gap) * style.scale;
  std::vector<std::string> columns = {"original", run.occlusion};
  const std::vector<Completion>& samples = run.images.front().samples;
  const bool compares = std::ranges::any_of(samples, is_not_plain);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    columns.push_back(compares ? way_name(samples[i]) : "sample " + std::to_string(i + 1));
  }
  for (std::size_t i = 0; i < columns.size(); ++i) {
    write_text(picture, kMargin * margins.letter, margins.left + static_cast<int>(i) * column_width,
               cut_to(columns[i], model.width * style.scale, margins.letter), margins.letter);
  }
  for (std::size_t i = 0; i < run.images.size(); ++i) {
    const int middle = (model.height * style.scale - kLetterHeight * margins.letter) / 2;
    write_text(picture, margins.top + static_cast<int>(i) * row_height + middle,
               kMargin * margins.letter, "#" + std::to_string(run.images[i].index), margins.letter);
  }
}

// Every cell of the canvas is a pixel of the picture.
Canvas draw_picture(const CompletionRun& run, const ImageModel& model, const GridStyle& style,
                    std::size_t shown) {
  const Canvas grid = draw_grid(run, model, style, shown);
  const Margins margins = margins_of(style, run.occlusion.empty());
  Canvas picture(grid.height * style.scale + margins.top, grid.width * style.scale + margins.left,
                 kGapPixel);
  for (int row = 0; row < grid.height * style.scale; ++row) {
    for (int column = 0; column < grid.width * style.scale; ++column) {
      picture.set(margins.top + row, margins.left + column,
                  grid.at(row / style.scale, column / style.scale));
    }
  }
  if (margins.letter > 0) write_headings(picture, run, model, style, margins);
  return picture;
}

}  // namespace

std::string picture_png(const CompletionRun& run, const ImageModel& model, const GridStyle& style) {
  if (!style.headings) return encode_png(draw_grid(run, model, style, kAllPixels), style.scale);
  return encode_png(draw_picture(run, model, style, kAllPixels), /*scale=*/1);
}

std::string animation_png(const CompletionRun& run, const ImageModel& model,
                          const GridStyle& style) {
  // Viewers take less than 20 ms for a mistake.
  constexpr std::chrono::milliseconds kBegin{500}, kPixel{20}, kEnd{2500};
  const auto channels = static_cast<std::size_t>(model.channels);
  std::set<std::size_t> drawn;  // the last tokens of pixels that any of them hides
  for (const CompletedImage& image : run.images) {
    for (std::size_t i = channels - 1; i < image.hidden.size(); i += channels) {
      if (image.hidden[i]) drawn.insert(i);
    }
  }
  AnimatedPng png(draw_picture(run, model, style, /*shown=*/0));
  std::chrono::milliseconds before = kBegin;
  for (const std::size_t position : drawn) {
    png.add(draw_picture(run, model, style, position + 1), before);
    before = kPixel;
  }
  return png.finish(kEnd);
}

std::int64_t picture_pixels(const ImageModel& model, std::size_t images, int samples,
                            bool unconditional, const GridStyle& style) {
  const Margins margins = margins_of(style, unconditional);
  const std::int64_t grid = grid_pixels(model, images, samples, unconditional, style);
  if (margins.letter == 0) return grid;
  const std::int64_t width =
      std::int64_t{samples + 2} * (model.width + style.gap) * style.scale + margins.left;
  const std::int64_t height =
      static_cast<std::int64_t>(images) * (model.height + style.gap) * style.scale + margins.top;
  return width * height;
}

namespace {
constexpr int kGap = 2;
constexpr auto kFrame = std::chrono::milliseconds(40);
}  // namespace

bool Watch::fits(const TerminalInfo& terminal, int height, int width) {
  return width < terminal.columns && (height + 1) / 2 < terminal.rows;
}

Watch::Watch(Console& console, const TerminalInfo& terminal, std::vector<Canvas> images, int group)
    : console_(console),
      terminal_(terminal),
      painter_(terminal.style),
      images_(std::move(images)),
      finished_(images_.size()) {
  const int height = images_.front().height;
  const int width = images_.front().width;
  // One column and one line stay free: writing the last cell would scroll.
  columns_ = std::clamp((terminal_.columns - 1 + kGap) / (width + kGap), 1,
                        static_cast<int>(images_.size()));
  if (columns_ > group) columns_ -= columns_ % group;
  const int rows = std::max(1, (2 * (terminal_.rows - 1) + kGap) / (height + kGap));
  page_size_ = static_cast<std::size_t>(columns_) * static_cast<std::size_t>(rows);
  console_.err(painter_.hide_cursor());
  thread_ = std::thread([this] { run(); });
}

Watch::~Watch() { end(); }

void Watch::set(std::size_t image, std::size_t first_pixel, const std::vector<Cell>& pixels) {
  const std::lock_guard lock(mutex_);
  auto& cells = images_[image].cells;
  if (first_pixel > cells.size() || pixels.size() > cells.size() - first_pixel) return;
  std::copy(pixels.begin(), pixels.end(), cells.begin() + static_cast<std::ptrdiff_t>(first_pixel));
  dirty_ = true;
}

void Watch::finish(std::size_t image) {
  const std::lock_guard lock(mutex_);
  finished_[image] = true;
  dirty_ = true;
}

void Watch::end() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  console_.err(painter_.show_cursor());
}

std::string Watch::next_frame(bool& page_complete) {
  const std::size_t page_end = std::min(page_start_ + page_size_, images_.size());
  const std::vector<Canvas> page(images_.begin() + static_cast<std::ptrdiff_t>(page_start_),
                                 images_.begin() + static_cast<std::ptrdiff_t>(page_end));
  page_complete = std::all_of(finished_.begin() + static_cast<std::ptrdiff_t>(page_start_),
                              finished_.begin() + static_cast<std::ptrdiff_t>(page_end),
                              [](bool b) { return b; });
  // A last page with fewer images is not stretched over the width of the first.
  const int columns = std::min(columns_, static_cast<int>(page.size()));
  std::string frame = painter_.frame(arrange(page, columns, kGap));
  if (page_complete) page_start_ = page_end;
  return frame;
}

void Watch::run() {
  for (;;) {
    std::string frame;
    bool page_complete = false;
    bool last = false;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kFrame, [this] { return ending_; });
      last = ending_;
      if (page_start_ == images_.size()) {
        if (last) return;
        continue;
      }
      if (!dirty_ && !last) continue;
      dirty_ = false;
      frame = next_frame(page_complete);
      if (page_complete) dirty_ = true;
    }
    console_.err(frame);  // a slow terminal must not hold the streams up
    if (page_complete) {
      painter_.start_below();
      if (page_start_ < images_.size()) console_.err("\n");
    } else if (last) {
      return;
    }
  }
}

}  // namespace lintel::cli
