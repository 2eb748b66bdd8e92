#include "runtime/codec/video/parameter_sets.h"

#include <algorithm>
#include <bit>

namespace aludel {
namespace {

constexpr int kVideoSet = 32;
constexpr int kSequenceSet = 33;
constexpr int kPictureSet = 34;

// The bits of a NAL unit's payload.
class BitWriter {
 public:
  void Bits(uint32_t value, int count) {
    while (--count >= 0) Bit((value >> count) & 1);
  }
  void Flag(bool value) { Bit(value ? 1 : 0); }
  // ue(v); se(v) of 0 is the same.
  void Exponential(uint32_t value) {
    const int width = std::bit_width(value + 1);
    Bits(0, width - 1);
    Bits(value + 1, width);
  }
  // Ends with rbsp_trailing_bits.
  std::vector<uint8_t> Finish() {
    Bit(1);
    while (filled_ != 0) Bit(0);
    return bytes_;
  }

 private:
  void Bit(uint32_t bit) {
    if (filled_ == 0) bytes_.push_back(0);
    bytes_.back() |= static_cast<uint8_t>(bit << (7 - filled_));
    filled_ = (filled_ + 1) % 8;
  }

  std::vector<uint8_t> bytes_;
  int filled_ = 0;  // bits of the last byte, 0: all of them
};

void AddProfile(const HevcPictures& pictures, BitWriter* bits) {
  constexpr uint32_t kMain = 1, kRangeExtensions = 4;
  constexpr uint32_t kMainAndMain10 = 0x60000000, kOnlyRangeExtensions = 0x08000000;
  constexpr uint32_t kLevel62 = 186;  // the highest: pictures are as large as frames are
  bits->Bits(pictures.three_planes ? kRangeExtensions : kMain, 8);  // profile space 0, tier 0
  bits->Bits(pictures.three_planes ? kOnlyRangeExtensions : kMainAndMain10, 32);
  bits->Bits(0x9, 4);  // progressive, frames only
  // Of range extensions: at most 12, 10 and 8 bits, any chroma; pictures may be predicted; no lower bit rate.
  bits->Bits(pictures.three_planes ? 0xe0u << 24 : 0, 32);
  bits->Bits(0, 12);
  bits->Bits(kLevel62, 8);
}

// Of one layer: pictures in the order of coding, the buffer holding the one and, where others follow, the one before.
void AddBuffering(const HevcPictures& pictures, BitWriter* bits) {
  bits->Flag(true);
  bits->Exponential(pictures.count > 1 ? 1 : 0);  // max_dec_pic_buffering_minus1
  bits->Exponential(0);                           // max_num_reorder_pics
  bits->Exponential(0);                           // max_latency_increase_plus1
}

std::vector<uint8_t> VideoSet(const HevcPictures& pictures) {
  BitWriter bits;
  bits.Bits(0, 4);  // id
  bits.Bits(3, 2);  // base layer, internal and available
  bits.Bits(0, 6);  // max_layers_minus1
  bits.Bits(0, 3);  // max_sub_layers_minus1
  bits.Flag(true);  // temporal_id_nesting
  bits.Bits(0xffff, 16);
  AddProfile(pictures, &bits);
  AddBuffering(pictures, &bits);
  bits.Bits(0, 6);      // max_layer_id
  bits.Exponential(0);  // num_layer_sets_minus1
  bits.Flag(false);     // timing
  bits.Flag(false);     // extension
  return bits.Finish();
}

std::vector<uint8_t> SequenceSet(const HevcPictures& pictures) {
  constexpr int kSmallest = 8;
  const auto splits =
      static_cast<uint32_t>(std::bit_width(static_cast<uint32_t>(LargestBlock(pictures) / kSmallest)) - 1);
  BitWriter bits;
  bits.Bits(0, 4);  // video parameter set
  bits.Bits(0, 3);  // max_sub_layers_minus1
  bits.Flag(true);  // temporal_id_nesting
  AddProfile(pictures, &bits);
  bits.Exponential(0);  // id
  bits.Exponential(pictures.three_planes ? 3 : 1);
  if (pictures.three_planes) bits.Flag(false);  // planes are not coded apart
  bits.Exponential(static_cast<uint32_t>(pictures.width));
  bits.Exponential(static_cast<uint32_t>(pictures.height));
  bits.Flag(false);     // conformance window
  bits.Exponential(0);  // 8 bits of luma
  bits.Exponential(0);  // 8 bits of chroma
  bits.Exponential(4);  // log2_max_pic_order_cnt_lsb_minus4
  AddBuffering(pictures, &bits);
  bits.Exponential(0);           // smallest coding block: 8
  bits.Exponential(splits);      // largest: LargestBlock
  bits.Exponential(0);           // smallest transform block: 4
  bits.Exponential(splits + 1);  // largest: LargestBlock
  bits.Exponential(0);           // max_transform_hierarchy_depth_inter
  bits.Exponential(0);           // max_transform_hierarchy_depth_intra
  bits.Flag(false);              // scaling lists
  bits.Flag(false);              // asymmetric motion partitions
  bits.Flag(false);              // sample adaptive offset
  bits.Flag(false);              // PCM
  bits.Exponential(0);           // num_short_term_ref_pic_sets
  bits.Flag(false);              // long-term reference pictures
  bits.Flag(false);              // temporal motion vector prediction
  bits.Flag(false);              // strong intra smoothing
  bits.Flag(false);              // VUI
  bits.Flag(false);              // extension
  return bits.Finish();
}

std::vector<uint8_t> PictureSet() {
  BitWriter bits;
  bits.Exponential(0);  // id
  bits.Exponential(0);  // sequence parameter set
  bits.Flag(false);     // dependent slice segments
  bits.Flag(false);     // output flag
  bits.Bits(0, 3);      // extra slice header bits
  bits.Flag(false);     // sign data hiding
  bits.Flag(false);     // cabac_init
  bits.Exponential(0);  // num_ref_idx_l0_default_active_minus1
  bits.Exponential(0);  // num_ref_idx_l1_default_active_minus1
  bits.Exponential(0);  // init_qp_minus26
  bits.Flag(false);     // constrained intra prediction
  bits.Flag(false);     // transform skip
  bits.Flag(false);     // cu_qp_delta
  bits.Exponential(0);  // cb_qp_offset
  bits.Exponential(0);  // cr_qp_offset
  bits.Flag(false);     // slice chroma offsets
  bits.Flag(false);     // weighted prediction
  bits.Flag(false);     // of two pictures
  bits.Flag(true);      // transform and quantization may be bypassed
  bits.Flag(false);     // tiles
  bits.Flag(false);     // entropy_coding_sync
  bits.Flag(true);      // loop filter across slices
  bits.Flag(true);      // deblocking control follows:
  bits.Flag(false);     // slices do not override it,
  bits.Flag(true);      // it is off
  bits.Flag(false);     // scaling lists
  bits.Flag(false);     // reference lists are modified
  bits.Exponential(0);  // log2_parallel_merge_level_minus2
  bits.Flag(false);     // slice header extension
  bits.Flag(false);     // extension
  return bits.Finish();
}

void AddUnit(int type, const std::vector<uint8_t>& payload, std::vector<uint8_t>* out) {
  const uint8_t head[] = {0, 0, 0, 1, static_cast<uint8_t>(type << 1), 1};
  out->insert(out->end(), std::begin(head), std::end(head));
  int zeros = 0;
  for (const uint8_t byte : payload) {
    // Three bytes that could be taken for a start code get a 3 in between.
    if (zeros == 2 && byte <= 3) {
      out->push_back(3);
      zeros = 0;
    }
    out->push_back(byte);
    zeros = byte == 0 ? zeros + 1 : 0;
  }
}

}  // namespace

int LargestBlock(const HevcPictures& pictures) {
  return std::min(pictures.width, pictures.height) < kMinPictureSide ? 16 : 32;
}

std::vector<uint8_t> HevcParameterSets(const HevcPictures& pictures) {
  std::vector<uint8_t> sets;
  AddUnit(kVideoSet, VideoSet(pictures), &sets);
  AddUnit(kSequenceSet, SequenceSet(pictures), &sets);
  AddUnit(kPictureSet, PictureSet(), &sets);
  return sets;
}

}  // namespace aludel
