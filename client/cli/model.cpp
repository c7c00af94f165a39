// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/model_choice.h"
#include "client/cli/output.h"
#include "client/lib/client.h"
#include "model/core/json_reader.h"

namespace lintel::cli {
namespace {

constexpr std::size_t kShortFingerprint = 12;  // as many digits tell two apart

constexpr const char* kAdapterFooter = R"(
Examples:
  lintel model load-adapter thin-strokes --token @admin.token
  lintel generate --adapter thin-strokes --samples 4
  lintel model unload-adapter thin-strokes --model mnist-linear --token @admin.token)";

struct AdapterFlags {
  ConnectionFlags connection;
  std::string name;
  std::string model_version;
  bool json = false;
};

// LoRA adapters of a model.

// "thin-strokes: rank 8, 12 modules, 147456 bytes, fingerprint 0123456789ab"
std::string adapter_text(const v1::Adapter& adapter) {
  return adapter.name() + ": rank " + std::to_string(adapter.rank()) + ", " +
         std::to_string(adapter.modules()) + " modules, " + std::to_string(adapter.bytes()) +
         " bytes, fingerprint " + adapter.fingerprint().substr(0, kShortFingerprint);
}

void write_adapter(JsonWriter& json, const v1::Adapter& adapter) {
  json.begin_object();
  json.field("name", adapter.name()).field("rank", adapter.rank());
  json.field("modules", adapter.modules()).field("bytes", adapter.bytes());
  json.field("fingerprint", adapter.fingerprint());
  json.end_object();
}

int run_load_adapter(const AdapterFlags& flags, Console& console) {
  const Client client = flags.connection.connect();
  const v1::Adapter adapter = with_load_hint(client, console.cancellation(), [&] {
    return client.load_adapter(flags.name, flags.connection.model, flags.model_version,
                               &console.cancellation());
  });
  console.out(flags.json ? json_line(write_adapter, adapter) : adapter_text(adapter) + "\n");
  return kOk;
}

int run_unload_adapter(const AdapterFlags& flags, Console& console) {
  flags.connection.connect().unload_adapter(flags.name, flags.connection.model, flags.model_version,
                                            &console.cancellation());
  console.out(flags.name + " is unloaded\n");
  return kOk;
}

void add_model_adapters(CLI::App& model, CommandLine& command_line) {
  auto flags = std::make_shared<AdapterFlags>();
  const auto add = [&](const char* name, const char* help,
                       int (*run)(const AdapterFlags&, Console&)) {
    CLI::App* const sub = model.add_subcommand(name, help);
    sub->add_option("NAME", flags->name, "The adapter")->required();
    sub->add_option("--model-version", flags->model_version,
                    "Of this version of the model; default: the highest that is loaded");
    sub->footer(kAdapterFooter);
    flags->connection.add_to(*sub);
    on_chosen(*sub, command_line,
              [flags, run, &command_line] { return run(*flags, command_line.console); });
    return sub;
  };
  CLI::App* const load =
      add("load-adapter",
          "Load a LoRA adapter for a model that is served, from adapters/NAME/ in the model's "
          "directory or where the server's --adapter says; answers when requests can name it. "
          "Needs the role admin: see lintel admin --help",
          run_load_adapter);
  load->add_flag("--json", flags->json, "Print an object");
  add("unload-adapter",
      "Take a LoRA adapter out of service; answers when what uses it has ended, its sessions "
      "included, or was ended after the server's drain timeout. Needs the role admin: see lintel "
      "admin --help",
      run_unload_adapter);
}

constexpr const char* kModelFooter = R"(
Examples:
  lintel model list
  lintel model list --all
  lintel model get mnist-linear --json
  lintel model load mnist-linear --token @admin.token
  lintel model unload mnist-linear --version 1 --token @admin.token
  lintel model load-adapter thin-strokes --model mnist-linear --token @admin.token)";

struct ModelFlags {
  ConnectionFlags connection;
  std::string name;
  std::string version;
  bool all = false;
  bool json = false;
};

void write_limits(JsonWriter& json, const v1::ModelLimits& limits) {
  json.begin_object();
  json.field("max_prompt_tokens", limits.max_prompt_tokens());
  json.field("max_new_tokens", limits.max_new_tokens());
  json.field("max_samples", limits.max_samples());
  json.field("max_top_log2_probs", limits.max_top_log2_probs());
  json.field("max_stop_strings", limits.max_stop_strings());
  json.field("max_stop_string_bytes", limits.max_stop_string_bytes());
  json.field("max_given_tokens", limits.max_given_tokens());
  json.field("max_score_tokens", limits.max_score_tokens());
  json.end_object();
}

