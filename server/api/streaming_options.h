// SPDX-License-Identifier: Apache-2.0
// StreamingOptions: how tokens become messages.
#pragma once

#include <chrono>

namespace lintel {

struct StreamingOptions {
  std::chrono::milliseconds chunk_interval_ms{10};  // between messages of one stream
  int outbox_tokens = 4096;                         // a stream that holds more is paused
};

}  // namespace lintel
