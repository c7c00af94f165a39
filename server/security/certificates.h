// SPDX-License-Identifier: Apache-2.0
// Certificates: the server's certificate and trusted authorities, read again when files change.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "server/core/file_stamp.h"
#include "server/core/mutex.h"

namespace lintel {

struct CertificatePaths {
  std::filesystem::path certificate;  // PEM: the server's certificate, then its intermediates
  std::filesystem::path key;          // PEM, of that certificate, not encrypted
  std::filesystem::path client_ca;    // PEM: authorities of clients; empty: no certificates needed
};

// The files' content, checked: PEM that parses, a key that belongs to the certificate.
struct CertificateBundle {
  std::string certificate, key, client_ca;
};

// Thread-safe. Connections use the certificate that was current at their handshake; a change
// affects no open one.
class Certificates {
 public:
  // Throws std::runtime_error naming the file and its fault.
  explicit Certificates(CertificatePaths paths);

  // Reads the files if one has changed. Files that are invalid or cannot be read are logged, once
  // for each change, and the present bundle stays; they are tried again the next time. Returns true
  // if there is a new bundle.
  bool reload_if_changed() EXCLUDES(mutex_);

  bool needs_client_certificate() const { return !paths_.client_ca.empty(); }
  CertificateBundle current(std::uint64_t* version) const EXCLUDES(mutex_);
  // Counts the changes, from 1.
  std::uint64_t version() const EXCLUDES(mutex_);

 private:
  using Stamps = std::array<FileStamp, 3>;
  Stamps stamps() const;

  const CertificatePaths paths_;
  mutable Mutex mutex_;
  CertificateBundle bundle_ GUARDED_BY(mutex_);
  Stamps stamps_ GUARDED_BY(mutex_);                 // of the files when they were read
  std::optional<Stamps> failed_ GUARDED_BY(mutex_);  // of the files whose error was logged
  std::uint64_t version_ GUARDED_BY(mutex_) = 0;
};

// Throws std::runtime_error.
CertificateBundle read_certificates(const CertificatePaths& paths);

}  // namespace lintel
