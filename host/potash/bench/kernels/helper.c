/* Call a helper for each byte of the input. */
#include "potash.h"

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	for (u64 i = 0; i < in_len; i++)
		set_output_length(i & 63);
	return 0;
}
