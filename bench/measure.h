// SPDX-License-Identifier: Apache-2.0
// Repeated measurement, on as many threads as the run has workers.
#pragma once

#include <stdlib.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <vector>

#include "client/image/image.h"
#include "model/transformer.h"

namespace lintel::bench {

// Summaries of repeated measurements: the median and the distance between them.

struct Summary {
  double median = 0;
  double least = 0;
  double most = 0;
  int count = 0;  // of measurements

  bool operator==(const Summary&) const = default;
};

// REQUIRES: not empty, no NaN. The median of an even number is the mean of the middle two.
Summary summarize(std::vector<double> values);

// The value below or at which a share of `values` lies, by linear interpolation between ranks.
// REQUIRES: not empty; 0 <= share <= 1.
double quantile(std::vector<double> values, double share);

double median(std::vector<double> values);

// The summary of a quantity that is factor / measured, e.g. images a second from seconds. REQUIRES:
// factor > 0, all measured > 0.
Summary quotient(double factor, const Summary& measured);

// The summary of a quantity that is measured / divisor.
Summary divided(const Summary& measured, double divisor);

// Runs work(0) .. work(workers - 1), each on a thread of its own, as the server's workers do.
// Returns the seconds from the first's beginning, when all are ready, to the last's end. What a
// worker throws is thrown once all have ended. REQUIRES: workers >= 1.
double run_on_workers(int workers, const std::function<void(int worker)>& work);

// Summary of `repeats` calls; each returns what it measured. REQUIRES: repeats >= 1.
Summary repeat(int repeats, const std::function<double()>& measure);

// Seconds that `work` takes.
double seconds_of(const std::function<void()>& work);

// CPU that all threads of this process have used until now, in seconds, the system's part included.
double process_cpu_seconds();
// Memory of this process that is in RAM.
std::int64_t resident_bytes();

// A directory of its own in another, gone with this.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::filesystem::path& parent) {
    std::string name = (parent / "lintel-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), parent.string());
    }
    path_ = name;
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Bits/dim of images under a model.

// Mean of -log2 p over every pixel after the first of every image. Throws cli::Failure when the
// images are not of the model's size.
double bits_per_dim(const Transformer& model, const std::vector<GrayImage>& images, int workers);

}  // namespace lintel::bench
