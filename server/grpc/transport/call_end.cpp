#include "server/grpc/transport/call_end.h"

#include <spdlog/spdlog.h>

#include "server/grpc/transport/status.h"

namespace lintel {

void record_end(RequestCounters& counters, const CallEnd& end, const grpc::Status& status,
                LogFields& fields) noexcept {
  try {
    const int code = status.error_code();
    if (end.seconds) {
      counters.count(end.method, end.model, code, *end.seconds);
    } else {
      counters.count(end.method, code);
    }
    // Never what was sent or generated; the status's text may quote the request.
    fields.add("code", code_name(code));
    if (end.seconds) fields.add("seconds", *end.seconds);
    if (end.used.prompt + end.used.generated > 0) {
      fields.add("prompt_tokens", end.used.prompt);
      fields.add("generated_tokens", end.used.generated);
    }
    const LogScope scope(fields);
    spdlog::info("call ended");
    if (!status.ok()) spdlog::debug("because: {}", status.error_message());
  } catch (...) {
  }
}

}  // namespace lintel
