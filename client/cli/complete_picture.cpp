#include "client/cli/complete_picture.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "client/cli/ways.h"
#include "client/image/apng.h"
#include "client/image/letters.h"
#include "client/image/png.h"

namespace lintel::cli {
namespace {

constexpr int kIndexLetters = 6;  // "#60000"
constexpr int kMargin = 2;        // between headings and grid, in cells of a letter

// What headings take of a picture, in its pixels.
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

// As much of a word as fits its column.
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
  if (!style.headings) return encode_png(draw_grid(run, model, style), style.scale);
  return encode_png(draw_picture(run, model, style, kAllPixels), /*scale=*/1);
}

std::string animation_png(const CompletionRun& run, const ImageModel& model,
                          const GridStyle& style) {
  // Viewers take less than 20 ms for a mistake.
  constexpr std::chrono::milliseconds kBegin{500}, kPixel{20}, kEnd{2500};
  const auto channels = static_cast<std::size_t>(model.channels);
  std::set<std::size_t> drawn;  // the last values of pixels that any of them hides
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

}  // namespace lintel::cli
