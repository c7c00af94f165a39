// SPDX-License-Identifier: Apache-2.0
#include "model/lora/adapter.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "model/config/config.h"
#include "model/core/errors.h"
#include "model/core/json_reader.h"
#include "model/core/sha256.h"
#include "model/formats/safetensors.h"
#include "model/formats/weights.h"

namespace lintel {
namespace {

// Appends the modules of a layer.
void add_modules(const ModelConfig& config, int weights, std::vector<AdaptableModule>& modules) {
  const AttentionConfig& attention = config.attention[config.first_layer_with(weights)];
  const std::string prefix = "transformer.layers." + std::to_string(weights) + ".";
  const auto e = static_cast<std::size_t>(config.d_model);
  const auto f = static_cast<std::size_t>(config.d_ff);
  const auto add = [&](const std::string& name, std::size_t in, std::size_t out,
                       AdaptedProduct product) -> AdaptableModule& {
    modules.push_back({.name = prefix + name,
                       .in = in,
                       .out = out,
                       .product = product_number(product, static_cast<std::size_t>(weights))});
    return modules.back();
  };
  std::size_t first_output = 0;
  for (const Projection& p : attention.kind().projections(attention, config.dims())) {
    const auto width = static_cast<std::size_t>(p.width);
    AdaptableModule& module = add("attention." + p.name, e, width, AdaptedProduct::kProjections);
    module.first_output = first_output;
    module.is_read = p.is_read;
    if (p.is_read) first_output += width;
  }
  const auto attended = static_cast<std::size_t>(out_width(attention, config.dims()));
  add("attention.out_projection", attended, e, AdaptedProduct::kOut);
  add("linear1", e, f, AdaptedProduct::kLinear1);
  add("linear2", f, e, AdaptedProduct::kLinear2);
}

}  // namespace

std::vector<AdaptableModule> adaptable_modules(const ModelConfig& config) {
  std::vector<AdaptableModule> modules;
  modules.push_back({.name = "value_embedding",
                     .in = static_cast<std::size_t>(config.vocab_size),
                     .out = static_cast<std::size_t>(value_width(config)),
                     .is_embedding = true});
  for (int i = 0; i < config.num_layer_weights(); ++i) add_modules(config, i, modules);
  modules.push_back({.name = "predictor",
                     .in = static_cast<std::size_t>(config.last_width()),
                     .out = static_cast<std::size_t>(config.num_outputs()),
                     .product = product_number(AdaptedProduct::kPredictor, 0)});
  return modules;
}

namespace {

using nlohmann::json;

constexpr const char* kUnset = "null, false, 0 or empty: ";

// A switch of PEFT's that is refused, and the reason.
struct RefusedSwitch {
  const char* key;
  const char* why;
};
constexpr RefusedSwitch kRefused[] = {
    {"use_dora", "magnitudes of weights are not served"},
    {"lora_bias", "biases of B are not served"},
    {"fan_in_fan_out", "matrices are [out, in] here"},
    {"modules_to_save", "modules that are not adapted are the model's own"},
    {"layer_replication", "an adapter does not change the number of layers"},
    {"trainable_token_indices", "rows of an embedding cannot be replaced"},
    {"alora_invocation_tokens", "an adapter is there from the first token on"},
    {"target_parameters", "parameters that are no module's weight cannot be adapted"},
};

// Names, how it was trained, and which modules were asked for: the tensors say which there are.
const std::set<std::string_view> kIgnored = {
    "auto_mapping",        "base_model_name_or_path",
    "eva_config",          "exclude_modules",
    "inference_mode",      "layers_pattern",
    "layers_to_transform", "lora_dropout",
    "megatron_core",       "peft_version",
    "qalora_group_size",   "revision",
    "target_modules",      "task_type",
};

bool is_set(const json& value) {
  if (value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0.0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.empty();
}

// A key that is a regular expression would ask for an engine that runs what a file says.
bool is_literal(std::string_view key) {
  return !key.empty() && std::ranges::all_of(key, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.';
  });
}

// The names of the root's objects, each in the file's order: of one object no more than are read.
class PatternNames final : public nlohmann::json_sax<json> {
 public:
  const std::vector<std::string>& of(const std::string& key) { return names_[key]; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(std::int64_t) override { return true; }
  bool number_unsigned(std::uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool start_object(std::size_t) override { return enter(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override {
    return false;
  }

  bool key(std::string& name) override {
    if (depth_ == 1) {
      key_ = name;
    } else if (depth_ == 2 && (key_ == "rank_pattern" || key_ == "alpha_pattern")) {
      std::vector<std::string>& names = names_[key_];
      if (names.size() < kMaxAdapterPatterns) names.push_back(name);
    }
    return true;
  }

 private:
  bool enter() {
    ++depth_;
    return true;
  }
  bool leave() {
    --depth_;
    return true;
  }

  int depth_ = 0;
  std::string key_;  // of the root, that is being read
  std::map<std::string, std::vector<std::string>> names_;
};

// Calls take(fields, name) for every name of the object `key`, in the file's order.
template <typename Take>
void read_pattern(Fields& root, PatternNames& in_order, const std::string& file,
                  const std::string& key, const Take& take) {
  if (!root.has(key) || root.value(key, "").is_null()) return;
  const json& given = root.value(key, "an object");
  Fields fields(given, file, key + ".");
  if (given.size() > kMaxAdapterPatterns) {
    root.fail(key, std::to_string(given.size()) + " entries",
              "at most " + std::to_string(kMaxAdapterPatterns));
  }
  for (const std::string& name : in_order.of(key)) {
    if (!is_literal(name)) {
      root.fail(key, quote(name), "names of modules, of letters, digits, _ and dots alone");
    }
    take(fields, name);
  }
}

void refuse_switches(const json& object, Fields& root, const std::set<std::string_view>& read) {
  for (const RefusedSwitch& refused : kRefused) {
    if (!root.has(refused.key)) continue;
    const json& value = root.value(refused.key, "");
    if (is_set(value)) root.fail(refused.key, found_text(value), kUnset + std::string(refused.why));
  }
  for (const auto& [key, value] : object.items()) {
    const bool known = read.contains(key) || kIgnored.contains(key);
    if (known || !is_set(value)) continue;
    root.fail(shorten(key), found_text(value),
              kUnset + std::string("it is not known here and may change what is computed"));
  }
}

void check_init(Fields& root) {
  const std::string key = "init_lora_weights";
  if (!root.has(key)) return;
  const json& value = root.value(key, "");
  if (value.is_boolean() || value == "gaussian" || value == "eva") return;
  root.fail(
      key, found_text(value),
      "true, false, \"gaussian\" or \"eva\": others take their start from the base's weights, "
      "so that the adapter fits another base");
}

// The value of the first name that is the module's or follows one of its dots.
template <typename Value>
Value first_of(const std::vector<std::pair<std::string, Value>>& pattern, std::string_view module,
               Value otherwise) {
  for (const auto& [name, value] : pattern) {
    if (!module.ends_with(name)) continue;
    const std::size_t before = module.size() - name.size();
    if (before == 0 || module[before - 1] == '.') return value;
  }
  return otherwise;
}

}  // namespace

int AdapterConfig::rank_of(std::string_view module) const {
  return first_of(rank_pattern, module, rank);
}

double AdapterConfig::scaling_of(std::string_view module) const {
  const double r = rank_of(module);
  return first_of(alpha_pattern, module, alpha) / (is_rank_stabilized ? std::sqrt(r) : r);
}

AdapterConfig parse_adapter_config(std::string_view json_text, const std::string& file) {
  const json parsed = parse_strictly(json_text, file);
  Fields root(parsed, file, "");
  PatternNames in_order;
  JsonFailure unread;  // it was read before
  read_json_events(json_text, {}, in_order, unread);
  AdapterConfig config;
  root.choice<bool>("peft_type", {{"LORA", true}});
  if (root.has("bias")) root.choice<bool>("bias", {{"none", true}});
  check_init(root);
  refuse_switches(parsed, root,
                  {"peft_type", "bias", "init_lora_weights", "r", "lora_alpha", "use_rslora",
                   "rank_pattern", "alpha_pattern"});
  config.rank = root.small_integer("r", 1, kMaxAdapterRank);
  config.alpha = root.not_negative("lora_alpha", kMaxAdapterAlpha);
  if (root.has("use_rslora")) config.is_rank_stabilized = root.boolean("use_rslora");
  read_pattern(root, in_order, file, "rank_pattern", [&](Fields& fields, const std::string& name) {
    config.rank_pattern.emplace_back(name, fields.small_integer(name, 1, kMaxAdapterRank));
  });
  read_pattern(root, in_order, file, "alpha_pattern", [&](Fields& fields, const std::string& name) {
    config.alpha_pattern.emplace_back(name, fields.not_negative(name, kMaxAdapterAlpha));
  });
  return config;
}

std::size_t Adapter::bytes_of(const AdaptedModule& adapted) {
  const auto& [module, rank, scaling, a, b] = adapted;
  const std::size_t output = LowRankOutput::bytes_of(module.out, rank);
  if (module.is_embedding) return module.in * rank * sizeof(float) + output;
  return module.is_read ? LowRankInput::bytes_of(module.in, rank) + output : 0;
}

std::size_t Adapter::object_bytes(std::size_t num_modules, std::size_t num_products) {
  constexpr std::size_t kNameBytes = 128;  // a name, its string, and the allocator's share
  return sizeof(Adapter) + num_modules * (sizeof(Part) + kNameBytes) +
         num_products * sizeof(Product);
}

Adapter::Adapter(const AdapterFiles& files)
    : bytes_(files.bytes()), products_(files.num_products()) {
  for (const AdaptedModule& adapted : files.modules()) {
    modules_.push_back(adapted.module.name);
    max_rank_ = std::max(max_rank_, static_cast<int>(adapted.rank));
  }
}

// Each tensor is packed once it is read: of f32 there is never more than one beside them.
void Adapter::read_tensors(const AdapterFiles& files) {
  using Packed = std::function<void(std::span<const float>)>;
  std::multimap<std::uint64_t, std::pair<const TensorEntry*, Packed>> by_place;
  const auto place = [&](const TensorEntry* tensor, Packed packed) {
    by_place.insert({tensor->begin, {tensor, std::move(packed)}});
  };
  // The parts first: what packs a tensor keeps a pointer to its part.
  for (const AdaptedModule& adapted : files.modules()) {
    const AdaptableModule& module = adapted.module;
    if (module.is_embedding || !module.is_read) continue;
    products_[module.product].push_back(
        {.first_output = module.first_output,
         .matrices = {.a = LowRankInput(module.in, adapted.rank),
                      .b = LowRankOutput(module.out, adapted.rank),
                      .scaling = static_cast<float>(adapted.scaling)}});
  }
  for (const AdaptedModule& adapted : files.modules()) {
    const AdaptableModule& module = adapted.module;
    if (module.is_embedding) {
      value_numbers_ = Matrix(module.in, adapted.rank);
      value_output_ = LowRankOutput(module.out, adapted.rank);
      value_scaling_ = static_cast<float>(adapted.scaling);
      place(adapted.a, [this](std::span<const float> a) {
        for (std::size_t i = 0; i < a.size(); ++i) {
          value_numbers_.row(i % value_numbers_.rows())[i / value_numbers_.rows()] = a[i];
        }
      });
      place(adapted.b, [this](std::span<const float> b) { value_output_.assign(b); });
    } else if (module.is_read) {
      Product& parts = products_[module.product];
      Part* const part = &*std::ranges::find(parts, module.first_output, &Part::first_output);
      place(adapted.a, [part](std::span<const float> a) { part->matrices.a.assign(a); });
      place(adapted.b, [part](std::span<const float> b) { part->matrices.b.assign(b); });
    } else {  // read all the same: it may be refused, and the fingerprint is of all bytes
      place(adapted.a, [](std::span<const float>) {});
      place(adapted.b, [](std::span<const float>) {});
    }
  }
  const SafetensorsFile& file = files.tensors();
  Sha256 hash;
  hash.add_length(files.config_json().size());
  hash.add(files.config_json());
  hash.add_length(file.size());
  hash.add(file.read_header());
  for (const auto& [begin, tensor] : by_place) {
    std::vector<float> values(static_cast<std::size_t>(tensor.first->num_elements()));
    file.read_f32(*tensor.first, values, [&](std::span<const char> bytes) { hash.add(bytes); });
    tensor.second(values);
  }
  file.check_unchanged();
  fingerprint_ = hash.hex();
}

std::shared_ptr<const Adapter> Adapter::load(const AdapterFiles& files) {
  const std::shared_ptr<Adapter> adapter(new Adapter(files));
  adapter->read_tensors(files);
  return adapter;
}

void Adapter::add(std::size_t product, std::span<const std::uint32_t> rows,
                  MatrixView<const float> x, MatrixView<float> y) const {
  for (const Part& part : products_[product]) {
    part.matrices.add(rows, x, y.cols_from(part.first_output, part.matrices.b.out));
  }
}

void Adapter::list(std::size_t product, PrefetchList& prefetch) const {
  for (const auto& [first_output, matrices] : products_[product]) {
    prefetch.add(matrices.a.values());
    prefetch.add(matrices.b.values());
  }
}

void Adapter::add_value(std::int32_t token, std::span<float> row) const {
  if (value_numbers_.rows() == 0) return;
  add_low_rank(value_output_, value_scaling_, value_numbers_.row(static_cast<std::size_t>(token)),
               row.first(value_output_.out));
}

namespace {

constexpr const char* kPrefix = "base_model.model.";

// PEFT's names of the two tensors of a module, which is named as in the model that was adapted.
struct TensorNames {
  TensorNames(const std::string& module_name, bool is_embedding) : module(module_name) {
    const std::string name = kPrefix + module_name;
    a = name + (is_embedding ? ".lora_embedding_A" : ".lora_A.weight");
    b = name + (is_embedding ? ".lora_embedding_B" : ".lora_B.weight");
  }
  std::string module;
  std::string a;
  std::string b;
};

// The names that a module may have: its own, and that of the same text model with a vision tower
// beside it, or without one.
std::vector<std::string> names_of_module(const std::string& name) {
  constexpr std::string_view kText = "model.";
  constexpr std::string_view kWithVision = "model.language_model.";
  if (name.starts_with(kWithVision)) {
    return {name, std::string(kText) + name.substr(kWithVision.size())};
  }
  if (name.starts_with(kText)) return {name, std::string(kWithVision) + name.substr(kText.size())};
  return {name};
}

class TensorFinder {
 public:
  explicit TensorFinder(const SafetensorsFile& file) : file_(file) {}

  bool has(const std::string& name) const { return file_.tensors().contains(name); }

  // REQUIRES: one of the halves is there.
  const TensorEntry* find(const std::string& name, const std::vector<std::int64_t>& shape,
                          std::size_t rank) {
    const auto found = file_.tensors().find(name);
    if (found == file_.tensors().end()) {
      fail(name, "missing beside its other half, expected shape " + shape_to_string(shape));
    }
    if (found->second.shape != shape) {
      fail(name, "found shape " + shape_to_string(found->second.shape) + ", expected " +
                     shape_to_string(shape) + " for rank " + std::to_string(rank));
    }
    used_.insert(name);
    return &found->second;
  }

  void refuse_surplus() const {
    for (const auto& [name, entry] : file_.tensors()) {
      if (used_.contains(name)) continue;
      fail(name, "surplus, found shape " + shape_to_string(entry.shape) +
                     ", expected a half of a module of the model that can be adapted");
    }
  }

 private:
  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    throw ModelError(file_.name() + ": tensor " + quote(name) + ": " + what);
  }

  const SafetensorsFile& file_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace

AdapterFiles::AdapterFiles(const std::filesystem::path& directory,
                           std::span<const AdaptableModule> modules)
    : config_json_(read_config_text(directory / "adapter_config.json")),
      config_(parse_adapter_config(config_json_, (directory / "adapter_config.json").string())),
      tensors_(directory / "adapter_model.safetensors") {
  find_modules(tensors_.name(), modules);
  measure();
}

void AdapterFiles::find_modules(const std::string& file, std::span<const AdaptableModule> modules) {
  if (modules.empty()) throw ModelError(file + ": found an adapter of a model that takes none");
  TensorFinder finder(tensors_);
  for (const AdaptableModule& module : modules) {
    num_products_ = std::max(num_products_, module.product + 1);
    std::optional<TensorNames> found;
    for (const std::string& name : names_of_module(module.name)) {
      const TensorNames names(name, module.is_embedding);
      if (!found && (finder.has(names.a) || finder.has(names.b))) found = names;
    }
    if (!found) continue;
    const TensorNames& names = *found;
    const auto rank = static_cast<std::int64_t>(config_.rank_of(names.module));
    const auto in = static_cast<std::int64_t>(module.in);
    const auto out = static_cast<std::int64_t>(module.out);
    const double scaling = config_.scaling_of(names.module);
    const auto rows = static_cast<std::size_t>(rank);
    const TensorEntry* const a = finder.find(names.a, {rank, in}, rows);
    const TensorEntry* const b = finder.find(names.b, {out, rank}, rows);
    modules_.push_back({.module = module, .rank = rows, .scaling = scaling, .a = a, .b = b});
  }
  finder.refuse_surplus();
  if (modules_.empty()) throw ModelError(file + ": found no tensor, expected an adapted module");
}

void AdapterFiles::measure() {
  bytes_ = Adapter::object_bytes(modules_.size(), num_products_);
  for (const AdaptedModule& adapted : modules_) {
    bytes_ += Adapter::bytes_of(adapted);
    for (const TensorEntry* tensor : {adapted.a, adapted.b}) {
      const auto values = static_cast<std::size_t>(tensor->num_elements());
      loading_bytes_ = std::max(loading_bytes_, values * sizeof(float));
    }
  }
}

void AdaptedRows::reserve(std::size_t max_rows) {
  found_.reserve(max_rows);
  rows_.reserve(max_rows);
  groups_.reserve(max_rows);
}

void AdaptedRows::group() {
  std::ranges::sort(found_, [](const auto& a, const auto& b) {
    return a.first != b.first ? std::less<>()(a.first, b.first) : a.second < b.second;
  });
  for (const auto& [adapter, row] : found_) {
    if (groups_.empty() || groups_.back().adapter != adapter) {
      groups_.push_back({adapter, rows_.size(), 0});
    }
    ++groups_.back().count;
    rows_.push_back(row);
  }
}

void AdaptedRows::list(std::size_t product, PrefetchList& prefetch) const {
  constexpr std::size_t kMostGroups = 16;
  for (const Group& group : std::span(groups_).first(std::min(groups_.size(), kMostGroups))) {
    group.adapter->list(product, prefetch);
  }
}

void AdaptedRows::add(std::size_t product, MatrixView<const float> x, MatrixView<float> y) const {
  for (const auto& [adapter, first, count] : groups_) {
    adapter->add(product, std::span(rows_).subspan(first, count), x, y);
  }
}

void write_random_adapter(const std::filesystem::path& directory,
                          std::span<const AdaptableModule> modules, const RandomAdapter& options) {
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "adapter_config.json")
      << "{\"peft_type\": \"LORA\", \"r\": " << options.rank
      << ", \"lora_alpha\": " << options.alpha << "}";
  std::mt19937_64 generator(options.seed);
  std::normal_distribution<double> normal;
  std::list<std::vector<float>> values;
  std::vector<TensorToWrite> tensors;
  const auto add = [&](const std::string& name, std::size_t rows, std::size_t cols, double scale) {
    values.emplace_back(rows * cols);
    for (float& value : values.back()) value = static_cast<float>(scale * normal(generator));
    tensors.push_back(
        {name, {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols)}, values.back()});
  };
  const auto rank = static_cast<std::size_t>(options.rank);
  for (const AdaptableModule& module : modules) {
    if (options.adapts != nullptr && !options.adapts(module.name)) continue;
    const std::string name = "base_model.model." + module.name;
    const double a_scale = module.is_embedding ? 1.0 : 1.0 / std::sqrt(module.in);
    const double b_scale = options.b_is_zero ? 0.0 : std::sqrt(0.1);
    add(name + (module.is_embedding ? ".lora_embedding_A" : ".lora_A.weight"), rank, module.in,
        a_scale);
    add(name + (module.is_embedding ? ".lora_embedding_B" : ".lora_B.weight"), module.out, rank,
        b_scale);
  }
  write_safetensors(directory / "adapter_model.safetensors", tensors);
}

}  // namespace lintel
