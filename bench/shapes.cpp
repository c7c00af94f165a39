#include "bench/shapes.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "client/cli/console.h"
#include "model/config/attention_spec.h"
#include "model/formats/random_weights.h"

namespace lintel::bench {
namespace {

ModelConfig image_config(int layers, int heads, ImageShape image) {
  ModelConfig config;
  config.vocab_size = 256;
  config.max_length = image.num_values() - 1;
  config.n_layers = layers;
  config.n_heads = heads;
  config.d_head = 32;
  config.d_model = heads * config.d_head;
  config.d_ff = 4 * config.d_model;
  config.attention.assign(static_cast<std::size_t>(layers), attention_of("linear"));
  config.head = HeadKind::kMixtureOfLogistics;
  config.mixtures = 10;
  config.modality = ModalityKind::kImage;
  config.image = image;
  return config;
}

std::vector<Shape> all_shapes() {
  constexpr ImageShape kMnist{.height = 28, .width = 28, .channels = 1, .start_token = 0};
  constexpr ImageShape kCifar{.height = 32, .width = 32, .channels = 3, .start_token = 0};
  ModelConfig small = image_config(4, 4, kMnist);  // as weights/mnist-linear-small
  small.norm_placement = NormPlacement::kPre;
  small.embedding = EmbeddingKind::kValueAddPosition;
  small.head = HeadKind::kCategorical;
  small.mixtures = 0;
  // The paper's Reformer: 64 buckets; chunks of 29 and of 37 positions.
  return {{.name = "mnist", .config = image_config(8, 8, kMnist), .lsh_chunk = 29},
          {.name = "cifar10", .config = image_config(16, 8, kCifar), .lsh_chunk = 37},
          {.name = "mnist-small", .config = small, .lsh_chunk = 29}};
}

}  // namespace

std::string Shape::lsh_spec(int rounds) const {
  return "lsh:rounds=" + std::to_string(rounds) + ",bits=" + std::to_string(lsh_bits) +
         ",chunk_size=" + std::to_string(lsh_chunk);
}

Shape find_shape(const std::string& name) {
  std::string known;
  for (const Shape& shape : all_shapes()) {
    if (shape.name == name) return shape;
    known += (known.empty() ? "" : ", ") + shape.name;
  }
  throw cli::UsageError("--shape '" + name + "': expected one of " + known);
}

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const Shape& shape : all_shapes()) names.push_back(shape.name);
  return names;
}

ModelFiles::ModelFiles(std::filesystem::path directory) : directory_(std::move(directory)) {}

ModelFiles::ModelFiles(const ModelConfig& config) : random_(true) {
  std::string name = (std::filesystem::temp_directory_path() / "lintel-bench-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw cli::Failure(name + ": cannot be made: " + std::strerror(errno));
  }
  directory_ = name;
  // Small enough that activations stay of order one in sums over d_model.
  write_random_model(directory_, config, /*seed=*/1, /*scale=*/0.05f);
}

ModelFiles::~ModelFiles() {
  if (!random_) return;
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

std::string ModelFiles::name() const {
  if (random_) return "random weights";
  // "weights/a/" has an empty last component.
  return directory_.has_filename() ? directory_.filename().string()
                                   : directory_.parent_path().filename().string();
}

std::shared_ptr<const Transformer> ModelFiles::load(WeightType weight_type,
                                                    const std::string& attention) const {
  Transformer::Options options{.weight_type = weight_type, .attention = std::nullopt};
  if (!attention.empty()) options.attention = parse_attention_spec(attention);
  return Transformer::load(directory_, options);
}

std::string describe(const std::string& name, const ModelConfig& config) {
  std::string text = name + ": " + std::to_string(config.n_layers) + " layers, " +
                     std::to_string(config.n_heads) + " heads of " + std::to_string(config.d_head) +
                     ", d_model " + std::to_string(config.d_model) + ", feed-forward " +
                     std::to_string(config.d_ff);
  if (config.max_values() > 0) text += ", " + std::to_string(config.max_values()) + " values";
  return text;
}

}  // namespace lintel::bench
