/*
 * Compress bytes by their runs, as the last step of a chain: each run of equal bytes becomes its
 * length, 1 to 255, and the byte.
 */
#include "potash.h"

enum { DONE = 0, NO_ROOM = 1, LONGEST = 255 };

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	u64 used = 0;

	set_output_length(0);
	for (u64 at = 0; at < in_len;) {
		u64 run = 1;

		while (run < LONGEST && at + run < in_len && in[at + run] == in[at])
			run++;
		if (used + 2 > out_len)
			return NO_ROOM;
		out[used++] = run;
		out[used++] = in[at];
		at += run;
	}
	set_output_length(used);
	return DONE;
}
