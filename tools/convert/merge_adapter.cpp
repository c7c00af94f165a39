#include "tools/convert/merge_adapter.h"

#include <cmath>
#include <map>
#include <vector>

namespace lintel {
namespace {

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

}  // namespace

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

}  // namespace lintel
