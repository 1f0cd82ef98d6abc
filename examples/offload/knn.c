/*
 * Find the vectors that are nearest to a query.
 *
 * The input is vectors of DIMENSIONS bytes. Argument 0 is how many there are, argument 1 how many are
 * wanted, argument 2 the query. The output is a number of 64 bits for each vector that is found, in
 * any order: the square of its distance in the upper half, and its index in the lower half. Of equal
 * distances, the lower index is nearer. Returns the length of the output, 0 for wrong arguments.
 */
#include "potash.h"

enum { DIMENSIONS = 64 };

/* Move `key` down from the top of a heap, whose largest key is at its top. */
static void sift(u64 *heap, u32 size, u64 key)
{
	u32 at = 0;

	for (u32 child; (child = 2 * at + 1) < size; at = child) {
		if (child + 1 < size && heap[child + 1] > heap[child])
			child++;
		if (heap[child] <= key)
			break;
		heap[at] = heap[child];
	}
	heap[at] = key;
}

u64 prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	u64 *heap = (u64 *)out;
	u32 count, wanted, length = 0;
	const u8 *query = argument(ctx, 2, &length), *vector = (const u8 *)in;

	if (!argument_u32(ctx, 0, &count) || !argument_u32(ctx, 1, &wanted) || !wanted ||
	    length != DIMENSIONS || wanted > count || count > in_len / DIMENSIONS ||
	    wanted > out_len / sizeof(u64))
		return 0;
	for (u32 i = 0; i < wanted; i++)
		heap[i] = ~0ull;
	for (u32 i = 0; i < count; i++, vector += DIMENSIONS) {
		u32 distance = 0;
		u64 key;

		for (u32 j = 0; j < DIMENSIONS; j++) {
			s32 difference = vector[j] - query[j];

			distance += difference * difference;
		}
		key = (u64)distance << 32 | i;
		if (key < heap[0])
			sift(heap, wanted, key);
	}
	return wanted * sizeof(u64);
}
