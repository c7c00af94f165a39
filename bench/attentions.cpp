// SPDX-License-Identifier: Apache-2.0
#include "bench/attentions.h"

#include <algorithm>

#include "bench/run_flags.h"

namespace lintel::bench {

std::vector<NamedAttention> compared_attentions(const Shape& shape) {
  const int line = shape.config.image.width * shape.config.image.channels;  // tokens of a row
  const std::string row = std::to_string(line);
  const std::string window = std::to_string(2 * line + 1);
  const std::string memory = std::to_string(4 * line);
  const auto map = [](const std::string& name, const std::string& keys = "") {
    return NamedAttention{name, name, "linear:feature_map=" + name + keys};
  };
  const auto lsh = [&shape](int rounds) {
    const std::string number = std::to_string(rounds);
    return NamedAttention{"lsh" + number, "LSH-" + number, shape.lsh_spec(rounds), true};
  };
  return {
      {"linear", "linear", "linear"},
      map("relu"),
      map("squared_relu"),
      map("dpfp", ",nu=1"),
      map("taylor1"),
      map("taylor2"),
      map("fourier", ",features=64"),
      map("exp"),
      map("favor", ",features=64"),
      {"efficient", "efficient", "efficient"},
      {"sparse", "sparse, strided", "sparse_transformer:pattern=strided,stride=" + row, true},
      {"sparse-fixed", "sparse, fixed", "sparse_transformer:pattern=fixed,columns=4,stride=" + row,
       true},
      {"longformer", "longformer", "longformer:global_tokens=1,window=" + window, true},
      {"bigbird", "bigbird", "bigbird:block_size=" + row, true},
      {"linformer", "linformer", "linformer:mode=blocks,rank=4,block_size=" + row, true},
      {"transformer-xl", "transformer-xl",
       "transformer_xl:segment_length=" + row + ",memory_length=" + memory, true},
      {"softmax", "softmax cached", "softmax", true},
      lsh(1),
      lsh(4),
  };
}

std::vector<NamedAttention> find_attentions(const Shape& shape, const std::string& flag,
                                            const std::string& names) {
  const std::vector<NamedAttention> all = compared_attentions(shape);
  if (names == "all") return all;
  std::vector<NamedAttention> found;
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    const auto which = std::ranges::find(all, name, &NamedAttention::name);
    if (which == all.end()) {
      std::string known = "all";
      for (const NamedAttention& one : all) known += ", " + one.name;
      refuse(flag, name, "one of " + known);
    }
    found.push_back(*which);
    begin = end + 1;
  }
  return found;
}

std::string type_of(const std::string& spec) { return spec.substr(0, spec.find(':')); }

std::string recomputing(const std::string& spec) {
  return spec + (spec.find(':') == std::string::npos ? ":" : ",") + "recompute=true";
}

}  // namespace lintel::bench
