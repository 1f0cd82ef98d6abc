/* The CRC-32 of ISO-HDLC (zlib's), a byte at a time by a table. */
#include "potash.h"

static u32 table[256];

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	const u8 *byte = (const u8 *)in;
	u32 crc = ~0u;

	for (u32 i = 0; i < 256; i++) {
		u32 value = i;

		for (u32 bit = 0; bit < 8; bit++)
			value = value >> 1 ^ (value & 1 ? 0xEDB88320 : 0);
		table[i] = value;
	}
	for (u64 i = 0; i < in_len; i++)
		crc = crc >> 8 ^ table[(u8)crc ^ byte[i]];
	*(u32 *)out = ~crc;
	return 0;
}
