#include "server/core/random_bytes.h"

#include <sys/random.h>

#include <cerrno>
#include <system_error>

namespace lintel {

void fill_with_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = getrandom(bytes.data(), bytes.size(), 0);
    if (n < 0 && errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), "getrandom");
    }
    if (n > 0) bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

}  // namespace lintel