// "ready"
std::string state_of(const v1::Model& model) {
  switch (model.state()) {
    case v1::MODEL_STATE_LOADING:
      return "loading";
    case v1::MODEL_STATE_READY:
      return "ready";
    case v1::MODEL_STATE_UNLOADING:
      return "unloading";
    case v1::MODEL_STATE_UNAVAILABLE:
      return "unavailable";
    default:  // of a server that does not tell: it lists what it serves
      return "";
  }
}

// "ready", "loads on request", "failed": what becomes of a request that names it.
std::string use_of(const v1::Model& model) {
  if (model.state() != v1::MODEL_STATE_UNAVAILABLE) return state_of(model);
  if (model.load_failed()) return "failed";
  return model.loads_on_request() ? "loads on request" : "not loaded";
}

// The server describes the rest of a loaded model only.
bool is_loaded(const v1::Model& model) {
  return model.state() == v1::MODEL_STATE_READY || model.state() == v1::MODEL_STATE_UNSPECIFIED;
}

void write_model(JsonWriter& json, const v1::Model& model) {
  json.begin_object();
  json.field("name", model.name()).field("version", model.version());
  json.field("state", state_of(model));
  if (!model.reason().empty()) json.field("reason", model.reason());
  if (!is_loaded(model)) {
    json.end_object();
    return;
  }
  json.field("modality", model.modality());
  if (model.has_image()) {
    const v1::ImageShape& image = model.image();
    json.key("image").begin_object();
    json.field("height", image.height()).field("width", image.width());
    json.field("channels", image.channels());
    if (image.has_start_token()) json.field("start_token", image.start_token());
    json.end_object();
  }
  json.field("head", model.head()).field("attention", model.attention());
  json.field("vocab_size", model.vocab_size()).field("max_length", model.max_length());
  if (model.trained_length() > 0) json.field("trained_length", model.trained_length());
  json.field("parameters", model.parameters()).field("weight_type", model.weight_type());
  if (!model.weight_type_reason().empty()) {
    json.field("weight_type_reason", model.weight_type_reason());
  }
  json.field("kernels", model.kernels());
  json.field("weight_bytes", model.weight_bytes()).field("state_bytes", model.state_bytes());
  if (model.state_bytes_per_value() > 0) {
    json.field("state_bytes_per_value", model.state_bytes_per_value());
  }
  if (!model.kv_type().empty()) {
    json.field("kv_type", model.kv_type()).field("kv_session_bytes", model.kv_session_bytes());
    json.field("kv_token_bytes", model.kv_token_bytes());
  }
  json.field("constant_state", model.constant_state());
  if (model.room_sessions() > 0) {
    json.field("room_sessions", model.room_sessions());
    json.field("room_session_tokens", model.room_session_tokens());
    json.field("room_tokens", model.room_tokens());
  }
  json.field("fingerprint", model.fingerprint());
  json.field("numerics", model.numerics()).field("numerics_text", model.numerics_text());
  json.field("workers", model.workers()).field("max_batch_rows", model.max_batch_rows());
  if (model.prompt_rows() > 0) json.field("prompt_rows", model.prompt_rows());
  json.key("limits");
  write_limits(json, model.limits());
  json.key("warnings").begin_array();
  for (const std::string& warning : model.warnings()) json.value(warning);
  json.end_array();
  json.key("adapters").begin_array();
  for (const v1::Adapter& adapter : model.adapters()) write_adapter(json, adapter);
  json.end_array();
  // Prints it as an object; it must not break the line that standard output holds.
  JsonFailure failure;
  const auto config = read_json_tree(model.config_json(), {}, failure);
  json.key("config");
  config ? json.raw(config->dump()) : json.null();
  json.end_object();
}

// "68608 bytes, constant"
std::string state_text(const v1::Model& model) {
  if (model.state_bytes_per_value() > 0) {
    return std::to_string(model.state_bytes_per_value()) + " bytes a token, growing without an end";
  }
  // The server does not report how much a token adds to this state.
  if (model.state_bytes() == 0 && !model.constant_state()) return "growing without an end";
  if (const int points = model.state_growth_size(); points > 1) {
    const v1::StatePoint& first = model.state_growth(0);
    const v1::StatePoint& last = model.state_growth(points - 1);
    const std::int64_t per_token = (last.bytes() - first.bytes()) / last.position();
    return std::to_string(first.bytes()) + " bytes and about " + std::to_string(per_token) +
           " a token, at most " + std::to_string(last.bytes()) + " bytes";
  }
  return std::to_string(model.state_bytes()) + " bytes" +
         (model.constant_state() ? ", constant" : ", at its largest");
}

