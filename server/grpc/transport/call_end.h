// Counts a finished call and writes its line of the log.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "server/grpc/transport/methods.h"
#include "server/grpc/transport/request_counters.h"
#include "server/observability/logging.h"

namespace lintel {

// Values that a call read and produced.
struct ValueUse {
  std::int64_t prompt = 0;
  std::int64_t generated = 0;
};

struct CallEnd {
  Method method;
  std::string_view model = {};         // empty: about none, or refused before it was known
  std::optional<double> seconds = {};  // none: it was refused by its headers
  ValueUse used = {};
};

// `fields`: what else the line says. Where there is no memory for the line there is none: what
// waits for the call's end does not wait for it.
void record_end(RequestCounters& counters, const CallEnd& end, const grpc::Status& status,
                LogFields& fields) noexcept;

}  // namespace lintel
