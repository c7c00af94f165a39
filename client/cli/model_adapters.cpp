#include "client/cli/model_adapters.h"

#include <memory>

#include "client/cli/commands.h"
#include "client/cli/model_choice.h"

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

int run_load_adapter(const AdapterFlags& flags, Console& console) {
  const Client client = flags.connection.connect();
  const v1::Adapter adapter = with_load_hint(client, console.cancellation(), [&] {
    return client.load_adapter(flags.name, flags.connection.model, flags.model_version,
                               &console.cancellation());
  });
  if (flags.json) {
    JsonWriter json;
    write_adapter(json, adapter);
    console.out(json.take() + "\n");
  } else {
    console.out(adapter_text(adapter) + "\n");
  }
  return kOk;
}

int run_unload_adapter(const AdapterFlags& flags, Console& console) {
  flags.connection.connect().unload_adapter(flags.name, flags.connection.model, flags.model_version,
                                            &console.cancellation());
  console.out(flags.name + " is unloaded\n");
  return kOk;
}

}  // namespace

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

void add_model_adapters(CLI::App& model, CommandLine& command_line) {
  auto flags = std::make_shared<AdapterFlags>();
  const auto add = [&](const char* name, const char* help) {
    CLI::App* const sub = model.add_subcommand(name, help);
    sub->add_option("NAME", flags->name, "The adapter")->required();
    sub->add_option("--model-version", flags->model_version,
                    "Of this version of the model; default: the highest that is loaded");
    sub->footer(kAdapterFooter);
    flags->connection.add_to(*sub);
    return sub;
  };
  CLI::App* const load =
      add("load-adapter",
          "Load a LoRA adapter for a model that is served, from adapters/NAME/ in the model's "
          "directory "
          "or where the server's --adapter says; answers when requests can name it. Needs the role "
          "admin: see lintel admin --help");
  load->add_flag("--json", flags->json, "Print an object");
  on_chosen(*load, command_line,
            [flags, &command_line] { return run_load_adapter(*flags, command_line.console); });
  CLI::App* const unload = add(
      "unload-adapter",
      "Take a LoRA adapter out of service; answers when what uses it has ended, its sessions "
      "included, or was ended after the server's drain timeout. Needs the role admin: see lintel "
      "admin --help");
  on_chosen(*unload, command_line,
            [flags, &command_line] { return run_unload_adapter(*flags, command_line.console); });
}

}  // namespace lintel::cli
