#include <dlfcn.h>
#include <x265.h>

#include <algorithm>
#include <memory>
#include <mutex>
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
constexpr char kLibrary[] = "libx265.so." ALUDEL_TEXT_OF(X265_BUILD);
constexpr char kEntry[] = "x265_api_get_" ALUDEL_TEXT_OF(X265_BUILD);

constexpr int kBitDepth = 8;

struct Library {
  Library() {
    void* const handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);  // stays for the life of the process
    if (handle == nullptr) {
      const char* const reason = dlerror();
      status = absl::FailedPreconditionError(absl::StrCat(
          "packing video is encoded by ", kLibrary, ", which cannot be loaded (Debian 12: libx265-199): ",
          reason == nullptr ? "no reason given" : reason));
      return;
    }
    const auto get = reinterpret_cast<const x265_api* (*)(int)>(dlsym(handle, kEntry));
    api = get == nullptr ? nullptr : get(kBitDepth);
    if (api == nullptr || api->sizeof_param != sizeof(x265_param) ||
        api->sizeof_picture != sizeof(x265_picture)) {
      api = nullptr;
      status = absl::FailedPreconditionError(
          absl::StrCat(kLibrary, " has another interface than the one that this was built with"));
    }
  }
  const x265_api* api = nullptr;
  absl::Status status;
};

const Library& TheLibrary() {
  static const Library library;
  return library;
}

// Opening sets up tables that all encoders share.
std::mutex& OpenMutex() {
  static std::mutex mutex;
  return mutex;
}

// What HevcParameterSets says, and whatever else would make a stream depend on more than its picture.
void SetParameters(const x265_api& api, const HevcPictures& pictures, x265_param* param) {
  // Slower presets try more predictions, and of latents none is any good: they took 3 times as long for as many bytes.
  api.param_default_preset(param, "ultrafast", nullptr);
  param->logLevel = X265_LOG_NONE;
  param->frameNumThreads = 1;
  param->bEnableWavefront = 0;
  param->bDistributeModeAnalysis = 0;
  param->bDistributeMotionEstimation = 0;
  param->internalBitDepth = kBitDepth;
  param->sourceBitDepth = kBitDepth;
  param->internalCsp = pictures.three_planes ? X265_CSP_I444 : X265_CSP_I420;
  param->sourceWidth = pictures.width;
  param->sourceHeight = pictures.height;
  param->fpsNum = 1;
  param->fpsDenom = 1;
  param->totalFrames = pictures.count;
  param->bRepeatHeaders = 0;
  param->bAnnexB = 0;
  param->bEmitInfoSEI = 0;
  param->bEnableAccessUnitDelimiters = 0;
  param->decodedPictureHashSEI = 0;
  param->keyframeMax = pictures.count;
  param->keyframeMin = pictures.count;
  param->maxNumReferences = 1;
  param->bOpenGOP = 0;
  param->bframes = 0;
  param->scenecutThreshold = 0;
  param->lookaheadDepth = 0;
  param->lookaheadSlices = 0;
  param->maxSlices = 1;
  param->maxCUSize = LargestBlock(pictures);
  param->minCUSize = 8;
  param->maxTUSize = LargestBlock(pictures);
  param->tuQTMaxInterDepth = 1;
  param->tuQTMaxIntraDepth = 1;
  param->bEnableAMP = 0;
  param->bEnableSAO = 0;
  param->bEnableLoopFilter = 0;
  param->bEnableSignHiding = 0;
  param->bEnableTransformSkip = 0;
  param->bEnableConstrainedIntra = 0;
  param->bEnableStrongIntraSmoothing = 0;
  param->bEnableTemporalMvp = 0;
  param->bEnableWeightedPred = 0;
  param->log2MaxPocLsb = 8;
  param->rc.aqMode = X265_AQ_NONE;
  param->rc.cuTree = 0;
  param->bLossless = 1;
}

