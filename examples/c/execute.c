/*
 * Run a program on a drive by the standard's commands alone: Computational Programs and Subsystem
 * Local Memory, through Linux's NVMe driver. Needs nothing but this file and <linux/nvme_ioctl.h>.
 *
 *   execute /dev/nvme0 /dev/ng0n2 /dev/ng0n3 program.o input output LENGTH [CPARAM1 [CPARAM2]]
 *
 * /dev/ng0n2 is a memory namespace, /dev/ng0n3 a compute namespace. The input becomes the first
 * memory range, LENGTH bytes behind it the second, whose contents go to the file `output`.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <linux/nvme_ioctl.h>

enum { LOAD_PROGRAM = 0x85, ACTIVATION = 0x88, RANGE_SETS = 0x89 };	/* admin */
enum { MEMORY_READ = 0x02, MEMORY_WRITE = 0x05, EXECUTE = 0x01 };	/* I/O */

#define EBPF 0xC0		/* program type */
#define PAGE 4096		/* ranges begin and end on multiples of it */
#define PIECE (128 * 1024)	/* moved by one command */

struct range {
	uint32_t nsid, length;
	uint64_t start, reserved[2];
};

static uint64_t send_command(int fd, unsigned long request, const char *name,
			     struct nvme_passthru_cmd64 *command)
{
	int status;

	command->timeout_ms = 60000;
	status = ioctl(fd, request, command);
	if (status) {
		if (status < 0)
			fprintf(stderr, "%s: %s\n", name, strerror(errno));
		else
			fprintf(stderr, "%s: status %xh\n", name, status & 0x7FF);
		exit(1);
	}
	return command->result;
}

static void move(int memory, uint32_t nsid, uint8_t opcode, uint64_t start, char *data, size_t size)
{
	for (size_t at = 0; at < size; at += PIECE) {
		uint32_t length = size - at < PIECE ? size - at : PIECE;
		struct nvme_passthru_cmd64 command = {
			.opcode = opcode, .nsid = nsid,
			.addr = (uintptr_t)(data + at), .data_len = length,
			.cdw10 = (uint32_t)(start + at), .cdw11 = (start + at) >> 32, .cdw12 = length,
		};

		send_command(memory, NVME_IOCTL_IO64_CMD, "memory", &command);
	}
}

/* A file's bytes and zeroes up to a multiple of `unit`, so many altogether. */
static char *contents(const char *path, size_t unit, size_t *size)
{
	FILE *file = fopen(path, "rb");
	char *data;
	long length;

	if (!file || fseek(file, 0, SEEK_END) || (length = ftell(file)) < 0) {
		perror(path);
		exit(1);
	}
	*size = ((size_t)length + unit - 1) / unit * unit;
	data = calloc(1, *size ? *size : unit);
	rewind(file);
	if (!data || fread(data, 1, length, file) != (size_t)length) {
		perror(path);
		exit(1);
	}
	fclose(file);
	return data;
}

/* The first program index that is empty, by log page 82h. */
static uint32_t free_index(int controller, uint32_t compute)
{
	static uint8_t page[64 + 64 * 64];
	struct nvme_passthru_cmd64 command = {
		.opcode = 0x02, .nsid = compute, .addr = (uintptr_t)page, .data_len = sizeof(page),
		.cdw10 = (sizeof(page) / 4 - 1) << 16 | 0x82, .cdw14 = 4u << 24,
	};
	uint32_t count;

	send_command(controller, NVME_IOCTL_ADMIN64_CMD, "program list", &command);
	memcpy(&count, page, sizeof(count));
	for (uint32_t index = 0; index < count && index < 64; index++)
		if (!(page[64 + 64 * index] & 3))
			return index;
	fputs("no program index is empty\n", stderr);
	exit(1);
}

