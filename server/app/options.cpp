#include "server/app/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <vector>

#include "server/app/config_file.h"
#include "server/app/flag_errors.h"
#include "server/app/flag_help.h"
#include "server/app/option_checks.h"
#include "server/config/flags.h"
#include "server/core/cores.h"
#include "server/models/packaged_models.h"
#include "tools/describe/flags.h"

namespace lintel {
namespace {

// `options` holds the defaults and takes the values; it outlives the parsing.
void declare(CLI::App& app, const Flag& flag, ServerOptions& options) {
  // What a row refuses is refused under its name.
  const auto set = [&flag, &options](const std::string& text) {
    try {
      flag.set(options, text);
    } catch (const UsageError& error) {
      throw CLI::ValidationError(flag.name, error.what());
    }
  };
  CLI::Option* option = nullptr;
  switch (flag.type) {
    case Flag::Type::kSwitch:
      option = app.add_flag(flag.name, *static_cast<bool*>(flag.member(options)), flag.help);
      break;
    case Flag::Type::kList:
      option = app.add_option_function<std::vector<std::string>>(
          flag.name,
          [set](const std::vector<std::string>& texts) { std::ranges::for_each(texts, set); },
          flag.help);
      break;
    default:
      option = app.add_option_function<std::string>(flag.name, set, flag.help);
      option->default_str(flag.shown(options));
  }
  option->group(flag.group);
  if (!flag.value.empty()) option->type_name(flag.value);
  if (!flag.words.empty()) option->check(describe::offers(flag.words));
  if (!flag.range().empty()) option->check(describe::takes(flag.range()));
}

// What is served where no model is named. Throws UsageError.
void use_packaged_models(ServerOptions& options) {
  for (ModelSource& model : packaged_models(program_directory())) {
    options.models.directories.push_back({std::move(model.name), std::move(model.directory)});
  }
  if (options.models.directories.empty()) {
    throw UsageError(
        "--model is required, or --model-repository: the models of the package are not in "
        "../share/lintel/models next to the program");
  }
  options.serves_packaged_models = true;
  if (!options.http.listen) options.http.listen = ListenAddress{.port = 8080};
}

}  // namespace

bool parse_server_options(int argc, const char* const* argv, ServerOptions* options,
                          std::string* help) {
  ServerOptions parsed;
  parsed.models.scheduling.workers = usable_cores();
  CLI::App app("", "lintel-server");
  app.set_version_flag("--version", "lintel-server " LINTEL_VERSION);
  app.set_config("--config", "",
                 "File with the flags below as keys without the dashes, TOML or INI: workers = 4; "
                 "flags win")
      ->type_name("FILE");
  const std::vector<Flag> flags = server_flags();
  std::vector<std::string> machine_defaults;
  for (const Flag& flag : flags) {
    if (flag.default_of_machine) machine_defaults.push_back(flag.name);
  }
  describe::add_flags(app, machine_defaults);
  const auto config = std::make_shared<ConfigFile>(app);
  app.config_formatter(config);
  for (const Flag& flag : flags) declare(app, flag, parsed);
  lay_out_help(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    *help = app.help();
    return false;
  } catch (const CLI::CallForVersion& text) {  // or a description
    *help = std::string(text.what()) + "\n";
    return false;
  } catch (const CLI::ParseError& error) {
    options->logging.json = asks_for_json(argc, argv, *config);
    throw UsageError(in_words(error, app, *config, argc, argv));
  } catch (const UsageError&) {
    options->logging.json = asks_for_json(argc, argv, *config);
    throw;
  }
  options->logging = parsed.logging;  // also for what is found wrong from here on
  const ModelOptions& models = parsed.models;
  const bool names_no_model =
      models.directories.empty() && models.repository.empty() && models.load.empty();
  if (names_no_model && app.count("--config") == 0) use_packaged_models(parsed);
  check_together(parsed, app.count("--prefill-rows") > 0);
  *options = std::move(parsed);
  return true;
}

}  // namespace lintel
