#include "server/api/value_checks.h"

#include "model/config/names.h"

namespace lintel {
namespace {

bool check_count(std::int64_t count, std::int64_t most, const std::string& path,
                 Violations& violations) {
  if (count <= most) return true;
  violations.add(path, std::to_string(count) + " values are more than " + std::to_string(most));
  return false;
}

}  // namespace

std::int64_t num_values(const v1::Values& values) {
  switch (values.form_case()) {
    case v1::Values::kTokens:
      return values.tokens().ids_size();
    case v1::Values::kText:
      return static_cast<std::int64_t>(values.text().size());
    case v1::Values::kPixels:
      return static_cast<std::int64_t>(values.pixels().size());
    case v1::Values::FORM_NOT_SET:
      return 0;
  }
  return 0;
}

void check_token(std::int64_t token, const std::string& field, int vocab_size,
                 Violations& violations) {
  if (token < 0 || token >= vocab_size) {
    violations.add(field, "value " + std::to_string(token) + " is not from 0 to " +
                              std::to_string(vocab_size - 1));
  }
}

bool check_tokens(std::span<const std::int32_t> ids, const std::string& path,
                  const ModelConfig& config, std::int64_t max_values, Violations& violations) {
  if (!check_count(static_cast<std::int64_t>(ids.size()), max_values, path, violations)) {
    return false;
  }
  for (std::size_t i = 0; i < ids.size() && !violations.full(); ++i) {
    if (ids[i] >= 0 && ids[i] < config.vocab_size) continue;
    check_token(ids[i], indexed(path + ".tokens.ids", i), config.vocab_size, violations);
  }
  return true;
}

void read_values(const v1::Values& values, const std::string& path, const ModelConfig& config,
                 std::int64_t max_values, std::vector<std::int32_t>& out, Violations& violations) {
  if (values.has_tokens()) {
    const auto& ids = values.tokens().ids();
    const std::span<const std::int32_t> given(ids.data(), static_cast<std::size_t>(ids.size()));
    if (check_tokens(given, path, config, max_values, violations)) {
      out.insert(out.end(), given.begin(), given.end());
    }
    return;
  }
  if (!check_count(num_values(values), max_values, path, violations)) return;
  if (values.form_case() == v1::Values::FORM_NOT_SET) return;
  const bool is_text = values.has_text();
  const std::string field = path + (is_text ? ".text" : ".pixels");
  const ModalityKind needed = is_text ? ModalityKind::kBytes : ModalityKind::kImage;
  if (config.modality != needed) {
    std::string why = "applies to models of modality ";
    why += to_string(needed);
    why += " only; this one is of ";
    why += to_string(config.modality);
    violations.add(field, why);
    return;
  }
  const std::string& bytes = is_text ? values.text() : values.pixels();
  for (std::size_t i = 0; i < bytes.size() && !violations.full(); ++i) {
    const auto value = static_cast<unsigned char>(bytes[i]);
    if (value >= config.vocab_size) {
      check_token(value, indexed(field, i), config.vocab_size, violations);
    }
    out.push_back(value);
  }
}

}  // namespace lintel
