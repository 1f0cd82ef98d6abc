/* Count how often each byte occurs. */
#include "potash.h"

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	const u8 *byte = (const u8 *)in;
	u32 *count = (u32 *)out;

	for (u32 i = 0; i < 256; i++)
		count[i] = 0;
	for (u64 i = 0; i < in_len; i++)
		count[byte[i]]++;
	return 0;
}
