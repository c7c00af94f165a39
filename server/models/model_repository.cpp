// SPDX-License-Identifier: Apache-2.0
#include "server/models/model_repository.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>

#include "model/core/errors.h"
#include "model/model_files.h"

namespace lintel {
namespace {

// Calls visit(name, path) for every entry of `directory`; none if that cannot be read.
template <typename Visit>
void for_each_entry(const std::filesystem::path& directory, const Visit& visit) {
  std::error_code error;
  std::filesystem::directory_iterator it(directory, error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    visit(it->path().filename().string(), it->path());
  }
}

template <typename Visit>
void for_each_directory(const std::filesystem::path& directory, const Visit& visit) {
  for_each_entry(directory, [&](const std::string& name, const std::filesystem::path& path) {
    std::error_code unreadable;
    if (std::filesystem::is_directory(path, unreadable)) visit(name, path);
  });
}

// "NAME" of NAME.gguf, or of the first of its parts; empty for other files.
std::string name_of_gguf(const std::string& file) {
  constexpr std::string_view kEnding = ".gguf";
  if (!file.ends_with(kEnding) || file.starts_with("mmproj")) return {};
  const std::string stem = file.substr(0, file.size() - kEnding.size());
  const std::size_t part = stem.find("-00001-of-");
  const bool is_later = part == std::string::npos && stem.find("-of-") != std::string::npos;
  return is_later ? std::string() : stem.substr(0, part);
}

// "ORG/NAME" of models--ORG--NAME; empty for other directories.
std::string name_of_cached(const std::string& directory) {
  constexpr std::string_view kBeginning = "models--";
  if (!directory.starts_with(kBeginning)) return {};
  std::string name = directory.substr(kBeginning.size());
  const std::size_t between = name.find("--");
  if (between == std::string::npos) return name;
  return name.replace(between, 2, "/");
}

// The main snapshot of a directory of the cache. Empty: there is none, or several of which none is
// the main one.
std::filesystem::path main_snapshot(const std::filesystem::path& cached) {
  std::ifstream ref(cached / "refs" / "main");
  std::string commit;
  std::vector<std::filesystem::path> snapshots;
  if (!(ref >> commit)) commit.clear();
  for_each_directory(cached / "snapshots",
                     [&](const std::string& name, const std::filesystem::path& path) {
                       if (commit.empty() || name == commit) snapshots.push_back(path);
                     });
  return snapshots.size() == 1 ? snapshots.front() : std::filesystem::path();
}

// The models in a directory of the cache.
std::vector<ModelSource> cached_models(const std::string& directory,
                                       const std::filesystem::path& path) {
  std::vector<ModelSource> found;
  const std::string name = name_of_cached(directory);
  if (!is_repository_name(name)) return found;
  for (const std::filesystem::path& folder : {path, path / "snapshots"}) {
    if (is_unreadable_model(folder)) return {{.name = name, .directory = folder}};
  }
  const std::filesystem::path snapshot = main_snapshot(path);
  if (snapshot.empty()) return found;
  if (is_model_directory(snapshot) || is_unreadable_model(snapshot)) {
    return {{.name = name, .directory = snapshot}};
  }
  for_each_entry(snapshot, [&](const std::string& file, const std::filesystem::path& gguf) {
    const std::string stem = name_of_gguf(file);
    if (stem.empty()) return;
    const std::string quant = stem.substr(stem.find_last_of("-.") + 1);
    found.push_back({.name = name + ":" + quant, .directory = gguf});
  });
  return found;
}

}  // namespace

std::vector<ModelSource> ModelRepository::sources_of(std::string_view name) const {
  std::vector<ModelSource> found;
  if (directory_.empty() || !is_repository_name(name)) return found;
  for_each_entry(directory_, [&](const std::string& entry, const std::filesystem::path& path) {
    std::error_code unreadable;
    if (!std::filesystem::is_directory(path, unreadable)) {
      if (name_of_gguf(entry) == name) found.push_back({std::string(name), 1, path});
      return;
    }
    for (ModelSource& cached : cached_models(entry, path)) {
      if (cached.name == name) found.push_back(std::move(cached));
    }
    if (entry != name) return;
    const std::size_t before = found.size();
    for_each_directory(path, [&](const std::string& number, const std::filesystem::path& version) {
      if (const auto parsed = parse_model_version(number))
        found.push_back({entry, *parsed, version});
    });
    if (found.size() == before) found.push_back({entry, 1, path});
  });
  // Files of one version are sorted by the length of their names.
  std::ranges::sort(found, {}, [](const ModelSource& source) {
    const std::string path = source.directory.string();
    return std::tuple(source.version, path.size(), path);
  });
  return found;
}

std::vector<ModelSource> ModelRepository::versions(std::string_view name) const {
  std::vector<ModelSource> found = sources_of(name);
  const auto same = std::ranges::unique(found, {}, &ModelSource::version);
  found.erase(same.begin(), same.end());
  return found;
}

std::vector<ModelRepository::Unused> ModelRepository::unused() const {
  std::vector<Unused> unused;
  for (const std::string& name : names()) {
    const std::vector<ModelSource> found = sources_of(name);
    for (std::size_t i = 1, used = 0; i < found.size(); ++i) {
      if (found[i].version != found[used].version) {
        used = i;
      } else {
        unused.push_back({name, found[used].directory, found[i].directory});
      }
    }
  }
  return unused;
}

std::vector<std::string> ModelRepository::names() const {
  std::vector<std::string> found;
  if (directory_.empty()) return found;
  for_each_entry(directory_, [&](const std::string& entry, const std::filesystem::path& path) {
    std::error_code unreadable;
    if (!std::filesystem::is_directory(path, unreadable)) {
      if (std::string name = name_of_gguf(entry); is_model_name(name)) {
        found.push_back(std::move(name));
      }
      return;
    }
    std::vector<ModelSource> cached = cached_models(entry, path);
    for (ModelSource& source : cached) found.push_back(std::move(source.name));
    if (!is_model_name(entry)) return;
    bool is_model = is_model_directory(path) || (cached.empty() && is_unreadable_model(path));
    for_each_directory(path, [&](const std::string& number, const std::filesystem::path&) {
      is_model = is_model || parse_model_version(number).has_value();
    });
    if (is_model) found.push_back(entry);
  });
  std::ranges::sort(found);
  found.erase(std::ranges::unique(found).begin(), found.end());
  return found;
}

std::string ModelRepository::without_path(std::string text) const {
  const std::string prefix = (directory_ / "").string();
  if (directory_.empty()) return text;
  for (std::size_t at = 0; (at = text.find(prefix, at)) != std::string::npos;) {
    text.erase(at, prefix.size());
  }
  return text;
}

bool is_model_name(std::string_view name) {
  if (name.empty() || name.size() > 128 || name.front() == '.') return false;
  return std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
}

bool is_repository_name(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos) return is_model_name(name);
  const std::string_view in_org = name.substr(slash + 1);
  const std::size_t colon = in_org.find(':');
  return name.size() <= 128 && is_model_name(name.substr(0, slash)) &&
         is_model_name(in_org.substr(0, colon)) &&
         (colon == std::string_view::npos || is_model_name(in_org.substr(colon + 1)));
}

