// SPDX-License-Identifier: Apache-2.0
#include <zlib.h>

#include <fstream>
#include <random>

#include "client/image/image_file.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

std::string be(std::uint32_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes += static_cast<char>((number >> shift) & 255);
  }
  return bytes;
}

std::string idx(std::uint32_t count, std::uint32_t height, std::uint32_t width,
                const std::string& values) {
  return be(0x00000803) + be(count) + be(height) + be(width) + values;
}

struct Files {
  TemporaryDirectory directory;
  std::filesystem::path write(const std::string& bytes) const {
    const auto file = directory.path() / "images";
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
    return file;
  }
  std::filesystem::path write_gz(const std::string& bytes) const {
    const auto file = directory.path() / "images.gz";
    gzFile out = gzopen(file.c_str(), "wb");
    gzwrite(out, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(out);
    return file;
  }
  std::string bytes_of(const std::filesystem::path& file) const {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

std::string error_of(const std::filesystem::path& file) {
  try {
    read_idx_images(file);
  } catch (const ImageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("IDX labels are read; images, too few and too many labels are refused") {
  Files files;
  const std::string labels = be(0x00000801) + be(3) + std::string("\x07\x00\x09", 3);
  CHECK(read_idx_labels(files.write(labels)) == std::vector<std::uint8_t>{7, 0, 9});
  CHECK(read_idx_labels(files.write_gz(labels)) == std::vector<std::uint8_t>{7, 0, 9});
  CHECK_THROWS_AS(read_idx_labels(files.write(labels.substr(0, 10))), ImageError);
  CHECK_THROWS_AS(read_idx_labels(files.write(labels.substr(0, 6))), ImageError);
  CHECK_THROWS_AS(read_idx_labels(files.write(labels + "x")), ImageError);
  CHECK_THROWS_WITH(read_idx_labels(files.write(idx(1, 1, 1, "a"))),
                    Catch::Contains("file of images"));
}

TEST_CASE("IDX images are read, plain and gzipped") {
  Files files;
  const std::string bytes = idx(2, 2, 3, "abcdef" + std::string("\x00\xff\x01\x02\x03\x04", 6));
  for (const auto& file : {files.write(bytes), files.write_gz(bytes)}) {
    const auto images = read_idx_images(file);
    REQUIRE(images.size() == 2);
    CHECK(images[0].height == 2);
    CHECK(images[0].width == 3);
    CHECK(images[0].pixels == std::vector<std::uint8_t>{'a', 'b', 'c', 'd', 'e', 'f'});
    CHECK(images[1].pixels == std::vector<std::uint8_t>{0, 255, 1, 2, 3, 4});
  }
}

TEST_CASE("a hostile IDX file is refused by name and reason") {
  using Catch::Contains;
  Files files;
  const auto refusal = [&](const std::string& bytes) {
    const auto file = files.write(bytes);
    const std::string error = error_of(file);
    CHECK_THAT(error, Contains(file.string()));
    return error;
  };
  CHECK_THAT(refusal(""), Contains("too short"));
  CHECK_THAT(refusal("Lintel"), Contains("neither IDX nor PNG"));
  CHECK_THAT(refusal("GIF89a"), Contains("a picture in GIF; PNG and MNIST's files (IDX) are read"));
  CHECK_THAT(refusal("\xff\xd8\xff\xe0 JFIF"), Contains("a picture in JPEG"));
  CHECK_THAT(refusal("RIFF\1\2\3\4WEBP"), Contains("a picture in WebP"));
  CHECK_THAT(refusal(be(0x00000801) + be(1) + "x"), Contains("1 dimensions") && Contains("labels"));
  CHECK_THAT(refusal(be(0x00000D03) + be(1) + be(1) + be(1) + "x"), Contains("type 13"));
  CHECK_THAT(refusal(be(0x00000803) + be(1)), Contains("header is truncated"));
  CHECK_THAT(refusal(idx(0, 2, 2, "")), Contains("size of zero"));
  CHECK_THAT(refusal(idx(1, 0, 2, "")), Contains("size of zero"));
  CHECK_THAT(refusal(idx(1, 70000, 1, "")), Contains("too large"));
  CHECK_THAT(refusal(idx(0xffffffff, 65535, 65535, "")), Contains("more than 1 GiB"));
  CHECK_THAT(refusal(idx(60000, 28, 28, "few")), Contains("truncated in image 0"));
  CHECK_THAT(refusal(idx(2, 2, 2, "1234567")), Contains("truncated in image 1"));
  CHECK_THAT(refusal(idx(2, 2, 2, "123456789")), Contains("longer"));
  CHECK_THAT(error_of(files.directory.path() / "missing"), Contains("cannot be opened"));
}

TEST_CASE("a damaged or truncated gzip stream is refused") {
  Files files;
  std::string values;
  std::mt19937 random(1);
  for (int i = 0; i < 4000; ++i) values += static_cast<char>(random());
  const std::string whole = files.bytes_of(files.write_gz(idx(10, 20, 20, values)));
  CHECK_FALSE(error_of(files.write(whole.substr(0, whole.size() / 2))).empty());
  CHECK_FALSE(error_of(files.write(whole.substr(0, whole.size() - 5))).empty());
  std::string damaged = whole;
  damaged[damaged.size() - 6] = static_cast<char>(damaged[damaged.size() - 6] ^ 1);  // the checksum
  CHECK_FALSE(error_of(files.write(damaged)).empty());
}

TEST_CASE("mutated IDX files are read or refused, never worse") {
  Files files;
  const std::string good = idx(3, 4, 4, std::string(48, 'x'));
  std::mt19937 random(Catch::rngSeed());
  INFO("seed " << Catch::rngSeed());
  for (int i = 0; i < 500; ++i) {
    std::string bytes = good;
    for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    bytes.resize(random() % (bytes.size() + 1));
    const auto file = files.write(bytes);
    try {
      read_idx_images(file);
    } catch (const ImageError&) {
    }
  }
  SUCCEED();
}

}  // namespace lintel::testing
