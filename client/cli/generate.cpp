#include "client/cli/generate.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "client/cli/commands.h"
#include "client/cli/generation_defaults.h"
#include "client/cli/generation_view.h"
#include "client/cli/interactive.h"
#include "client/cli/model_choice.h"

namespace lintel::cli {
namespace {

constexpr const char* kGenerateFooter = R"(
Examples:
  lintel generate --prompt "Once upon a time" --max-new-tokens 200 --temperature 0.8
  lintel generate --prompt-tokens 0,0,12 --max-new-tokens 16 --seed 7 --format jsonl
  lintel generate --prompt-file story.txt --stop '\n\n' --stop 'THE END' --include-stop
  lintel generate --interactive --temperature 0.7
  lintel generate --max-new-tokens 783 --given 100=0,0,255 --samples 4 --format jsonl

jsonl has per sample: tokens (sampled and given ones), of byte models text (what is no UTF-8 is U+FFFD
there), log2_probs (base 2, parallel to tokens, of the
model before temperature and filters, null where a value has none), finish_reason (length, stop_token,
stop_string, end_of_sequence, cancelled, deadline), seed, first_position, counts (prompt_tokens,
reused_tokens, generated_tokens, given_tokens, position; drafted_tokens and accepted_tokens of the
server's speculation) and timings; in a window also window, window_restarts and skipped_tokens (of the
prompt, which no value depends on); where asked for also prompt, prompt_log2_probs, top,
given_positions. Floats have the digits that read back exactly.

On a terminal the last line on standard error says how fast it was: values a second from the first to
the last, how long the first one took to come, and the prompt's. --stats has it anywhere.

A call that fails on its way, at its --deadline or by Ctrl-C for two, prints what had come all the same,
says why on standard error, and its exit status is not 0; jsonl has the samples that were not done
without counts and timings, and with finish_reason deadline, cancelled or null, as the failure has it.
--time-limit ends a call without a failure, and says so on standard error.)";

v1::Model model_of(const Client& client, const GenerateFlags& flags, Console& console) {
  std::string model = flags.connection.model;
  if (model.empty() && !flags.session_id.empty()) {
    model = client.get_session(flags.session_id, &console.cancellation()).model();
  }
  const bool text = flags.prompt || flags.interactive;
  return choose_model(client, model, text ? "bytes" : "", console.cancellation());
}

}  // namespace

int run_generate(const GenerateFlags& flags, Console& console) {
  if (flags.interactive) check_interactive(flags);
  if (flags.top_log_probs.value_or(0) > 0 && flags.format != "jsonl") {
    throw UsageError("--top-log-probs goes with --format jsonl");
  }
  const Client client = flags.connection.connect();
  v1::GenerateRequest request = flags.request(console);
  const v1::Model model = model_of(client, flags, console);
  ViewOptions view;
  view.print = {.format = format_for(flags, model), .is_bytes = model.modality() == "bytes"};
  view.patience = std::chrono::milliseconds(static_cast<std::int64_t>(flags.retry_seconds * 1000));
  view.quiet = flags.quiet;
  view.shows_speed = flags.stats || (!flags.quiet && console.err_is_terminal());
  // The only one that reads text, of several: to be named, unless the session names it.
  if (flags.prompt && flags.session_id.empty()) request.set_model(model.name());
  const bool needs_limit = !flags.max_new_tokens && !model.has_image();  // an image has an end
  if (needs_limit) request.set_max_new_tokens(default_new_tokens(model));
  if (flags.interactive) {
    view.shows_speed = flags.stats;  // where there is a turn after the other it is asked for
    return run_interactive({client, flags, model, view}, std::move(request), console);
  }
  const auto finishes = generate_in_view(client, request, view, console, console.cancellation());
  const bool is_default = !flags.window && flags.session_id.empty();
  const auto windowed = std::ranges::find_if(
      finishes, [](const v1::SampleFinish& finish) { return finish.window_restarts() > 0; });
  if (is_default && windowed != finishes.end() && !flags.quiet) {
    console.err(window_note(windowed->window()));
  }
  const bool stopped_by_limit =
      needs_limit &&
      std::any_of(finishes.begin(), finishes.end(), [](const v1::SampleFinish& finish) {
        return finish.reason() == v1::FINISH_REASON_LENGTH;
      });
  if (stopped_by_limit && !flags.quiet) {
    console.err("lintel: stopped after " + std::to_string(request.max_new_tokens()) +
                " values; --max-new-tokens N asks for another number\n");
  }
  return kOk;
}

void add_generate(CLI::App& app, CommandLine& command_line) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = app.add_subcommand("generate", "Generate from a prompt");
  flags->add_to(*command, /*for_session=*/false);
  command->footer(kGenerateFooter);
  on_chosen(*command, command_line,
            [flags, &command_line] { return run_generate(*flags, command_line.console); });
}

}  // namespace lintel::cli
