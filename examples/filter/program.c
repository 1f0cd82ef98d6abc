/*
 * Select records by one of their fields.
 *
 * The input is records of 128 bytes. Argument 0 is how many there are, argument 1 where in a record
 * the field begins, which has 32 bits and no sign; arguments 2 and 3 are the least and the largest
 * value that is wanted. The output is the records whose field is in that range, in their order.
 */
#include "potash.h"

enum { RECORD = 128 };
enum { DONE = 0, WRONG_ARGUMENTS = 1, NO_ROOM = 2 };

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	u32 count, field, low, high;
	u64 used = 0;

	set_output_length(0);
	if (!argument_u32(ctx, 0, &count) || !argument_u32(ctx, 1, &field) ||
	    !argument_u32(ctx, 2, &low) || !argument_u32(ctx, 3, &high) ||
	    count > in_len / RECORD || field > RECORD - sizeof(u32)) {
		print("filter: the arguments are the number of records, the place of the field, "
		      "and the range that it is to be in");
		return WRONG_ARGUMENTS;
	}
	for (u64 at = 0; at < (u64)count * RECORD; at += RECORD) {
		u32 value = *(const u32 *)(in + at + field);

		if (value < low || value > high)
			continue;
		if (used + RECORD > out_len) {
			print("filter: the records do not fit in the output");
			return NO_ROOM;
		}
		for (u32 i = 0; i < RECORD; i += sizeof(u64))
			*(u64 *)(out + used + i) = *(const u64 *)(in + at + i);
		used += RECORD;
	}
	set_output_length(used);
	print_number("filter: records selected: ", used / RECORD);
	return DONE;
}
