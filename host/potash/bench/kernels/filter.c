/* Copy the records whose key is in a range, and add up their values. */
#include "potash.h"

struct record {
	u32 key;
	u32 value;
	u64 stamp;
};

enum { FIRST = 0x20000000, LAST = 0x60000000 };

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	const struct record *from = (const struct record *)in;
	struct record *to = (struct record *)out;
	u64 kept = 0, total = 0;

	for (u64 i = 0; i < in_len / sizeof(*from); i++) {
		if (from[i].key < FIRST || from[i].key > LAST)
			continue;
		to[kept++] = from[i];
		total += from[i].value;
	}
	return kept ^ total;
}
