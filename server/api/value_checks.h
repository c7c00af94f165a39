// Checks of values: ids, a text's bytes or an image's pixels, each from 0 to V-1.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lintel/v1/generation.pb.h"
#include "model/config/config.h"
#include "server/api/violations.h"

namespace lintel {

std::int64_t num_values(const v1::Values& values);

void check_token(std::int64_t token, const std::string& field, int vocab_size,
                 Violations& violations);

// Ids that go by the name `path`.tokens.ids. Returns whether they are at most `max_values`.
bool check_tokens(std::span<const std::int32_t> ids, const std::string& path,
                  const ModelConfig& config, std::int64_t max_values, Violations& violations);

// Appends the ids of `values`, at most `max_values` of them, naming what is wrong with `path`
// before the field.
void read_values(const v1::Values& values, const std::string& path, const ModelConfig& config,
                 std::int64_t max_values, std::vector<std::int32_t>& out, Violations& violations);

}  // namespace lintel