bool is_model_path(const std::filesystem::path& path) {
  std::error_code unreadable;
  return std::filesystem::is_directory(path, unreadable)
             ? is_model_directory(path) || is_unreadable_model(path)
             : path.extension() == ".gguf";
}

bool is_unreadable_model(const std::filesystem::path& path) {
  const auto is_denied = [](const std::filesystem::path& opened) {
    const int file = ::open(opened.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return errno == EACCES;
    ::close(file);
    return false;
  };
  return is_denied(path) || is_denied(path / "config.json");
}

std::optional<std::int64_t> parse_model_version(std::string_view text) {
  std::int64_t version = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (version < 1 || text.front() == '0') return std::nullopt;
  return version;
}

std::vector<ModelSource> start_sources(const ModelOptions& options,
                                       const ModelRepository& repository) {
  std::vector<ModelSource> sources;
  for (const auto& model : options.directories) sources.push_back({model.name, 1, model.path});
  std::vector<std::string> names = options.load;
  if (std::ranges::find(names, "*") != names.end()) {
    names = repository.names();
    for (const auto& model : options.directories) {
      if (std::ranges::find(names, model.name) == names.end()) continue;
      throw ModelError("--load-model '*': model " + model.name + " of " +
                       options.models_directory().string() + " is given by --model, too");
    }
  }
  for (const std::string& name : names) {
    const std::vector<ModelSource> versions = repository.versions(name);
    if (versions.empty()) {
      throw ModelError("--load-model " + name + ": no such model in " +
                       options.models_directory().string());
    }
    sources.push_back(versions.back());
  }
  return sources;
}

}  // namespace lintel
