/*
 * Checksum what the drive holds, page by page.
 *
 * Argument 0 is the length of the input in bytes. The output is the CRC-32C of all of it, and then
 * that of each of its pages of 4096 bytes, the last of which may be shorter; 32 bits each.
 */
#include "potash.h"

enum { PAGE = 4096 };
enum { DONE = 0, WRONG_ARGUMENTS = 1 };

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	u32 *sums = (u32 *)out;
	u32 length;
	u64 pages;

	set_output_length(0);
	if (!argument_u32(ctx, 0, &length) || length > in_len) {
		print("checksum: the argument is the length of the input in bytes");
		return WRONG_ARGUMENTS;
	}
	pages = ((u64)length + PAGE - 1) / PAGE;
	if ((pages + 1) * sizeof(u32) > out_len) {
		print("checksum: the sums do not fit in the output");
		return WRONG_ARGUMENTS;
	}
	sums[0] = crc32c(0, in, length);
	for (u64 page = 0; page < pages; page++) {
		u64 at = page * PAGE, rest = length - at;

		sums[page + 1] = crc32c(0, in + at, rest < PAGE ? rest : PAGE);
	}
	set_output_length((pages + 1) * sizeof(u32));
	print_number("checksum: pages: ", pages);
	return DONE;
}
