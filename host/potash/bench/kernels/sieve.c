/* Count the primes below the input's length, with a byte of the output for each number. */
#include "potash.h"

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	u64 primes = 0;

	for (u64 i = 0; i < out_len; i++)
		out[i] = 1;
	for (u64 i = 2; i * i < out_len; i++) {
		if (out[i])
			for (u64 k = i * i; k < out_len; k += i)
				out[k] = 0;
	}
	for (u64 i = 2; i < out_len; i++)
		primes += out[i];
	return primes;
}