int main(int argc, char **argv)
{
	size_t program_size, input_size, output_size;
	char *program, *input, *output;
	uint64_t parameters[2] = { 0, 0 }, result;
	uint32_t memory_nsid, compute_nsid, index, set;
	int controller, memory, compute, file;

	if (argc < 8 || argc > 10) {
		fprintf(stderr, "usage: %s CONTROLLER MEMORY COMPUTE PROGRAM INPUT OUTPUT LENGTH"
			" [CPARAM1 [CPARAM2]]\n", argv[0]);
		return 2;
	}
	controller = open(argv[1], O_RDWR);
	memory = open(argv[2], O_RDWR);
	compute = open(argv[3], O_RDWR);
	if (controller < 0 || memory < 0 || compute < 0) {
		perror("open");
		return 1;
	}
	memory_nsid = ioctl(memory, NVME_IOCTL_ID);
	compute_nsid = ioctl(compute, NVME_IOCTL_ID);
	program = contents(argv[4], 8, &program_size);
	input = contents(argv[5], PAGE, &input_size);
	output_size = (strtoull(argv[7], NULL, 0) + PAGE - 1) / PAGE * PAGE;
	output = calloc(1, output_size);
	for (int i = 8; i < argc; i++)
		parameters[i - 8] = strtoull(argv[i], NULL, 0);

	/* Load the program in pieces, and activate it. */
	index = free_index(controller, compute_nsid);
	for (size_t at = 0; at < program_size; at += PIECE) {
		uint32_t length = program_size - at < PIECE ? program_size - at : PIECE;
		struct nvme_passthru_cmd64 load = {
			.opcode = LOAD_PROGRAM, .nsid = compute_nsid,
			.addr = (uintptr_t)(program + at), .data_len = length,
			.cdw10 = EBPF << 16 | index, .cdw11 = program_size,
			.cdw14 = length, .cdw15 = at,
		};

		send_command(controller, NVME_IOCTL_ADMIN64_CMD, "load program", &load);
	}
	send_command(controller, NVME_IOCTL_ADMIN64_CMD, "activate", &(struct nvme_passthru_cmd64){
		.opcode = ACTIVATION, .nsid = compute_nsid, .cdw10 = 1 << 16 | index,
	});

	/* Two ranges of the memory namespace: the input, and behind it the output. */
	struct range ranges[2] = {
		{ .nsid = memory_nsid, .length = input_size, .start = 0 },
		{ .nsid = memory_nsid, .length = output_size, .start = input_size },
	};
	set = send_command(controller, NVME_IOCTL_ADMIN64_CMD, "create ranges",
			   &(struct nvme_passthru_cmd64){
		.opcode = RANGE_SETS, .nsid = compute_nsid, .addr = (uintptr_t)ranges,
		.data_len = sizeof(ranges), .cdw10 = 0, .cdw11 = 2,
	}) & 0xFFFF;

	move(memory, memory_nsid, MEMORY_WRITE, 0, input, input_size);
	result = send_command(compute, NVME_IOCTL_IO64_CMD, "execute", &(struct nvme_passthru_cmd64){
		.opcode = EXECUTE, .nsid = compute_nsid, .cdw2 = set << 16 | index,
		.cdw10 = (uint32_t)parameters[0], .cdw11 = parameters[0] >> 32,
		.cdw12 = (uint32_t)parameters[1], .cdw13 = parameters[1] >> 32,
	});
	printf("returned %llu\n", (unsigned long long)result);
	move(memory, memory_nsid, MEMORY_READ, input_size, output, output_size);

	file = open(argv[6], O_WRONLY | O_CREAT | O_TRUNC, 0666);
	output_size = strtoull(argv[7], NULL, 0);
	if (file < 0 || write(file, output, output_size) != (ssize_t)output_size || close(file)) {
		perror(argv[6]);
		return 1;
	}

	/* Leave the drive as it was. */
	send_command(controller, NVME_IOCTL_ADMIN64_CMD, "delete ranges",
		     &(struct nvme_passthru_cmd64){
		.opcode = RANGE_SETS, .nsid = compute_nsid, .cdw10 = set << 16 | 1,
	});
	send_command(controller, NVME_IOCTL_ADMIN64_CMD, "deactivate", &(struct nvme_passthru_cmd64){
		.opcode = ACTIVATION, .nsid = compute_nsid, .cdw10 = index,
	});
	send_command(controller, NVME_IOCTL_ADMIN64_CMD, "unload", &(struct nvme_passthru_cmd64){
		.opcode = LOAD_PROGRAM, .nsid = compute_nsid, .cdw10 = 1 << 24 | index,
	});
	return 0;
}