// "34 sessions of 8192 tokens, or one of 262144 tokens"
std::string room_text(const v1::Model& model) {
  const auto tokens = [](std::int64_t count) {
    return count == 0 ? std::string("any length") : std::to_string(count) + " tokens";
  };
  return std::to_string(model.room_sessions()) + " sessions of " +
         tokens(model.room_session_tokens()) + ", or one of " + tokens(model.room_tokens());
}

// "68608", "6144 a token"
std::string state_cell(const v1::Model& model) {
  if (model.state_bytes_per_value() > 0) {
    return std::to_string(model.state_bytes_per_value()) + " a token";
  }
  if (model.state_bytes() == 0 && !model.constant_state()) return "growing";
  return std::to_string(model.state_bytes());
}

std::string describe(const v1::Model& model) {
  std::vector<std::vector<std::string>> rows = {
      {"name", model.name()},
      {"version", model.version()},
      {"modality", model.modality()},
  };
  if (model.has_image()) {
    const v1::ImageShape& image = model.image();
    rows.push_back({"image", std::to_string(image.height()) + "x" + std::to_string(image.width()) +
                                 ", " + std::to_string(image.channels()) + " channel(s)"});
  }
  const std::vector<std::vector<std::string>> more = {
      {"head", model.head()},
      {"attention", model.attention()},
      {"vocabulary", std::to_string(model.vocab_size())},
      {"max length",
       model.max_length() == 0 ? "unbounded" : std::to_string(model.max_length()) + " positions"},
      {"trained length", model.trained_length() == 0
                             ? "unknown"
                             : std::to_string(model.trained_length()) + " tokens"},
      {"parameters", std::to_string(model.parameters())},
      {"weights", model.weight_type() + ", " + std::to_string(model.weight_bytes()) + " bytes"},
      {"why", model.weight_type_reason().empty()
                  ? "set by --weight-type, or a model too small to get faster"
                  : model.weight_type_reason()},
      {"kernels", model.kernels()},
      {"session state", state_text(model)},
      {"fingerprint", model.fingerprint()},
      {"numerics", model.numerics()},
      {"computed by", model.numerics_text()},
      {"workers",
       std::to_string(model.workers()) + " of " + std::to_string(model.max_batch_rows()) + " rows" +
           (model.prompt_rows() > 0 ? ", prompts " + std::to_string(model.prompt_rows()) + " a step"
                                    : "")},
      {"prompt", "at most " + std::to_string(model.limits().max_prompt_tokens()) + " tokens"},
      {"new tokens", "at most " + std::to_string(model.limits().max_new_tokens())},
      {"samples", "at most " + std::to_string(model.limits().max_samples())},
  };
  rows.insert(rows.end(), more.begin(), more.end());
  const auto state_row = [&] {
    return std::ranges::find_if(
        rows, [](const std::vector<std::string>& row) { return row.front() == "session state"; });
  };
  if (model.room_sessions() > 0) rows.insert(state_row() + 1, {"memory for", room_text(model)});
  if (!model.kv_type().empty()) {
    const auto state = state_row();
    rows.insert(state + 1,
                {"KV cache", model.kv_type() + ", " + std::to_string(model.kv_session_bytes()) +
                                 " bytes a session and " + std::to_string(model.kv_token_bytes()) +
                                 " a token"});
  }
  for (const v1::Adapter& adapter : model.adapters()) {
    rows.push_back({"adapter", adapter_text(adapter)});
  }
  for (const std::string& warning : model.warnings()) rows.push_back({"warning", warning});
  return format_table(rows) + "\n" + model.config_json() + "\n";
}

