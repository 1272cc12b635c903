#pragma once

#include <cstdint>

#include "gpu/attention/attention_params.hpp"
#include "gpu/plan/kernel_shape.hpp"

// The work items of decode rows in order: rows ascend, in a row its kv heads, for each the pieces
// of its context. A CTA takes a contiguous share and walks through it. Of much work, the last items
// are in no share: they are late, and each goes to the CTA that asks for it first.

namespace loratory::gpu {

LORATORY_HOST_DEVICE constexpr int32_t num_attention_tiles(int32_t keys) {
  return (keys + kAttentionTileKeys - 1) / kAttentionTileKeys;
}

/// What the order follows from; arrays of AttentionWork and of the batch.
struct DecodeRows {
  const int32_t* piece_starts;
  const int32_t* tile_starts;
  const int32_t* contexts;
  int32_t num_rows, kv_heads;

  LORATORY_HOST_DEVICE int64_t num_tiles() const {
    return int64_t{tile_starts[num_rows]} * kv_heads;
  }
  LORATORY_HOST_DEVICE int64_t num_items() const {
    return int64_t{piece_starts[num_rows]} * kv_heads;
  }
};

/// An item, and the way to the next one.
struct DecodeItem {
  int32_t row, head, piece;
  int32_t num_pieces, context;  ///< of the row
  int64_t index;                ///< where its sums go

  LORATORY_HOST_DEVICE int32_t num_keys() const {
    const int32_t left = context - piece * kPieceKeys;
    return left < kPieceKeys ? left : kPieceKeys;
  }
  LORATORY_HOST_DEVICE bool is_last_of_head() const { return piece + 1 == num_pieces; }

  /// There must be one more.
  LORATORY_HOST_DEVICE void advance(const DecodeRows& rows) {
    ++index;
    if (++piece < num_pieces) return;
    piece = 0;
    if (++head < rows.kv_heads) return;
    head = 0;
    do ++row;
    while (rows.piece_starts[row + 1] == rows.piece_starts[row]);
    num_pieces = rows.piece_starts[row + 1] - rows.piece_starts[row];
    context = rows.contexts[row];
  }
};

/// The last row whose tiles or items, those of all heads, begin at `at` or before. `starts` are
/// tile_starts or piece_starts. `count` says for how many of 32 lanes a condition of the lane
/// holds.
template <typename Count>
LORATORY_HOST_DEVICE int32_t row_of(const DecodeRows& rows, const int32_t* starts, int64_t at,
                                    const Count& count) {
  int32_t first = 0, num = rows.num_rows;
  while (num > 1) {
    const int32_t step = (num + 31) / 32;
    const int32_t before = count([&](int32_t lane) {
      const int32_t row = lane * step;
      return row < num && int64_t{starts[first + row]} * rows.kv_heads <= at;
    });
    const int32_t skipped = (before - 1) * step;
    first += skipped;
    num = num - skipped < step ? num - skipped : step;
  }
  return first;
}

/// The first item that begins at `tile` or behind it, where tiles are counted in the order of
/// items; at most the number of all tiles. Only its index is right if there is no such item.
template <typename Count>
LORATORY_HOST_DEVICE DecodeItem item_from_tile(const DecodeRows& rows, int64_t tile,
                                               const Count& count) {
  constexpr int32_t kTiles = kPieceKeys / kAttentionTileKeys;
  if (tile >= rows.num_tiles()) return {0, 0, 0, 0, 0, rows.num_items()};
  DecodeItem out{.row = row_of(rows, rows.tile_starts, tile, count),
                 .head = 0,
                 .piece = 0,
                 .num_pieces = 0,
                 .context = 0,
                 .index = 0};
  const int32_t first = rows.piece_starts[out.row], first_tile = rows.tile_starts[out.row];
  out.num_pieces = rows.piece_starts[out.row + 1] - first;
  out.context = rows.contexts[out.row];
  const auto within = int32_t(tile - int64_t{first_tile} * rows.kv_heads);
  const int32_t tiles = rows.tile_starts[out.row + 1] - first_tile;
  out.head = within / tiles;
  out.piece = (within % tiles + kTiles - 1) / kTiles;
  out.index = int64_t{first} * rows.kv_heads + int64_t{out.head} * out.num_pieces + out.piece;
  if (out.piece < out.num_pieces) return out;
  // It begins with the next head or row, if there is one.
  if (out.index == rows.num_items()) return out;
  --out.index, --out.piece;
  out.advance(rows);
  return out;
}

/// The item with an index; one without pieces if there are not so many.
template <typename Count>
LORATORY_HOST_DEVICE DecodeItem item_at(const DecodeRows& rows, int64_t index, const Count& count) {
  if (index >= rows.num_items()) return {0, 0, 0, 0, 0, index};
  const int32_t row = row_of(rows, rows.piece_starts, index, count);
  const int32_t first = rows.piece_starts[row], num_pieces = rows.piece_starts[row + 1] - first;
  const auto within = int32_t(index - int64_t{first} * rows.kv_heads);
  return {.row = row,
          .head = within / num_pieces,
          .piece = within % num_pieces,
          .num_pieces = num_pieces,
          .context = rows.contexts[row],
          .index = index};
}

/// CTAs with equal shares end at different times, because memory does not serve them alike. The
/// more tiles a share has, the more of that evens out: late are a 32nd of all tiles and an item for
/// each CTA. Shares keep two items or more. With fewer tiles, an item is too large a part of a
/// CTA's work to even out anything, and shares have all of them.
LORATORY_HOST_DEVICE constexpr int64_t num_tiles_in_shares(int64_t num_tiles, int32_t num_shares) {
  constexpr int64_t kItemTiles = kPieceKeys / kAttentionTileKeys;
  if (num_tiles < 12 * kItemTiles * num_shares) return num_tiles;
  return num_tiles - num_tiles / 32 - kItemTiles * num_shares;
}

/// The items of a CTA: from `begin` up to the one with index `end`, then late ones if there are
/// any.
struct DecodeShare {
  DecodeItem begin;
  int64_t end;
  bool late_follow;

  LORATORY_HOST_DEVICE bool is_empty() const { return begin.index == end; }
  /// Also if it is a late one: no other follows it in order.
  LORATORY_HOST_DEVICE bool ends_with(const DecodeItem& item) const {
    return item.index + 1 >= end;
  }
  /// Whether it has the last piece of the item's row and head, too; not of a late item's.
  LORATORY_HOST_DEVICE bool has_rest_of(const DecodeItem& item) const {
    return item.index - item.piece + item.num_pieces <= end;
  }
};

/// Shares of equal tiles, but for one item. Late items follow all of them or none.
template <typename Count>
LORATORY_HOST_DEVICE DecodeShare decode_share(const DecodeRows& rows, int32_t index,
                                              int32_t num_shares, const Count& count) {
  const int64_t tiles = num_tiles_in_shares(rows.num_tiles(), num_shares);
  return {.begin = item_from_tile(rows, tiles * index / num_shares, count),
          .end = item_from_tile(rows, tiles * (index + 1) / num_shares, count).index,
          .late_follow = tiles < rows.num_tiles()};
}

/// Late item `number`, from 0; one without pieces if there are not so many.
template <typename Count>
LORATORY_HOST_DEVICE DecodeItem late_item(const DecodeRows& rows, int32_t number,
                                          int32_t num_shares, const Count& count) {
  const int64_t tiles = num_tiles_in_shares(rows.num_tiles(), num_shares);
  return item_at(rows, item_from_tile(rows, tiles, count).index + number, count);
}

}  // namespace loratory::gpu
