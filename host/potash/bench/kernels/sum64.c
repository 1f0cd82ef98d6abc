/* Add up the input as 64-bit words. */
#include "potash.h"

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	const u64 *word = (const u64 *)in;
	u64 sum = 0;

	for (u64 i = 0; i < in_len / sizeof(*word); i++)
		sum += word[i];
	*(u64 *)out = sum;
	return 0;
}
