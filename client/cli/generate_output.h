// What `lintel generate` prints.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/cli/console.h"
#include "client/lib/client.h"

namespace lintel::cli {

// Prints one Generate call.
//
//   text    the bytes as they are, while they stream; several samples one after another under a
//   line
//           "--- sample I, seed S". A newline ends them on a terminal.
//   tokens  ids separated by commas, a line per sample, while they stream when there is one sample
//   jsonl   one object per sample and line, keys as in `lintel generate --help`
//
// Ends with on_end() or, when the call failed, on_failure(), which prints what of the samples had
// come, if anything had.
class GenerationPrinter {
 public:
  virtual ~GenerationPrinter() = default;
  virtual void on_chunk(const v1::Chunk& chunk) = 0;
  virtual void on_finish(const v1::SampleFinish& finish) = 0;
  virtual void on_end() = 0;
  virtual void on_failure(grpc::StatusCode code) = 0;
};

struct PrintOptions {
  std::string format;     // text, tokens or jsonl
  bool is_bytes = false;  // the model's values: jsonl has them as text, too
};

// Console and request must outlive the printer.
std::unique_ptr<GenerationPrinter> make_printer(const PrintOptions& options, Console& console,
                                                const v1::GenerateRequest& request);

// "length" for FINISH_REASON_LENGTH.
std::string finish_reason_name(v1::FinishReason reason);
double seconds_of(const google::protobuf::Duration& duration);

}  // namespace lintel::cli
