/* SHA-256 (FIPS 180-4) of the input, whose length is a multiple of 64 bytes. */
#include "potash.h"

static const u32 constant[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
	0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
	0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
	0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
	0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
	0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
	0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
	0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
	0xc67178f2,
};

static u32 state[8];
static u32 schedule[64];

static inline u32 rotate(u32 value, u32 by)
{
	return value >> by | value << (32 - by);
}

static inline u32 big_endian(u32 value)
{
	return value << 24 | (value & 0xFF00) << 8 | (value >> 8 & 0xFF00) | value >> 24;
}

static void block(const u32 *from)
{
	u32 a = state[0], b = state[1], c = state[2], d = state[3];
	u32 e = state[4], f = state[5], g = state[6], h = state[7];

	for (u32 i = 0; i < 16; i++)
		schedule[i] = big_endian(from[i]);
	for (u32 i = 16; i < 64; i++) {
		u32 v = schedule[i - 15], w = schedule[i - 2];

		schedule[i] = schedule[i - 16] + (rotate(v, 7) ^ rotate(v, 18) ^ v >> 3)
			+ schedule[i - 7] + (rotate(w, 17) ^ rotate(w, 19) ^ w >> 10);
	}
	for (u32 i = 0; i < 64; i++) {
		u32 s = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g))
			+ constant[i] + schedule[i];
		u32 t = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22))
			+ ((a & b) ^ (a & c) ^ (b & c));

		h = g, g = f, f = e, e = d + s, d = c, c = b, b = a, a = s + t;
	}
	state[0] += a, state[1] += b, state[2] += c, state[3] += d;
	state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	u32 *digest = (u32 *)out;

	state[0] = 0x6a09e667, state[1] = 0xbb67ae85, state[2] = 0x3c6ef372, state[3] = 0xa54ff53a;
	state[4] = 0x510e527f, state[5] = 0x9b05688c, state[6] = 0x1f83d9ab, state[7] = 0x5be0cd19;
	for (u64 at = 0; at < in_len; at += 64)
		block((const u32 *)(in + at));
	/* The padding: a one, zeroes, and the length in bits as a big endian number. */
	u32 last[16] = { 0x80 };

	last[14] = big_endian(in_len >> 29);
	last[15] = big_endian(in_len << 3);
	block(last);
	for (u32 i = 0; i < 8; i++)
		digest[i] = big_endian(state[i]);
	return 0;
}
