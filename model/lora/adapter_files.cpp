#include "model/lora/adapter_files.h"

#include <algorithm>
#include <set>

#include "model/core/error_text.h"
#include "model/lora/adapter.h"

namespace lintel {
namespace {

constexpr const char* kPrefix = "base_model.model.";

// What PEFT calls the two tensors of a module.
struct TensorNames {
  explicit TensorNames(const AdaptableModule& module) {
    const std::string name = kPrefix + module.name;
    a = name + (module.is_embedding ? ".lora_embedding_A" : ".lora_A.weight");
    b = name + (module.is_embedding ? ".lora_embedding_B" : ".lora_B.weight");
  }
  std::string a;
  std::string b;
};

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

AdapterFiles::AdapterFiles(const std::filesystem::path& directory, const ModelConfig& config)
    : config_json_(read_config_text(directory / "adapter_config.json")),
      config_(parse_adapter_config(config_json_, (directory / "adapter_config.json").string())),
      tensors_(directory / "adapter_model.safetensors"),
      num_layer_weights_(static_cast<std::size_t>(config.num_layer_weights())) {
  find_modules(tensors_.name(), config);
  measure();
}

void AdapterFiles::find_modules(const std::string& file, const ModelConfig& config) {
  TensorFinder finder(tensors_);
  for (AdaptableModule& module : adaptable_modules(config)) {
    const TensorNames names(module);
    if (!finder.has(names.a) && !finder.has(names.b)) continue;
    const auto rank = static_cast<std::int64_t>(config_.rank_of(module.name));
    const auto in = static_cast<std::int64_t>(module.in);
    const auto out = static_cast<std::int64_t>(module.out);
    const double scaling = config_.scaling_of(module.name);
    const auto rows = static_cast<std::size_t>(rank);
    const TensorEntry* const a = finder.find(names.a, {rank, in}, rows);
    const TensorEntry* const b = finder.find(names.b, {out, rank}, rows);
    modules_.push_back(
        {.module = std::move(module), .rank = rows, .scaling = scaling, .a = a, .b = b});
  }
  finder.refuse_surplus();
  if (modules_.empty()) throw ModelError(file + ": found no tensor, expected an adapted module");
}

void AdapterFiles::measure() {
  bytes_ = Adapter::object_bytes(modules_.size(), num_layer_weights_);
  for (const AdaptedModule& adapted : modules_) {
    bytes_ += Adapter::bytes_of(adapted);
    for (const TensorEntry* tensor : {adapted.a, adapted.b}) {
      const auto values = static_cast<std::size_t>(tensor->num_values());
      loading_bytes_ = std::max(loading_bytes_, values * sizeof(float));
    }
  }
}

}  // namespace lintel