int run_list_models(const ModelFlags& flags, Console& console) {
  const Client client = flags.connection.connect();
  std::vector<v1::Model> models = client.list_all_models(&console.cancellation());
  if (!flags.all) {
    std::erase_if(models, [](const v1::Model& model) {
      return !is_loaded(model) && !model.loads_on_request();
    });
  }
  if (flags.json) {
    console.out(json_array_line(write_model, models));
    return kOk;
  }
  if (flags.all) {
    std::vector<std::vector<std::string>> rows = {{"NAME", "VERSION", "STATE", "REASON"}};
    for (const v1::Model& model : models) {
      rows.push_back({model.name(), model.version(), use_of(model), model.reason()});
    }
    console.out(format_table(rows));
    return kOk;
  }
  std::vector<std::vector<std::string>> rows = {{"NAME", "VERSION", "STATE", "MODALITY", "HEAD",
                                                 "ATTENTION", "PARAMETERS", "WEIGHTS", "MAX LENGTH",
                                                 "TRAINED LENGTH", "STATE BYTES"}};
  std::string reasons;
  for (const v1::Model& model : models) {
    if (!is_loaded(model)) {
      rows.push_back({model.name(), model.version(), use_of(model)});
      if (model.load_failed()) reasons += model.name() + ": " + model.reason() + "\n";
      continue;
    }
    rows.push_back(
        {model.name(), model.version(), "ready", model.modality(), model.head(), model.attention(),
         std::to_string(model.parameters()), model.weight_type(),
         model.max_length() == 0 ? "unbounded" : std::to_string(model.max_length()),
         model.trained_length() == 0 ? "unknown" : std::to_string(model.trained_length()),
         state_cell(model)});
  }
  console.out(format_table(rows) + (reasons.empty() ? "" : "\n" + reasons));
  return kOk;
}

int run_get_model(const ModelFlags& flags, Console& console) {
  const std::string& name = flags.name.empty() ? flags.connection.model : flags.name;
  const Client client = flags.connection.connect();
  const v1::Model model = with_load_hint(client, console.cancellation(), [&] {
    return client.get_model(name, &console.cancellation());
  });
  console.out(flags.json ? json_line(write_model, model) : describe(model));
  return kOk;
}

int run_load(const ModelFlags& flags, Console& console) {
  const v1::Model model =
      flags.connection.connect().load_model(flags.name, flags.version, &console.cancellation());
  console.out(flags.json ? json_line(write_model, model)
                         : model.name() + " version " + model.version() + " is ready\n");
  return kOk;
}

int run_unload(const ModelFlags& flags, Console& console) {
  flags.connection.connect().unload_model(flags.name, flags.version, &console.cancellation());
  console.out(flags.name + (flags.version.empty() ? "" : " version " + flags.version) +
              " is unloaded\n");
  return kOk;
}

}  // namespace

void add_model(CLI::App& app, CommandLine& command_line) {
  auto flags = std::make_shared<ModelFlags>();
  CLI::App* command = app.add_subcommand("model", "Show what is being served, and change it");
  command->require_subcommand(1);
  command->footer(kModelFooter);
  // Adds the part that all of them have after their own flags. json_help: null: no --json.
  const auto finish = [&](CLI::App* sub, const char* json_help, bool with_model,
                          int (*run)(const ModelFlags&, Console&)) {
    sub->footer(kModelFooter);
    if (json_help != nullptr) sub->add_flag("--json", flags->json, json_help);
    flags->connection.add_to(*sub, with_model);
    on_chosen(*sub, command_line,
              [flags, run, &command_line] { return run(*flags, command_line.console); });
  };

  CLI::App* list = command->add_subcommand(
      "list",
      "All models that requests can name, those that a request loads included (--models), "
      "with what keeps one from being loaded");
  list->add_flag("--all", flags->all,
                 "Also what is being unloaded, failed to load, was unloaded, or could be loaded");
  finish(list, "Print an array of objects", /*with_model=*/false, run_list_models);

  CLI::App* get = command->add_subcommand("get", "One model, all about it");
  get->add_option("NAME", flags->name, "The model; needless when one is loaded");
  finish(get, "Print an object", /*with_model=*/true, run_get_model);

  CLI::App* load = command->add_subcommand(
      "load",
      "Load or reload a model of the server's --model-repository; answers when it is ready. "
      "Needs the role admin: see lintel admin --help. Several servers behind one address: it "
      "reaches one of them, and lasts until that starts again");
  load->add_option("NAME", flags->name, "Its directory in the repository")->required();
  load->add_option("--version", flags->version,
                   "Load this version beside the others; default: the newest, in place of what is "
                   "loaded, which serves until then. Requests of lintel.v1 get the newest that is "
                   "loaded; the Open Inference Protocol's can name another in model_version");
  finish(load, "Print an object", /*with_model=*/false, run_load);

  CLI::App* unload = command->add_subcommand(
      "unload",
      "Take a model out of service; answers when what runs on it has ended, or was ended after the "
      "server's drain timeout. Its sessions are closed. One that the server was started with comes "
      "back at its next start. Needs the role admin: see lintel admin --help");
  unload->add_option("NAME", flags->name, "The model")->required();
  unload->add_option("--version", flags->version, "This version alone; default: all");
  finish(unload, nullptr, /*with_model=*/false, run_unload);
  add_model_adapters(*command, command_line);
}

}  // namespace lintel::cli
