// Times as protobuf has them.
#pragma once

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>

#include <chrono>

namespace lintel {

// Timestamp or Duration.
template <typename Wire>
void write_nanoseconds(std::chrono::nanoseconds time, Wire& wire) {
  wire.set_seconds(time.count() / 1'000'000'000);
  wire.set_nanos(static_cast<int>(time.count() % 1'000'000'000));
}

inline void write_duration(std::chrono::nanoseconds duration, google::protobuf::Duration& wire) {
  write_nanoseconds(duration, wire);
}

inline void write_time(std::chrono::system_clock::time_point time,
                       google::protobuf::Timestamp& wire) {
  write_nanoseconds(time.time_since_epoch(), wire);
}

}  // namespace lintel
