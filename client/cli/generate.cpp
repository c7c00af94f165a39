#include <memory>

#include "client/cli/commands.h"
#include "client/cli/generate_flags.h"
#include "client/cli/generate_output.h"

namespace lintel::cli {
namespace {

constexpr const char* kFooter = R"(
Examples:
  lintel generate --prompt "Once upon a time" --max-new-tokens 200 --temperature 0.8
  lintel generate --prompt-tokens 0,0,12 --max-new-tokens 16 --seed 7 --format jsonl
  lintel generate --prompt-file story.txt --stop '\n\n' --stop 'THE END' --include-stop
  lintel generate --max-new-tokens 783 --given 100=0,0,255 --samples 4 --format jsonl

jsonl has per sample: tokens (sampled and given ones), log2_probs (base 2, parallel to tokens, of the
model before temperature and filters, null where a value has none), finish_reason (length, stop_token,
stop_string, end_of_sequence, cancelled, deadline), seed, first_position, counts (prompt_tokens,
reused_tokens, generated_tokens, given_tokens, position; drafted_tokens and accepted_tokens of the
server's speculation) and timings; where asked for also prompt, prompt_log2_probs, top,
given_positions. Floats have the digits that read back exactly. A call that fails on its way, at its
--deadline for one, prints what had come all the same: of samples that were not done, without counts
and timings, and with finish_reason deadline, cancelled or null, as the failure has it.)";

// Whether ids of the model are bytes, to be printed as such.
bool is_byte_model(const Client& client, const GenerateFlags& flags, Console& console) {
  std::string model = flags.connection.model;
  if (model.empty() && !flags.session_id.empty()) {
    model = client.get_session(flags.session_id, &console.cancellation()).model();
  }
  return client.get_model(model, &console.cancellation()).modality() == "bytes";
}

}  // namespace

int run_generate(const GenerateFlags& flags, Console& console) {
  if (flags.top_log_probs.value_or(0) > 0 && flags.format != "jsonl") {
    throw UsageError("--top-log-probs goes with --format jsonl");
  }
  const Client client = flags.connection.connect();
  const v1::GenerateRequest request = flags.request(console);
  std::string format = flags.format;
  if (format.empty() || format == "text") {
    const bool bytes = is_byte_model(client, flags, console);
    if (format == "text" && !bytes) {
      throw UsageError("--format text: this model's tokens are no bytes; use tokens or jsonl");
    }
    format = bytes ? "text" : "tokens";
  }
  if (flags.log_probs && format == "text") {
    throw UsageError("--log-probs goes with --format tokens or jsonl");
  }
  const auto printer = make_printer(format, console, request);
  try {
    client.generate(
        request, [&printer](const v1::Chunk& chunk) { printer->on_chunk(chunk); },
        [&printer](const v1::SampleFinish& finish) { printer->on_finish(finish); },
        &console.cancellation());
  } catch (const CallError& error) {
    printer->on_failure(error.code());  // what came before is the user's
    throw;
  }
  printer->on_end();
  return kOk;
}

void add_generate(CLI::App& app, CommandLine& command_line) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = app.add_subcommand("generate", "Generate from a prompt");
  flags->add_to(*command, /*for_session=*/false);
  command->footer(kFooter);
  command->callback([flags, &command_line] {
    command_line.run = [flags, &command_line] {
      return run_generate(*flags, command_line.console);
    };
  });
}

}  // namespace lintel::cli
