#include "server/sessions/storage/sqlite/acknowledged.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <bit>
#include <span>
#include <system_error>
#include <utility>

namespace lintel {
namespace {

struct AcknowledgedNote {
  std::int64_t seq = 0;
  std::uint64_t hash = 0;
};
static_assert(std::endian::native == std::endian::little);

}  // namespace

Acknowledged::Acknowledged(std::unique_ptr<VaultFile> file) : file_(std::move(file)) {
  AcknowledgedNote note;
  const auto bytes = std::as_writable_bytes(std::span(&note, 1));
  if (file_->read(0, bytes, {}) == bytes.size() &&
      note.hash == XXH3_64bits(&note.seq, sizeof(note.seq))) {
    found_ = note.seq;
  }
}

void Acknowledged::note(std::int64_t seq) noexcept {
  const AcknowledgedNote note{seq, XXH3_64bits(&seq, sizeof(seq))};
  try {
    file_->write(0, std::as_bytes(std::span(&note, 1)), {});
  } catch (const std::system_error&) {
  }
}

}  // namespace lintel
