#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "client/cli/commands/commands.h"
#include "client/cli/commands/generate_flags.h"
#include "client/cli/commands/generate_output.h"
#include "client/cli/commands/model_choice.h"
#include "client/cli/frame/waiting.h"

namespace lintel::cli {
namespace {

constexpr const char* kGenerateFooter = R"(
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
given_positions. Floats have the digits that read back exactly.

A call that fails on its way, at its --deadline or by Ctrl-C for two, prints what had come all the same,
says why on standard error, and its exit status is not 0; jsonl has the samples that were not done
without counts and timings, and with finish_reason deadline, cancelled or null, as the failure has it.
--time-limit ends a call without a failure.)";

// Where nothing ends a sequence but a number: as many values as somebody who did not think of it
// likes to wait for.
constexpr std::uint32_t kDefaultNewTokens = 256;

v1::Model model_of(const Client& client, const GenerateFlags& flags, Console& console) {
  std::string model = flags.connection.model;
  if (model.empty() && !flags.session_id.empty()) {
    model = client.get_session(flags.session_id, &console.cancellation()).model();
  }
  return choose_model(client, model, flags.prompt ? "bytes" : "", console.cancellation());
}

// How values are printed: --format, or what suits the model.
std::string format_for(const GenerateFlags& flags, bool bytes) {
  if (flags.format == "text" && !bytes) {
    throw UsageError("--format text: this model's tokens are no bytes; use tokens or jsonl");
  }
  const std::string format = !flags.format.empty() ? flags.format : bytes ? "text" : "tokens";
  if (flags.log_probs && format == "text") {
    throw UsageError("--log-probs goes with --format tokens or jsonl");
  }
  return format;
}

// An image has an end; anything else goes on until it is told to stop.
std::optional<std::uint32_t> default_new_tokens(const v1::Model& model) {
  if (model.has_image()) return std::nullopt;
  const std::uint32_t limit = model.limits().max_new_tokens();
  return limit == 0 ? kDefaultNewTokens : std::min(limit, kDefaultNewTokens);
}

std::size_t prompt_size(const v1::GenerateRequest& request) {
  const v1::Values& prompt = request.prompt();
  return prompt.has_text() ? prompt.text().size()
                           : static_cast<std::size_t>(prompt.tokens().ids_size());
}

// Of a request that says nothing of one: where its text would get longer than what the model was
// trained on, the largest window that it knows all of. 0: none.
std::int64_t trained_window(const v1::Model& model, const v1::GenerateRequest& request) {
  constexpr std::int64_t kMostWindow = 65'536;  // of a model without a max_length
  // A session has its own; what a named state has seen is not known here.
  if (!request.session_id().empty() || !request.initial_state().empty() || model.has_image()) {
    return 0;
  }
  const std::int64_t values =
      static_cast<std::int64_t>(prompt_size(request)) + std::int64_t{request.max_new_tokens()};
  if (model.trained_length() == 0 || values <= model.trained_length()) return 0;
  const std::int64_t most = model.max_length() > 0 ? model.max_length() : kMostWindow;
  return std::min(model.trained_length(), most) / 2 * 2;
}

std::string reading_text(const v1::GenerateRequest& request) {
  const std::size_t size = prompt_size(request);
  return size == 0 ? "waiting for the first value"
                   : "waiting for the first value after a prompt of " + std::to_string(size);
}

// Says while a call waits to be repeated why and for how long: on a terminal in a line that is
// erased when it goes on, elsewhere once.
class RepeatNote {
 public:
  explicit RepeatNote(Console& console) : console_(console) {}
  ~RepeatNote() { erase(); }

  void on_pause(const Client::Pause& pause) {
    const bool terminal = console_.err_is_terminal();
    if (said_ && !terminal) return;
    said_ = true;
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(pause.left).count();
    const std::string text = "lintel: " + reason(pause.error.code()) + "; trying again for " +
                             std::to_string(seconds) + " s";
    console_.err(terminal ? "\r\x1b[K" + text : text + "\n");
    drawn_ = terminal;
  }

  void erase() {
    if (std::exchange(drawn_, false)) console_.err("\r\x1b[K");
  }

  bool said() const { return said_; }

 private:
  static std::string reason(grpc::StatusCode code) {
    if (code == grpc::StatusCode::ABORTED) return "the session is still in use";
    if (code == grpc::StatusCode::RESOURCE_EXHAUSTED) return "the server is full";
    return "the server is away";
  }

  Console& console_;
  bool said_ = false;
  bool drawn_ = false;  // there is something to erase
};

}  // namespace

int run_generate(const GenerateFlags& flags, Console& console) {
  if (flags.top_log_probs.value_or(0) > 0 && flags.format != "jsonl") {
    throw UsageError("--top-log-probs goes with --format jsonl");
  }
  const Client client = flags.connection.connect();
  v1::GenerateRequest request = flags.request(console);
  const v1::Model model = model_of(client, flags, console);
  const std::string format = format_for(flags, model.modality() == "bytes");
  // The only one that reads text, of several: to be named, unless the session names it.
  if (flags.prompt && flags.session_id.empty()) request.set_model(model.name());
  const std::optional<std::uint32_t> limit =
      flags.max_new_tokens ? std::nullopt : default_new_tokens(model);
  if (limit) request.set_max_new_tokens(*limit);
  if (const std::int64_t window = flags.window ? 0 : trained_window(model, request); window > 0) {
    request.set_window(window);
    console.err("lintel: the model was trained on " + std::to_string(model.trained_length()) +
                " values at once: longer text gets a window of " + std::to_string(window) +
                " (--window " + std::to_string(window) + "; --window 0: none)\n");
  }

  const auto printer = make_printer(format, console, request);
  bool stopped_by_limit = false;
  Waiting waiting(console, reading_text(request));
  RepeatNote note(console);
  std::int64_t position = 0;  // behind the last value that came
  Client::Repeat repeat;
  repeat.patience =
      std::chrono::milliseconds(static_cast<std::int64_t>(flags.retry_seconds * 1000));
  repeat.on_pause = [&](const Client::Pause& pause) {
    waiting.stop();
    note.on_pause(pause);
  };
  try {
    client.generate(
        request,
        [&](const v1::Chunk& chunk) {
          waiting.stop();
          note.erase();
          position = chunk.first_position() + chunk.tokens_size();
          printer->on_chunk(chunk);
        },
        [&](const v1::SampleFinish& finish) {
          waiting.stop();
          note.erase();
          stopped_by_limit |= limit && finish.reason() == v1::FINISH_REASON_LENGTH;
          printer->on_finish(finish);
        },
        repeat, &console.cancellation());
  } catch (const CallError& error) {
    waiting.stop();
    note.erase();
    printer->on_failure(error.code());  // what came before is the user's
    if (note.said()) {
      console.flush();
      console.err(
          "lintel: gave up " +
          (position == 0 ? "before the first value" : "at position " + std::to_string(position)) +
          "; `lintel session get " + flags.session_id + "` says what is stored\n");
    }
    throw;
  }
  printer->on_end();
  console.flush();
  if (stopped_by_limit) {
    console.err("lintel: stopped after " + std::to_string(*limit) +
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
