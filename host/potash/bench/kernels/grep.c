/* Count where a word of eight letters begins. */
#include "potash.h"

static const char word[] = "potassic";

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	const u32 length = sizeof(word) - 1;
	u32 found = 0;

	for (u64 i = 0; i + length <= in_len; i++) {
		u32 k = 0;

		while (k < length && in[i + k] == word[k])
			k++;
		if (k == length)
			found++;
	}
	*(u32 *)out = found;
	return 0;
}
