// SPDX-License-Identifier: Apache-2.0
// GenerateObject: a request for tokens with what lintel.v1.GenerateRequest has no fields for.
#pragma once

#include <cstddef>

#include "server/api/params/chat_params.h"
#include "server/api/params/generate_params.h"
#include "server/core/request_memory.h"
#include "server/rpc/rpc.h"

namespace lintel {

struct GenerateObject final : RequestObject {
  std::size_t text_bytes() const override {
    return static_cast<std::size_t>(params.prompt.size()) + format.format_text.size();
  }
  const RequestMemory::Charge& memory() const override { return charge; }

  RequestMemory::Charge charge;  // of the members below, which are destroyed first
  api::GenerateParams params;
  api::AnswerFormat format;
  bool spells_special = false;  // bytes of special tokens are their names
};

}  // namespace lintel
