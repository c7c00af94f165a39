#include "server/models/adapter_sources.h"

#include <algorithm>
#include <system_error>

#include "server/models/model_repository.h"

namespace lintel {

std::vector<AdapterSource> adapters_in(const std::filesystem::path& model_directory) {
  std::vector<AdapterSource> found;
  if (model_directory.empty()) return found;
  std::error_code error;
  std::filesystem::directory_iterator it(model_directory / "adapters", error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    std::error_code unreadable;
    const std::string name = it->path().filename().string();
    if (is_model_name(name) && it->is_directory(unreadable)) found.push_back({name, it->path()});
  }
  std::ranges::sort(found, {}, &AdapterSource::name);
  return found;
}

}  // namespace lintel
