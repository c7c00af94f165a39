// SPDX-License-Identifier: Apache-2.0
#include "server/chat/reader/call_reader.h"
#include "server/chat/reader/json_call.h"

namespace lintel {
namespace {

class HermesReader final : public CallReader {
 public:
  Progress step(char byte, Lookahead& /*input*/, CallSink& sink) override {
    if (!begun_) {
      if (is_white_space(byte)) return Progress::kMore;
      begun_ = true;
      return byte == '{' ? Progress::kMore : Progress::kNotACall;
    }
    const JsonCall::Progress progress = call_.step(byte, sink);
    if (progress == JsonCall::Progress::kMore) return Progress::kMore;
    if (progress != JsonCall::Progress::kFailed) sink.complete();
    return call_.announced() ? Progress::kDropRest : Progress::kNotACall;
  }

 private:
  bool begun_ = false;
  JsonCall call_;
};

}  // namespace

std::unique_ptr<CallReader> make_hermes_reader() { return std::make_unique<HermesReader>(); }

}  // namespace lintel
