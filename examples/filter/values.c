/*
 * Select values of a key value namespace by one of their fields.
 *
 * Argument 0 is the namespace, argument 1 where in a value the field begins, which has 32 bits and no
 * sign; arguments 2 and 3 are the least and the largest value that is wanted. The output is the values
 * whose field is in that range, one after another in the order of their keys. Returns the length of
 * the output, or a negative error.
 */
#include "potash.h"

enum { WRONG_ARGUMENTS = -100, NO_ROOM = -101 };

static u8 keys[4096];
static u8 first[17];

s64 prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	u32 nsid, field, low, high, value;
	u64 first_length = 0, used = 0;
	s64 count;

	set_output_length(0);
	if (!argument_u32(ctx, 0, &nsid) || !argument_u32(ctx, 1, &field) ||
	    !argument_u32(ctx, 2, &low) || !argument_u32(ctx, 3, &high)) {
		print("values: the arguments are the namespace, the place of the field, and the "
		      "range that it is to be in");
		return WRONG_ARGUMENTS;
	}
	while ((count = kv_list(nsid, first, first_length, keys, sizeof(keys))) > 0) {
		const struct kv_key *key = kv_first(keys);

		for (; count--; key = kv_next(key)) {
			s64 size = kv_retrieve(nsid, key->bytes, key->length, out + used,
					       out_len - used);

			memcpy(first, key->bytes, key->length);
			first[key->length] = 0; /* the next list begins after this key */
			first_length = key->length + 1;
			if (size == KV_NO_KEY) /* it was deleted meanwhile */
				continue;
			if (size < 0)
				return size;
			if ((u64)size > out_len - used) {
				print("values: the values do not fit in the output");
				return NO_ROOM;
			}
			if ((u64)size < field + sizeof(value))
				continue;
			memcpy(&value, out + used + field, sizeof(value));
			if (value >= low && value <= high)
				used += size;
		}
	}
	if (count < 0)
		return count;
	set_output_length(used);
	return used;
}
