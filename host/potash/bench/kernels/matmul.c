/* Multiply pairs of 64 x 64 matrices of 32-bit integers. */
#include "potash.h"

enum { N = 64, ELEMENTS = N * N };

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	const s32 *a = (const s32 *)in;
	s32 *c = (s32 *)out;

	for (u64 pair = 0; pair < in_len / (2 * ELEMENTS * sizeof(*a)); pair++) {
		const s32 *b = a + ELEMENTS;

		for (u32 i = 0; i < N; i++) {
			for (u32 j = 0; j < N; j++) {
				s32 sum = 0;

				for (u32 k = 0; k < N; k++)
					sum += a[i * N + k] * b[k * N + j];
				c[i * N + j] = sum;
			}
		}
		a += 2 * ELEMENTS;
		c += ELEMENTS;
	}
	return 0;
}
