#include "model/lora/adapter_config.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "model/config/config_limits.h"
#include "model/config/json_fields.h"
#include "model/core/error_text.h"
#include "model/core/json_reader.h"

namespace lintel {
namespace {

using nlohmann::json;

constexpr const char* kUnset = "null, false, 0 or empty: ";

// What a switch of PEFT's would make of the function.
struct RefusedSwitch {
  const char* key;
  const char* why;
};
constexpr RefusedSwitch kRefused[] = {
    {"use_dora", "magnitudes beside the matrices are not served"},
    {"lora_bias", "biases of B are not served"},
    {"fan_in_fan_out", "matrices are [out, in] here"},
    {"modules_to_save", "modules beside the adapted ones are the model's own"},
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

}  // namespace lintel
