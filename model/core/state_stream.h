// Where the state of a sequence is written to, and where it is read from again.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

namespace lintel {

// One thread's. What it throws leaves the state as it was.
class StateWriter {
 public:
  virtual ~StateWriter() = default;

  template <typename T>
  void values(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    write(std::as_bytes(values));
  }
  template <typename T>
  void value(const T& value) {
    values(std::span<const T>(&value, 1));
  }

 private:
  virtual void write(std::span<const std::byte> bytes) = 0;
};

// Reads what a StateWriter wrote, in the same pieces. One thread's.
class StateReader {
 public:
  virtual ~StateReader() = default;

  template <typename T>
  void values(std::span<T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    read(std::as_writable_bytes(values));
  }
  template <typename T>
  T value() {
    T value{};
    values(std::span<T>(&value, 1));
    return value;
  }

 private:
  // Fills `bytes`. Throws ModelError where there are not as many.
  virtual void read(std::span<std::byte> bytes) = 0;
};

}  // namespace lintel
