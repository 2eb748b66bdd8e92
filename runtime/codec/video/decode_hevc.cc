extern "C" {
#include <libavcodec/avcodec.h>
#include <libavutil/log.h>
}
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "runtime/codec/video/hevc.h"
#include "runtime/codec/video/parameter_sets.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

#define ALUDEL_TEXT(x) #x
#define ALUDEL_TEXT_OF(x) ALUDEL_TEXT(x)
constexpr char kCodecLibrary[] = "libavcodec.so." ALUDEL_TEXT_OF(LIBAVCODEC_VERSION_MAJOR);
constexpr char kUtilLibrary[] = "libavutil.so." ALUDEL_TEXT_OF(LIBAVUTIL_VERSION_MAJOR);

constexpr uint8_t kFlat = 128;

// The functions that we call. libavcodec's major version, in its name, settles the layout of what they take.
struct Library {
  Library() {
    codec_handle_ = Open(kCodecLibrary);
    util_handle_ = Open(kUtilLibrary);
    if (!status.ok()) return;
    Find(codec_handle_, "avcodec_find_decoder_by_name", &find_decoder);
    Find(codec_handle_, "avcodec_alloc_context3", &alloc_context);
    Find(codec_handle_, "avcodec_free_context", &free_context);
    Find(codec_handle_, "avcodec_open2", &open);
    Find(codec_handle_, "avcodec_default_get_buffer2", &default_get_buffer);
    Find(codec_handle_, "avcodec_send_packet", &send_packet);
    Find(codec_handle_, "avcodec_receive_frame", &receive_frame);
    Find(codec_handle_, "av_packet_alloc", &packet_alloc);
    Find(codec_handle_, "av_packet_free", &packet_free);
    Find(util_handle_, "av_frame_alloc", &frame_alloc);
    Find(util_handle_, "av_frame_free", &frame_free);
    Find(util_handle_, "av_log_set_level", &log_set_level);
    if (!status.ok()) return;
    // It would write a line to stderr for every damaged frame; nobody else in this process uses it.
    log_set_level(AV_LOG_QUIET);
    decoder = find_decoder("hevc");
    if (decoder == nullptr) {
      status = absl::FailedPreconditionError(absl::StrCat(kCodecLibrary, " has no software decoder of HEVC"));
    }
  }

  decltype(&avcodec_find_decoder_by_name) find_decoder = nullptr;
  decltype(&avcodec_alloc_context3) alloc_context = nullptr;
  decltype(&avcodec_free_context) free_context = nullptr;
  decltype(&avcodec_open2) open = nullptr;
  decltype(&avcodec_default_get_buffer2) default_get_buffer = nullptr;
  decltype(&avcodec_send_packet) send_packet = nullptr;
  decltype(&avcodec_receive_frame) receive_frame = nullptr;
  decltype(&av_packet_alloc) packet_alloc = nullptr;
  decltype(&av_packet_free) packet_free = nullptr;
  decltype(&av_frame_alloc) frame_alloc = nullptr;
  decltype(&av_frame_free) frame_free = nullptr;
  decltype(&av_log_set_level) log_set_level = nullptr;
  const AVCodec* decoder = nullptr;
  absl::Status status;

 private:
  void* Open(const char* name) {
    if (!status.ok()) return nullptr;
    void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);  // stays for the life of the process
    if (handle != nullptr) return handle;
    const char* const reason = dlerror();
    status = absl::FailedPreconditionError(absl::StrCat(
        "packing video is decoded by ", name, ", which cannot be loaded (Debian 12: libavcodec59): ",
        reason == nullptr ? "no reason given" : reason));
    return nullptr;
  }
  template <typename Function>
  void Find(void* handle, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(handle, name));
    if (*function == nullptr)
      status = absl::FailedPreconditionError(absl::StrCat("libavcodec has no ", name));
  }

  void* codec_handle_ = nullptr;
  void* util_handle_ = nullptr;
};

const Library& TheLibrary() {
  static const Library library;
  return library;
}

struct Release {
  void operator()(AVCodecContext* context) const { TheLibrary().free_context(&context); }
  void operator()(AVPacket* packet) const { TheLibrary().packet_free(&packet); }
  void operator()(AVFrame* frame) const { TheLibrary().frame_free(&frame); }
};

// Memory that no block was decoded into is seen: chroma of a decoded one is kFlat.
int GetClearedBuffer(AVCodecContext* context, AVFrame* frame, int flags) {
  const int result = TheLibrary().default_get_buffer(context, frame, flags);
  if (result < 0) return result;
  for (const AVBufferRef* buffer : frame->buf) {
    if (buffer != nullptr) std::memset(buffer->data, 0, buffer->size);
  }
  return 0;
}

// A slice that is no more than one NAL unit: no start code in it, and none that bytes behind it could complete. Then no
// peer can hand the decoder any other unit.
absl::Status CheckOneUnit(absl::Span<const uint8_t> slice) {
  if (slice.empty() || slice.back() == 0) return absl::DataLossError("slice is empty or ends with 0");
  if ((slice[0] & 0x80) == 0) return absl::DataLossError("slice is not its picture's first");
  for (size_t i = 2; i < slice.size(); ++i) {
    if (slice[i - 2] != 0 || slice[i - 1] != 0) continue;
    if (slice[i] < 3)
      return absl::DataLossError(absl::StrFormat("slice holds a start code at byte %d", i - 2));
  }
  return absl::OkStatus();
}

