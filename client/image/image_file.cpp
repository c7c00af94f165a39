// SPDX-License-Identifier: Apache-2.0
#include "client/image/image_file.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include "client/image/png.h"

namespace lintel {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;
constexpr std::uint32_t kMaxSide = 65535;
constexpr std::size_t kSliceBytes = std::size_t{1} << 20;

// Reads through zlib, which passes files that are not gzipped on as they are.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& file)
      : name_(file.string()), file_(gzopen(file.c_str(), "rb"), &gzclose) {
    if (!file_) fail(std::string("cannot be opened: ") + std::strerror(errno));
  }

  [[noreturn]] void fail(const std::string& what) const { throw ImageError(name_ + ": " + what); }

  // Returns how many bytes there were, at most `size`.
  std::size_t read(void* to, std::size_t size) {
    const int got = gzread(file_.get(), to, static_cast<unsigned>(size));
    int code = Z_OK;
    const char* const message = gzerror(file_.get(), &code);
    if (got < 0) fail(std::string("cannot be read: ") + message);
    // The end of the file inside a gzip stream is no error to gzread.
    if (code == Z_BUF_ERROR) fail("the gzip stream is truncated");
    return static_cast<std::size_t>(got);
  }

 private:
  const std::string name_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

// Reads `size` more bytes, which grow with what is really there: a header may promise a gigabyte
// and have nothing after it. `what`: "truncated ..."
void read_bytes(Reader& reader, std::uint64_t size, const std::string& what,
                std::vector<std::uint8_t>& to) {
  while (to.size() < size) {
    const std::size_t had = to.size();
    const std::size_t wanted = std::min<std::uint64_t>(size - had, kSliceBytes);
    to.resize(had + wanted);
    if (reader.read(to.data() + had, wanted) < wanted) reader.fail(what);
  }
}

void expect_end(Reader& reader, const std::string& sizes) {
  unsigned char surplus = 0;
  if (reader.read(&surplus, 1) != 0) reader.fail("longer than " + sizes);
}

std::uint32_t big_endian(const unsigned char* bytes) {
  return (std::uint32_t{bytes[0]} << 24) | (std::uint32_t{bytes[1]} << 16) |
         (std::uint32_t{bytes[2]} << 8) | std::uint32_t{bytes[3]};
}

// The format of a file that begins with these bytes: "JPEG"; null: none that is known.
const char* kind_of_picture(const unsigned char* header) {
  const std::string_view begin(reinterpret_cast<const char*>(header), 4);
  if (begin.starts_with("\xff\xd8\xff")) return "JPEG";
  if (begin == "GIF8") return "GIF";
  if (begin == "RIFF") return "WebP";
  if (begin.starts_with("BM")) return "BMP";
  return nullptr;
}

// The header's first four bytes, checked: unsigned bytes in so many dimensions. `what`: "images".
void read_kind(Reader& reader, int dimensions, const std::string& what, unsigned char* header) {
  if (reader.read(header, 4) < 4) reader.fail("too short for an IDX header");
  if (const char* const kind = kind_of_picture(header)) {
    reader.fail("a picture in " + std::string(kind) + "; PNG and MNIST's files (IDX) are read");
  }
  if (header[0] != 0 || header[1] != 0) reader.fail("neither IDX nor PNG: it starts like neither");
  if (header[2] != 0x08) {
    reader.fail("IDX values of type " + std::to_string(header[2]) +
                ", expected 8 (unsigned bytes)");
  }
  if (header[3] == dimensions) return;
  const char* const hint = header[3] == 1   ? "; this may be the file of labels"
                           : header[3] == 3 ? "; this may be the file of images"
                                            : "";
  reader.fail("IDX with " + std::to_string(header[3]) + " dimensions, expected " +
              std::to_string(dimensions) + " (" + what + ")" + hint);
}

}  // namespace

std::vector<std::uint8_t> read_idx_labels(const std::filesystem::path& file) {
  Reader reader(file);
  std::array<unsigned char, 8> header{};
  read_kind(reader, 1, "labels", header.data());
  if (reader.read(&header[4], 4) < 4) reader.fail("the IDX header is truncated");
  const std::uint32_t count = big_endian(&header[4]);
  if (count > kMaxBytes) reader.fail(std::to_string(count) + " labels: more than 1 GiB");
  std::vector<std::uint8_t> labels;
  const std::string sizes = std::to_string(count) + " labels";
  read_bytes(reader, count, "truncated: fewer than " + sizes, labels);
  expect_end(reader, sizes);
  return labels;
}

