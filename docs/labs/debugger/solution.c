// Lab 4, solved: char has a sign, so the values from 128 on were negative numbers.
#include "potash.h"

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	u64 *counts = (u64 *)out;
	u32 length;

	if (!argument_u32(ctx, 0, &length) || length > in_len)
		return -1;
	for (int value = 0; value < 256; value++)
		counts[value] = 0;
	for (u32 at = 0; at < length; at++) {
		int value = (u8)in[at];
		counts[value]++;
	}
	set_output_length(256 * sizeof(*counts));
	return 0;
}