std::unique_ptr<AVCodecContext, Release> OpenContext() {
  const Library& library = TheLibrary();
  std::unique_ptr<AVCodecContext, Release> context(library.alloc_context(library.decoder));
  if (context == nullptr) return nullptr;
  context->thread_count = 1;
  context->thread_type = 0;
  context->err_recognition =
      AV_EF_EXPLODE | AV_EF_CRCCHECK | AV_EF_BITSTREAM | AV_EF_BUFFER | AV_EF_CAREFUL | AV_EF_COMPLIANT;
  context->error_concealment = 0;
  context->strict_std_compliance = FF_COMPLIANCE_STRICT;
  context->get_buffer2 = GetClearedBuffer;
  if (library.open(context.get(), library.decoder, nullptr) < 0) return nullptr;
  return context;
}

absl::Status CheckFrame(const AVFrame& frame, const HevcPictures& pictures) {
  const int format = pictures.three_planes ? AV_PIX_FMT_YUV444P : AV_PIX_FMT_YUV420P;
  if (frame.width != pictures.width || frame.height != pictures.height || frame.format != format) {
    return absl::DataLossError(absl::StrFormat("slice gives a picture of %d x %d, format %d, want %d x %d",
                                               frame.width, frame.height, frame.format, pictures.width,
                                               pictures.height));
  }
  if (frame.decode_error_flags != 0 || (frame.flags & AV_FRAME_FLAG_CORRUPT) != 0) {
    return absl::DataLossError("slice has errors");
  }
  if (pictures.three_planes) return absl::OkStatus();
  for (const int plane : {1, 2}) {
    for (int y = 0; y < pictures.height / 2; ++y) {
      const uint8_t* const row = frame.data[plane] + static_cast<int64_t>(y) * frame.linesize[plane];
      if (std::any_of(row, row + pictures.width / 2, [](uint8_t sample) { return sample != kFlat; })) {
        return absl::DataLossError("slice leaves blocks out, or gives them chroma");
      }
    }
  }
  return absl::OkStatus();
}

void AppendSamples(const AVFrame& frame, HevcPictures* pictures) {
  for (int plane = 0; plane < pictures->planes(); ++plane) {
    for (int y = 0; y < pictures->height; ++y) {
      const uint8_t* const row = frame.data[plane] + static_cast<int64_t>(y) * frame.linesize[plane];
      pictures->samples.insert(pictures->samples.end(), row, row + pictures->width);
    }
  }
}

// Behind parameter sets where it is the first, and with the zeros that libavcodec reads behind it.
std::vector<uint8_t> UnitOf(absl::Span<const uint8_t> slice, bool first, const HevcPictures& pictures,
                            int* bytes) {
  std::vector<uint8_t> unit = first ? HevcParameterSets(pictures) : std::vector<uint8_t>();
  const uint8_t* const header = first ? kFirstSliceHeader : kNextSliceHeader;
  unit.insert(unit.end(), {0, 0, 0, 1});
  unit.insert(unit.end(), header, header + kSliceHeaderBytes);
  unit.insert(unit.end(), slice.begin(), slice.end());
  *bytes = static_cast<int>(unit.size());
  unit.resize(unit.size() + AV_INPUT_BUFFER_PADDING_SIZE);
  return unit;
}

}  // namespace

absl::Status LoadHevcDecoder() { return TheLibrary().status; }

absl::Status DecodeHevcSequence(absl::Span<const absl::Span<const uint8_t>> slices, HevcPictures* pictures) {
  ALUDEL_RETURN_IF_ERROR(LoadHevcDecoder());
  ALUDEL_CHECK(pictures->width % 8 == 0 && pictures->height % 8 == 0);
  if (slices.size() != static_cast<size_t>(pictures->count)) {
    return absl::DataLossError(absl::StrFormat("%d slices, want %d", slices.size(), pictures->count));
  }
  for (const absl::Span<const uint8_t> slice : slices) ALUDEL_RETURN_IF_ERROR(CheckOneUnit(slice));
  const Library& library = TheLibrary();
  const std::unique_ptr<AVCodecContext, Release> context = OpenContext();
  const std::unique_ptr<AVPacket, Release> packet(library.packet_alloc());
  const std::unique_ptr<AVFrame, Release> frame(library.frame_alloc());
  if (context == nullptr || packet == nullptr || frame == nullptr) {
    return absl::InternalError("libavcodec cannot open its decoder of HEVC");
  }
  pictures->samples.clear();
  pictures->samples.reserve(pictures->plane_bytes() * pictures->planes() * pictures->count);
  int received = 0;
  for (size_t fed = 0; fed <= slices.size(); ++fed) {
    int result = 0;
    if (fed < slices.size()) {
      std::vector<uint8_t> unit = UnitOf(slices[fed], fed == 0, *pictures, &packet->size);
      packet->data = unit.data();
      result = library.send_packet(context.get(), packet.get());  // copies what it keeps
    } else {
      result = library.send_packet(context.get(), nullptr);  // no more come
    }
    while (result >= 0) {
      result = library.receive_frame(context.get(), frame.get());
      if (result < 0) break;
      if (++received > pictures->count) return absl::DataLossError("slices give more pictures than they are");
      ALUDEL_RETURN_IF_ERROR(CheckFrame(*frame, *pictures));
      AppendSamples(*frame, pictures);
    }
    if (result == AVERROR(EAGAIN) || result == AVERROR_EOF) continue;
    return absl::DataLossError(absl::StrFormat(
        "slice %d of %d bytes is none of a picture of %d x %d (libavcodec: %d)", fed,
        fed < slices.size() ? slices[fed].size() : 0, pictures->width, pictures->height, result));
  }
  if (received == pictures->count) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat("slices give %d pictures, want %d", received, pictures->count));
}

}  // namespace aludel
