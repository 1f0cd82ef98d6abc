/*
 * Compress to a block of LZ4 (LZ4 Block Format Description).
 *
 * Argument 0 is the length of the input in bytes. Returns the length of the output, which can be
 * longer than the input by 1/255 and 16 bytes; 0 for wrong arguments.
 */
#include "potash.h"

enum {
	SHORTEST = 4,	       /* bytes of a match */
	FARTHEST = 65535,      /* bytes from a match to what it repeats */
	LITERAL_END = 5,       /* bytes at the end that no match may have */
	LAST_MATCH = 12,       /* bytes from the start of the last match to the end, at least */
	HASH_BITS = 12,
	FULL = 15,	       /* a length's four bits, after which bytes are added */
};

/* The latest position of each hash of four bytes. */
static u32 latest[1 << HASH_BITS];

static inline u64 put_rest(char *out, u64 used, u64 length)
{
	for (; length >= 255; length -= 255)
		out[used++] = (char)255;
	out[used++] = length;
	return used;
}

/* A sequence: literals, and a match unless its length is 0. */
static u64 put(char *out, u64 used, const char *literals, u64 count, u64 offset, u64 match)
{
	u64 rest = match ? match - SHORTEST : 0;

	out[used++] = (count < FULL ? count : FULL) << 4 | (rest < FULL ? rest : FULL);
	if (count >= FULL)
		used = put_rest(out, used, count - FULL);
	memcpy(out + used, literals, count);
	used += count;
	if (match) {
		out[used++] = offset;
		out[used++] = offset >> 8;
		if (rest >= FULL)
			used = put_rest(out, used, rest - FULL);
	}
	return used;
}

u64 prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	u64 used = 0, begun = 0;
	u32 length;

	if (!argument_u32(ctx, 0, &length) || length > in_len || out_len < length + length / 255 + 16)
		return 0;
	for (u32 i = 0; i < 1 << HASH_BITS; i++)
		latest[i] = 0;
	for (u64 at = 0; at + LAST_MATCH <= length;) {
		u32 value = *(const u32 *)(in + at), hash = value * 2654435761u >> (32 - HASH_BITS);
		u64 from = latest[hash], end = at + SHORTEST;

		latest[hash] = at;
		if (from >= at || at - from > FARTHEST || *(const u32 *)(in + from) != value) {
			at++;
			continue;
		}
		while (end < length - LITERAL_END && in[end] == in[end - at + from])
			end++;
		used = put(out, used, in + begun, at - begun, at - from, end - at);
		begun = at = end;
	}
	return put(out, used, in + begun, length - begun, 0, 0);
}