// Bytes behind the length and the header of the one slice among `units`, which may begin with parameter sets whether asked for
// or not; empty where there is anything else.
std::vector<uint8_t> FindSlice(const x265_nal* units, uint32_t count, const uint8_t* header) {
  constexpr size_t kLengthBytes = 4;
  constexpr size_t kHead = kLengthBytes + kSliceHeaderBytes;
  constexpr uint32_t kSets[] = {NAL_UNIT_VPS, NAL_UNIT_SPS, NAL_UNIT_PPS};
  while (count > 1 && std::find(std::begin(kSets), std::end(kSets), units->type) != std::end(kSets)) {
    ++units;
    --count;
  }
  if (count != 1 || units->sizeBytes <= kHead) return {};
  const uint8_t* const bytes = units->payload;
  if (!std::equal(header, header + kSliceHeaderBytes, bytes + kLengthBytes)) return {};
  return {bytes + kHead, bytes + units->sizeBytes};
}

// The next picture of `pictures`.
void SetSource(const HevcPictures& pictures, int index, std::vector<uint8_t>& chroma, x265_picture* source) {
  // libx265 only reads.
  auto* const samples =
      const_cast<uint8_t*>(pictures.samples.data()) + pictures.plane_bytes() * pictures.planes() * index;
  for (int plane = 0; plane < 3; ++plane) {
    const bool flat = plane > 0 && !pictures.three_planes;
    source->planes[plane] = flat ? chroma.data() : samples + plane * pictures.plane_bytes();
    source->stride[plane] = flat ? pictures.width / 2 : pictures.width;
  }
  source->bitDepth = kBitDepth;
  source->pts = index;
}

}  // namespace

absl::Status LoadHevcEncoder() { return TheLibrary().status; }

absl::StatusOr<std::vector<std::vector<uint8_t>>> EncodeHevcSequence(const HevcPictures& pictures) {
  ALUDEL_RETURN_IF_ERROR(LoadHevcEncoder());
  const x265_api& api = *TheLibrary().api;
  if (pictures.count > 1 && std::min(pictures.width, pictures.height) < kMinSequenceSide) {
    return absl::InvalidArgumentError(absl::StrFormat("%d pictures of %d x %d, want sides of %d at least",
                                                      pictures.count, pictures.width, pictures.height,
                                                      kMinSequenceSide));
  }
  ALUDEL_CHECK(pictures.samples.size() == pictures.plane_bytes() * pictures.planes() * pictures.count);
  const std::unique_ptr<x265_param, void (*)(x265_param*)> param(api.param_alloc(), api.param_free);
  const std::unique_ptr<x265_picture, void (*)(x265_picture*)> source(api.picture_alloc(), api.picture_free);
  if (param == nullptr || source == nullptr) return absl::InternalError("libx265 has no memory");
  SetParameters(api, pictures, param.get());
  std::unique_ptr<x265_encoder, void (*)(x265_encoder*)> encoder(nullptr, api.encoder_close);
  {
    const std::scoped_lock lock(OpenMutex());
    encoder.reset(api.encoder_open(param.get()));
  }
  if (encoder == nullptr) {
    return absl::InternalError(
        absl::StrFormat("libx265 takes no pictures of %d x %d", pictures.width, pictures.height));
  }
  std::vector<uint8_t> chroma(pictures.plane_bytes() / 4, 128);
  std::vector<std::vector<uint8_t>> slices;
  // A picture may come out behind the one that follows: without any they are flushed out.
  for (int fed = 0; slices.size() < static_cast<size_t>(pictures.count) && fed < 2 * pictures.count + 2;
       ++fed) {
    x265_nal* units = nullptr;
    uint32_t count = 0;
    const bool more = fed < pictures.count;
    if (more) {
      api.picture_init(param.get(), source.get());
      SetSource(pictures, fed, chroma, source.get());
    }
    const int done =
        api.encoder_encode(encoder.get(), &units, &count, more ? source.get() : nullptr, nullptr);
    if (done == 0) continue;
    slices.push_back(done == 1
                         ? FindSlice(units, count, slices.empty() ? kFirstSliceHeader : kNextSliceHeader)
                         : std::vector<uint8_t>());
    if (slices.back().empty()) break;
  }
  if (slices.size() != static_cast<size_t>(pictures.count) || slices.back().empty()) {
    return absl::InternalError(absl::StrFormat("libx265 makes no slice of picture %d of %d, %d x %d",
                                               slices.size(), pictures.count, pictures.width,
                                               pictures.height));
  }
  return slices;
}

}  // namespace aludel
