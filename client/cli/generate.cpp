// SPDX-License-Identifier: Apache-2.0
#include "client/cli/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "client/cli/commands.h"
#include "client/cli/generate_output.h"
#include "client/cli/model_choice.h"

namespace lintel::cli {
namespace {

std::optional<std::string> any_text(std::string_view, std::string_view text) {
  return std::string(text);
}

double parse_time_limit(std::string_view flag, std::string_view text) {
  const double seconds = parse_double(flag, text);
  if (seconds > 0 && seconds <= 1e8) return seconds;
  refuse_flag(flag, text, "expected seconds, more than 0");
}

double parse_patience(std::string_view flag, std::string_view text) {
  const double seconds = parse_double(flag, text);
  if (seconds >= 0 && seconds <= 1e8) return seconds;
  refuse_flag(flag, text, "expected seconds, 0 or more");
}

}  // namespace

void GenerateFlags::add_to(CLI::App& app, bool for_session) {
  command = &app;
  auto* text =
      add_parsed(app, "--prompt", prompt, any_text, "TEXT", "Prompt for a model with a tokenizer");
  auto* ids = add_parsed(app, "--prompt-tokens", prompt_tokens, any_text, "ID,ID,...",
                         "Prompt as token ids, for any model; of an image: its pixels, row by row");
  auto* file =
      add_parsed(app, "--prompt-file", prompt_file, any_text, "FILE",
                 "Prompt: a file's text, of a model without a tokenizer its bytes, each one "
                 "a token; - is standard input");
  text->excludes(ids)->excludes(file);
  ids->excludes(file);
  app.add_flag("--no-special", no_special,
               "A text prompt without the tokens that the model wants before it, as <s>");
  if (for_session) {
    app.add_option("ID", session_id, "The session to continue")->required();
  } else {
    app.add_flag("--interactive", interactive,
                 "Type to a session, and it answers: see /help there");
    add_text(app, "--session", session_id, "ID", "Continue this session");
    add_adapter_flag(app, adapter);
  }
  add_parsed(app, "--max-new-tokens", max_new_tokens, parse_uint32, "N",
             "Most tokens to produce, given ones included [256; of an image: up to its end]");
  add_repeated(app, "--given", given, "POS=ID,ID,...",
               "Known tokens from position POS on, fed instead of sampled; they matter to what is "
               "sampled after them, not before");
  add_parsed(app, "--time-limit", time_limit_seconds, parse_time_limit, "SECONDS",
             "Stop with finish reason `deadline` after this long, keeping what there is");
  if (for_session) {
    add_parsed(app, "--retry", retry_seconds, parse_patience, "SECONDS",
               "Of a session that outlives the server: after the server or the connection is lost, "
               "try for this long to resume where it was, within --deadline; 0: fail at once [30]");
    add_text(
        app, "--call-id", call_id, "ID",
        "Of a session that outlives the server: the call's name. Running an interrupted command "
        "again with the name that `lintel session get` prints finishes the call: the same tokens "
        "[a random one]");
  } else {
    add_parsed(app, "--samples", samples, parse_uint32, "N",
               "Samples from the prompt; sample i has seed S + i [1]");
  }

  fields.add_others_to(app, for_session);
  fields.add_sampling_to(app, "Seed: the same one gives the same tokens [the server draws one]");

  add_repeated(
      app, "--stop", stop_strings, "TEXT",
      "Stop at this text (models with a tokenizer); \\n, \\t, \\\\ and \\xHH are understood")
      ->group("Stopping");
  add_repeated(app, "--stop-token", stop_tokens, "ID[,ID...]", "Stop at this token")
      ->group("Stopping");
  app.add_flag("--include-stop", include_stop, "Print what stopped, too")->group("Stopping");

  app.add_option(
         "--format", format,
         std::string("text: bytes as they are, streamed; tokens: ids; jsonl: one object per sample "
                     "with everything [") +
             (for_session ? "text where the model has a tokenizer or bytes, else tokens, also with "
                            "--prompt-tokens or --log-probs]"
                          : "text for byte models and for text prompts, else tokens]"))
      ->check(CLI::IsMember({"text", "tokens", "jsonl"}))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->group("Output");
  app.add_flag("--log-probs", log_probs,
               "With tokens: each id followed by :LOG2-PROBABILITY (jsonl always has them)")
      ->group("Output");
  add_parsed(app, "--top-log-probs", top_log_probs, parse_uint32, "N",
             "With jsonl: the N most likely tokens at each position")
      ->group("Output");
  app.add_flag("--echo", echo, "Print the prompt, too")->group("Output");
  app.add_flag("--stats", stats,
               "Say at the end how fast it was, on standard error, also where that is no terminal")
      ->group("Output");
  app.add_flag("--quiet", quiet,
               "Say nothing on standard error but failures: no speed, no notes, no sign of life")
      ->group("Output");
  connection.add_to(app);
}

v1::GenerateRequest GenerateFlags::request(Console& console) const {
  v1::GenerateRequest request;
  request.set_model(connection.model);
  request.set_session_id(session_id);
  request.set_call_id(call_id);
  request.set_adapter(adapter);
  if (prompt) {
    *request.mutable_prompt() = text_values(*prompt);
  } else if (prompt_tokens) {
    *request.mutable_prompt() = token_values(parse_ids("--prompt-tokens", *prompt_tokens));
  } else if (prompt_file) {
    *request.mutable_prompt() = text_values(console.read_file("--prompt-file", *prompt_file));
  }
  if (no_special) request.set_add_special(false);
  if (max_new_tokens) request.set_max_new_tokens(*max_new_tokens);
  fields.fill(request);
  for (const std::string& stop : stop_strings) {
    request.mutable_stop()->add_strings(unescape("--stop", stop));
  }
  for (const std::string& stop : stop_tokens) {
    for (const std::int32_t id : parse_ids("--stop-token", stop)) {
      request.mutable_stop()->add_token_ids(id);
    }
  }
  if (include_stop) request.mutable_stop()->set_include_in_output(true);
  for (const std::string& text : given) {
    const GivenTokens known = parse_given("--given", text);
    v1::GivenSpan& span = *request.add_given();
    span.set_position(known.position);
    *span.mutable_values() = token_values(known.tokens);
  }
  if (samples) request.set_num_samples(*samples);
  if (time_limit_seconds) {
    const double whole = std::floor(*time_limit_seconds);
    request.mutable_time_limit()->set_seconds(static_cast<std::int64_t>(whole));
    request.mutable_time_limit()->set_nanos(
        static_cast<std::int32_t>((*time_limit_seconds - whole) * 1e9));
  }
  request.set_log2_probs(format == "jsonl" || log_probs || top_log_probs.value_or(0) > 0);
  request.set_top_log2_probs(top_log_probs.value_or(0));
  request.set_echo_prompt(echo);
  return request;
}

namespace {

// The default limit where a sequence has no end of its own: as long as a user likes to wait.
constexpr std::uint32_t kDefaultNewTokens = 256;

// The format of printed tokens: --format, or the one that suits the model. Throws UsageError.
std::string format_for(const GenerateFlags& flags, const v1::Model& model) {
  const bool bytes = model.modality() == "bytes";
  if (flags.format == "text" && !bytes && model.tokenizer().empty()) {
    throw UsageError("--format text: this model's tokens are no text; use tokens or jsonl");
  }
  // A session is continued in text, also without a prompt, unless ids are what was given.
  const bool in_session = !flags.session_id.empty() && !flags.prompt_tokens && !flags.log_probs;
  const bool has_text =
      bytes || (!model.tokenizer().empty() &&
                (flags.prompt || flags.prompt_file || flags.interactive || in_session));
  const std::string format = !flags.format.empty() ? flags.format : has_text ? "text" : "tokens";
  if (flags.log_probs && format == "text") {
    throw UsageError("--log-probs goes with --format tokens or jsonl");
  }
  return format;
}

// Most tokens of what has no end.
std::uint32_t default_new_tokens(const v1::Model& model) {
  const std::uint32_t limit = model.limits().max_new_tokens();
  return limit == 0 ? kDefaultNewTokens : std::min(limit, kDefaultNewTokens);
}

constexpr const char* kGenerateFooter = R"(
Examples:
  lintel generate --prompt "Once upon a time" --max-new-tokens 200 --temperature 0.8
  lintel generate --prompt-tokens 0,0,12 --max-new-tokens 16 --seed 7 --format jsonl
  lintel generate --prompt-file story.txt --stop '\n\n' --stop 'THE END' --include-stop
  lintel generate --interactive --temperature 0.7
  lintel generate --max-new-tokens 783 --given 100=0,0,255 --samples 4 --format jsonl

jsonl has per sample: tokens (sampled and given ones), of models with a tokenizer text (what is no UTF-8
is U+FFFD there), log2_probs (base 2, parallel to tokens, of the
model before temperature and filters, null where a token has none), finish_reason (length, stop_token,
stop_string, end_of_sequence, cancelled, deadline), seed, first_position, counts (prompt_tokens,
reused_tokens, generated_tokens, given_tokens, position; drafted_tokens and accepted_tokens of the
server's speculation) and timings; in a window also window, window_restarts and skipped_tokens (of the
prompt, which no token depends on); where asked for also prompt, prompt_log2_probs, top,
given_positions. Floats have the digits that read back exactly.

On a terminal the last line on standard error says how fast it was: tokens a second from the first to
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
  const bool text = flags.prompt || flags.prompt_file || flags.interactive;
  return choose_model(client, model, text ? "bytes" : "", console.cancellation());
}

}  // namespace

