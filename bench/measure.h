// Repeated measurement, on as many threads as the run has workers.
#pragma once

#include <functional>
#include <vector>

#include "bench/statistics.h"

namespace lintel::bench {

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

}  // namespace lintel::bench
