// SPDX-License-Identifier: Apache-2.0
// Completions are of the given half, of nothing else, and the same in any batch.
#include <memory>

#include "bench/classifier.h"
#include "model/config/attention_spec.h"
#include "model/formats/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

constexpr std::size_t kPixels = 30, kGiven = 15;

std::shared_ptr<const Transformer> tiny_model(const std::string& attention) {
  const TemporaryDirectory directory;
  ModelConfig config = tiny_config(TinyModel::kImage);
  for (AttentionConfig& layer : config.attention) layer = attention_of(attention);
  write_random_model(directory.path(), config, /*seed=*/5);
  return Transformer::load(directory.path(), {});
}

std::vector<GrayImage> images(std::size_t count) {
  std::vector<GrayImage> all;
  for (std::size_t i = 0; i < count; ++i) {
    GrayImage image{6, 5, {}};
    for (std::size_t p = 0; p < kPixels; ++p) {
      image.pixels.push_back(static_cast<std::uint8_t>((i * 37 + p * 11) % 256));
    }
    all.push_back(image);
  }
  return all;
}

bench::CompletionOptions options(int workers, int batch) {
  return {.given = kGiven, .workers = workers, .batch = batch, .seed = 9, .on_progress = {}};
}

}  // namespace

TEST_CASE("the given half of a completion is that of the image") {
  for (const char* attention : {"linear", "softmax"}) {
    const auto model = tiny_model(attention);
    const auto originals = images(4);
    const auto completed = bench::complete(*model, originals, options(1, 4));
    REQUIRE(completed.size() == originals.size());
    for (std::size_t i = 0; i < completed.size(); ++i) {
      REQUIRE(completed[i].pixels.size() == kPixels);
      CHECK(std::equal(originals[i].pixels.begin(), originals[i].pixels.begin() + kGiven,
                       completed[i].pixels.begin()));
    }
  }
}

TEST_CASE("a completion depends on the whole given half and on nothing hidden") {
  const auto model = tiny_model("linear");
  const auto original = images(1);
  const auto completed = bench::complete(*model, original, options(1, 1));

  auto other_hidden = original;
  for (std::size_t p = kGiven; p < kPixels; ++p) other_hidden[0].pixels[p] ^= 0xff;
  CHECK(bench::complete(*model, other_hidden, options(1, 1))[0].pixels == completed[0].pixels);

  // The first and the last given pixel both matter.
  for (const std::size_t p : {std::size_t{0}, kGiven - 1}) {
    auto other_given = original;
    other_given[0].pixels[p] ^= 0x80;
    const auto other = bench::complete(*model, other_given, options(1, 1));
    INFO("pixel " << p);
    CHECK_FALSE(std::equal(other[0].pixels.begin() + kGiven, other[0].pixels.end(),
                           completed[0].pixels.begin() + kGiven));
  }
}

TEST_CASE("a completion is the same alone, in a batch and on several workers") {
  for (const char* attention : {"linear", "softmax"}) {
    const auto model = tiny_model(attention);
    const auto originals = images(7);
    const auto alone = bench::complete(*model, originals, options(1, 1));
    for (const auto& [workers, batch] : {std::pair{1, 7}, {1, 3}, {2, 2}, {3, 64}, {9, 1}}) {
      INFO(attention << ", " << workers << " workers, batch " << batch);
      const auto together = bench::complete(*model, originals, options(workers, batch));
      for (std::size_t i = 0; i < alone.size(); ++i) {
        CHECK(together[i].pixels == alone[i].pixels);
      }
    }
  }
}

TEST_CASE("the classifier computes its weights' function") {
  const TemporaryDirectory directory;
  // Class 0: 1 - the mean pixel; class 1: the mean pixel. relu between, so nothing is negative.
  const std::vector<float> mean = {0.5f, 0.5f}, one = {1.0f, -1.0f}, flip = {-1.0f, 1.0f};
  const std::vector<float> zero = {0.0f}, start = {0.6f, 0.0f};
  const TensorToWrite tensors[] = {{"hidden.0.weight", {1, 2}, mean},
                                   {"hidden.0.bias", {1}, zero},
                                   {"output.weight", {2, 1}, flip},
                                   {"output.bias", {2}, start}};
  write_safetensors(directory.path() / "model.safetensors", tensors);
  const bench::Classifier classifier(directory.path());
  const std::vector<GrayImage> two = {{1, 2, {0, 20}}, {1, 2, {255, 200}}};
  CHECK(classifier.classify(two) == std::vector<int>{0, 1});
  const std::uint8_t labels[] = {0, 0};
  CHECK(bench::accuracy(classifier, two, labels) == Approx(0.5));

  const TensorToWrite wrong[] = {{"output.weight", {2, 1}, one}, {"output.bias", {1}, zero}};
  write_safetensors(directory.path() / "model.safetensors", wrong);
  CHECK_THROWS_WITH(bench::Classifier(directory.path()), Catch::Contains("output"));
}

}  // namespace lintel::testing