std::string window_note(std::int64_t window) {
  const std::string size = std::to_string(window);
  return "lintel: text longer than what the model was trained on continues in a window of " + size +
         " tokens (--window " + size + "; --window 0: none)\n";
}

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
  if (!view.print.is_bytes && !model.tokenizer().empty()) {
    request.set_token_bytes(view.print.format != "tokens");
  } else if (!view.print.is_bytes && flags.prompt_file) {  // its bytes, each one a token
    std::vector<std::int32_t> ids;
    for (const char byte : request.prompt().text()) ids.push_back(static_cast<unsigned char>(byte));
    *request.mutable_prompt() = token_values(ids);
  }
  view.patience = std::chrono::milliseconds(static_cast<std::int64_t>(flags.retry_seconds * 1000));
  view.quiet = flags.quiet;
  view.shows_speed = flags.stats || (!flags.quiet && console.err_is_terminal());
  // The only one that reads text, of several: to be named, unless the session names it.
  if ((flags.prompt || flags.prompt_file) && flags.session_id.empty()) {
    request.set_model(model.name());
  }
  const bool needs_limit = !flags.max_new_tokens && !model.has_image();  // an image has an end
  if (needs_limit) request.set_max_new_tokens(default_new_tokens(model));
  if (flags.interactive) {
    view.shows_speed = flags.stats;  // a sequence of turns shows it on request
    return run_interactive({client, flags, model, view}, std::move(request), console);
  }
  const auto finishes = generate_in_view(client, request, view, console, console.cancellation());
  const bool is_default = !flags.fields.given().has_window() && flags.session_id.empty();
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
                " tokens; --max-new-tokens N asks for another number\n");
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