std::vector<GrayImage> read_idx_images(const std::filesystem::path& file) {
  Reader reader(file);
  std::array<unsigned char, 16> header{};
  read_kind(reader, 3, "images", header.data());
  if (reader.read(header.data() + 4, 12) < 12) reader.fail("the IDX header is truncated");
  const std::uint32_t count = big_endian(&header[4]);
  const std::uint32_t height = big_endian(&header[8]);
  const std::uint32_t width = big_endian(&header[12]);
  const std::string sizes =
      std::to_string(count) + " images of " + std::to_string(height) + "x" + std::to_string(width);
  if (count == 0 || height == 0 || width == 0) reader.fail(sizes + ": a size of zero");
  if (height > kMaxSide || width > kMaxSide) reader.fail(sizes + ": too large");
  const std::uint64_t image_bytes = std::uint64_t{height} * width;
  if (image_bytes > kMaxBytes / count) reader.fail(sizes + ": more than 1 GiB");

  std::vector<GrayImage> images;
  for (std::uint32_t i = 0; i < count; ++i) {
    GrayImage image{static_cast<int>(height), static_cast<int>(width), {}};
    read_bytes(reader, image_bytes, "truncated in image " + std::to_string(i) + " of " + sizes,
               image.pixels);
    images.push_back(std::move(image));
  }
  expect_end(reader, sizes);
  return images;
}

namespace {

bool starts_like_png(const std::filesystem::path& file) {
  static constexpr std::array<char, 8> kSignature = {'\x89', 'P',  'N',    'G',
                                                     '\r',   '\n', '\x1a', '\n'};
  std::ifstream in(file, std::ios::binary);
  if (!in) throw ImageError(file.string() + ": cannot be opened: " + std::strerror(errno));
  std::array<char, 8> start{};
  in.read(start.data(), start.size());
  return in.gcount() == start.size() && start == kSignature;
}

std::string size_text(int height, int width) {
  return std::to_string(height) + "x" + std::to_string(width);
}

// A PNG's images, of `channels` tokens a pixel.
std::vector<GrayImage> cut_sheet(const std::filesystem::path& file, const GrayImage& sheet,
                                 int height, int pixels, int channels) {
  const int width = pixels * channels;
  if (sheet.height % height != 0 || sheet.width % width != 0) {
    throw ImageError(
        file.string() + ": " + size_text(sheet.height, sheet.width / channels) +
        " pixels are no whole number of images of " + size_text(height, pixels) +
        (channels == 1 ? "; --fit puts a photograph of one digit into that size" : ""));
  }
  std::vector<GrayImage> images;
  for (int top = 0; top < sheet.height; top += height) {
    for (int left = 0; left < sheet.width; left += width) {
      GrayImage image{height, width, {}};
      for (int row = 0; row < height; ++row) {
        const auto start =
            sheet.pixels.begin() + (static_cast<std::ptrdiff_t>(top) + row) * sheet.width + left;
        image.pixels.insert(image.pixels.end(), start, start + width);
      }
      images.push_back(std::move(image));
    }
  }
  return images;
}

}  // namespace

std::vector<GrayImage> read_whole_images(const std::filesystem::path& file) {
  if (starts_like_png(file)) return {read_png(file)};
  return read_idx_images(file);
}

bool is_colored_png(const std::filesystem::path& file) {
  return starts_like_png(file) && png_has_colors(file);
}

std::vector<GrayImage> read_color_images(const std::filesystem::path& file, int height, int width) {
  if (!starts_like_png(file)) {
    throw ImageError(file.string() + ": is no PNG, and the model's images have colours");
  }
  return cut_sheet(file, read_png_colors(file), height, width, /*channels=*/3);
}

std::vector<GrayImage> read_images(const std::filesystem::path& file, int height, int width) {
  if (starts_like_png(file)) {
    return cut_sheet(file, read_png(file), height, width, /*channels=*/1);
  }
  std::vector<GrayImage> images = read_idx_images(file);
  const GrayImage& first = images.front();
  if (first.height != height || first.width != width) {
    throw ImageError(file.string() + ": images of " + size_text(first.height, first.width) +
                     ", the model's are " + size_text(height, width));
  }
  return images;
}

}  // namespace lintel
