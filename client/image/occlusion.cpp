// SPDX-License-Identifier: Apache-2.0
#include "client/image/occlusion.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

namespace lintel {
namespace {

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw std::invalid_argument("occlusion '" + std::string(text) + "': " + why);
}

template <typename Number>
Number parse_number(std::string_view text, std::string_view part) {
  Number number{};
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
  if (error != std::errc() || end != part.data() + part.size()) {
    refuse(text, "'" + std::string(part) + "' is no number");
  }
  return number;
}

// splitmix64: one well-mixed 64-bit value per counter.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

Occlusion Occlusion::parse(std::string_view text) {
  static constexpr struct {
    std::string_view name;
    Kind kind;
    std::size_t numbers;
  } kKinds[] = {{"bottom", Kind::kBottom, 1},
                {"top", Kind::kTop, 1},
                {"left", Kind::kLeft, 1},
                {"right", Kind::kRight, 1},
                {"box", Kind::kBox, 4}};
  Occlusion occlusion;
  occlusion.text_ = std::string(text);
  if (text == "none") return occlusion;
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (name == "random") {
    occlusion.kind_ = Kind::kRandom;
    occlusion.probability_ = parse_number<double>(text, rest);
    if (!(occlusion.probability_ >= 0 && occlusion.probability_ <= 1)) {
      refuse(text, "the probability must be in [0, 1]");
    }
    return occlusion;
  }
  for (const auto& known : kKinds) {
    if (known.name != name) continue;
    occlusion.kind_ = known.kind;
    for (;;) {
      const std::size_t comma = rest.find(',');
      occlusion.numbers_.push_back(parse_number<int>(text, rest.substr(0, comma)));
      if (occlusion.numbers_.back() < 0) refuse(text, "a number is negative");
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
    if (occlusion.numbers_.size() != known.numbers) {
      refuse(text, "expected " + std::to_string(known.numbers) + " number(s), got " +
                       std::to_string(occlusion.numbers_.size()));
    }
    return occlusion;
  }
  refuse(text, "expected bottom:N, top:N, left:N, right:N, box:R,C,H,W, random:P or none");
}

std::vector<bool> Occlusion::hidden(int height, int width, std::uint64_t seed) const {
  int top = 0, left = 0, rows = 0, columns = 0;
  switch (kind_) {
    case Kind::kNone:
    case Kind::kRandom:
      break;
    case Kind::kBottom:
      top = height - numbers_[0], rows = numbers_[0], columns = width;
      break;
    case Kind::kTop:
      rows = numbers_[0], columns = width;
      break;
    case Kind::kLeft:
      rows = height, columns = numbers_[0];
      break;
    case Kind::kRight:
      left = width - numbers_[0], rows = height, columns = numbers_[0];
      break;
    case Kind::kBox:
      top = numbers_[0], left = numbers_[1], rows = numbers_[2], columns = numbers_[3];
      break;
  }
  if (rows > height || columns > width || top > height - rows || left > width - columns) {
    refuse(text_,
           "reaches outside an image of " + std::to_string(height) + "x" + std::to_string(width));
  }
  std::vector<bool> mask(static_cast<std::size_t>(height) * static_cast<std::size_t>(width));
  for (std::size_t i = 0; i < mask.size(); ++i) {
    const int row = static_cast<int>(i) / width;
    const int column = static_cast<int>(i) % width;
    if (kind_ == Kind::kRandom) {
      // 53 random bits are a double in [0, 1).
      const double draw = static_cast<double>(mix(mix(seed) ^ i) >> 11) * 0x1p-53;
      mask[i] = draw < probability_;
    } else {
      mask[i] = row >= top && row < top + rows && column >= left && column < left + columns;
    }
  }
  return mask;
}

CompletionPlan plan_completion(const GrayImage& image, const std::vector<bool>& hidden,
                               std::uint8_t start_token) {
  const std::size_t size = image.pixels.size();
  CompletionPlan plan;
  plan.prompt.push_back(hidden[0] ? start_token : image.pixels[0]);
  // The run of known tokens that the prompt is; a hidden first pixel is known as soon as it is
  // given.
  while (plan.prompt.size() + 1 < size && !hidden[plan.prompt.size()]) {
    plan.prompt.push_back(image.pixels[plan.prompt.size()]);
  }
  plan.new_tokens = static_cast<int>(size - plan.prompt.size());
  for (std::size_t i = plan.prompt.size(); i < size; ++i) {
    if (hidden[i]) continue;
    if (i == plan.prompt.size() || hidden[i - 1]) plan.given.push_back({static_cast<int>(i), {}});
    plan.given.back().pixels.push_back(image.pixels[i]);
  }
  return plan;
}

Canvas occluded_canvas(const GrayImage& image, const std::vector<bool>& hidden, int channels) {
  std::vector<std::int16_t> tokens(image.pixels.begin(), image.pixels.end());
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    if (hidden[i]) tokens[i] = -1;
  }
  return tokens_canvas(tokens, image.height, image.width / channels, channels);
}

}  // namespace lintel
