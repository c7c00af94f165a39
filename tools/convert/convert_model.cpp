// SPDX-License-Identifier: Apache-2.0
#include "tools/convert/convert_model.h"

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "model/config/config.h"
#include "model/formats/safetensors.h"
#include "model/formats/weights.h"
#include "model/lora/adapter.h"
#include "model/model_files.h"

namespace lintel {
namespace {

namespace fs = std::filesystem;

// weight: [out, in], or of an embedding [in, out].
void add_product(const AdapterFiles& files, const AdaptedModule& adapted, Matrix& weight) {
  const auto& [module, rank, scaling, a_entry, b_entry] = adapted;
  const std::vector<float> a = files.tensors().read_f32(a_entry->name);  // [rank, in]
  const std::vector<float> b = files.tensors().read_f32(b_entry->name);  // [out, rank]
  std::vector<double> row(module.in);
  for (std::size_t o = 0; o < module.out; ++o) {
    std::fill(row.begin(), row.end(), 0.0);
    for (std::size_t j = 0; j < rank; ++j) {
      for (std::size_t i = 0; i < module.in; ++i) {
        row[i] += double{b[o * rank + j]} * a[j * module.in + i];
      }
    }
    for (std::size_t i = 0; i < module.in; ++i) {
      float& w = module.is_embedding ? weight.row(i)[o] : weight.row(o)[i];
      w = static_cast<float>(w + scaling * row[i]);
      if (!std::isfinite(w)) {
        throw ModelError(files.tensors().name() + ": module " + module.name +
                         ": with the model's weights it is beyond what f32 holds");
      }
    }
  }
}

// W += scaling B A of every module, computed in double and rounded to f32 once; of an embedding
// row by row. Returns the names of the tensors that changed. `weights` are of the config that the
// files were opened with. Throws ModelError for tensors of the adapter that are not finite.
std::set<std::string> merge_adapter(const AdapterFiles& files, const ModelConfig& config,
                                    ModelWeights& weights) {
  std::map<std::string, Matrix*> by_name;
  for_each_tensor(config, weights, [&](const TensorSpec& spec, Matrix& matrix) {
    by_name.emplace(spec.name, &matrix);
  });
  std::set<std::string> changed;
  for (const AdaptedModule& adapted : files.modules()) {
    const std::string name = adapted.module.name + ".weight";
    add_product(files, adapted, *by_name.at(name));
    changed.insert(name);
  }
  files.tensors().check_unchanged();
  return changed;
}

[[noreturn]] void fail(const fs::path& path, const std::string& what) {
  throw ModelError(path.string() + ": " + what);
}

void write_text(const fs::path& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary);
  out << text;
  if (!out.flush()) fail(file, "cannot be written");
}

// A directory beside `to` that becomes it, or goes.
class Unfinished {
 public:
  explicit Unfinished(const fs::path& to)
      : to_(to), path_(to.string() + ".unfinished-" + std::to_string(getpid())) {
    std::error_code error;
    if (!fs::create_directory(path_, error)) {
      fail(to_, "cannot be made" + (error ? ": " + error.message() : std::string()));
    }
  }
  ~Unfinished() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  const fs::path& path() const { return path_; }

  void finish() {
    std::error_code error;
    fs::rename(path_, to_, error);
    if (error) fail(to_, "cannot be put in place: " + error.message());
    path_.clear();
  }

 private:
  const fs::path to_;
  fs::path path_;
};

}  // namespace

void convert_model(const fs::path& from, const fs::path& given_to, WeightType type,
                   const fs::path& adapter) {
  if (type == WeightType::kInt8) {
    throw ModelError(
        "int8 is no type of a model file: the format has neither I8 tensors nor their scales. "
        "lintel-server --weight-type int8 converts f32 and bf16 models as it loads them");
  }
  // Without a slash at its end.
  const fs::path to = given_to.has_filename() ? given_to : given_to.parent_path();
  std::error_code error;
  if (fs::exists(fs::symlink_status(to, error))) fail(to, "exists already");

  if (!fs::exists(from, error)) fail(from, "no such directory");

  const ModelFiles files(from);
  const ModelConfig& config = files.config();
  if (files.family() != nullptr) {
    throw ModelError(from.string() + ": a checkpoint of family " + config.family +
                     ", which lintel-server serves as it is: there is nothing to convert");
  }
  const WeightSource& source = files.weights();
  ModelWeights weights = load_weights(source, config);
  std::set<std::string> merged;
  if (!adapter.empty()) merged = merge_adapter(AdapterFiles(adapter, config), config, weights);
  // A table that was computed because the file leaves it out is left out again.
  for_each_tensor(config, weights, [&](const TensorSpec& spec, Matrix& matrix) {
    if (source.find(spec.name) == nullptr) matrix = Matrix();
  });
  Unfinished out(to);
  write_text(out.path() / "config.json", files.config_json());
  save_weights(out.path() / "model.safetensors", config, weights, [&](const TensorSpec& spec) {
    if (type == WeightType::kF32) return TensorType::kF32;
    if (spec.is_projection) return TensorType::kBf16;
    if (merged.contains(spec.name)) return TensorType::kF32;
    const DType stored = source.find(spec.name)->type;
    if (stored == DType::kF32) return TensorType::kF32;
    return stored == DType::kBf16 ? TensorType::kBf16 : TensorType::kF16;
  });
  out.finish();
}

}  // namespace lintel
