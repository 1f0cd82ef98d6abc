/*
 * Keep 64 executions of a compute namespace in flight, by the standard's Execute Program and
 * Linux's io_uring passthrough. Needs nothing but this file and the kernel's headers.
 *
 *   queue /dev/ng0n2 /dev/ng0n3 COUNT [INDEX [CPARAM1]]
 *
 * /dev/ng0n2 is a memory namespace, /dev/ng0n3 a compute namespace. The program at INDEX (default:
 * 2, CRC-32C of the range) runs COUNT times on the first 4096 bytes of the memory namespace; all
 * runs have to return the same.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <linux/io_uring.h>
#include <linux/nvme_ioctl.h>

enum { EXECUTE = 0x01, DEPTH = 64, PAGE = 4096 };

struct range {
	uint32_t nsid, length;
	uint64_t start, reserved[2];
};

/* The rings that the process shares with the kernel. */
static struct {
	int fd;
	unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
	struct io_uring_sqe *sqes; /* of 128 bytes: each has two places */
	struct io_uring_cqe *cqes; /* of 32 bytes, likewise */
} ring;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void *mapped(size_t size, off_t offset)
{
	void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd,
			   offset);

	if (found == MAP_FAILED)
		fail("mmap");
	return found;
}

static void open_ring(void)
{
	struct io_uring_params params = { .flags = IORING_SETUP_SQE128 | IORING_SETUP_CQE32 };
	char *sq, *cq;

	ring.fd = syscall(SYS_io_uring_setup, DEPTH, &params);
	if (ring.fd < 0)
		fail("io_uring_setup");
	sq = mapped(params.sq_off.array + params.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
	cq = mapped(params.cq_off.cqes + params.cq_entries * 2 * sizeof(struct io_uring_cqe),
		    IORING_OFF_CQ_RING);
	ring.sqes = mapped(params.sq_entries * 2 * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
	ring.sq_tail = (unsigned *)(sq + params.sq_off.tail);
	ring.sq_mask = (unsigned *)(sq + params.sq_off.ring_mask);
	ring.sq_array = (unsigned *)(sq + params.sq_off.array);
	ring.cq_head = (unsigned *)(cq + params.cq_off.head);
	ring.cq_tail = (unsigned *)(cq + params.cq_off.tail);
	ring.cq_mask = (unsigned *)(cq + params.cq_off.ring_mask);
	ring.cqes = (struct io_uring_cqe *)(cq + params.cq_off.cqes);
}

static void submit(int fd, const struct nvme_uring_cmd *command)
{
	unsigned tail = *ring.sq_tail, place = tail & *ring.sq_mask;
	struct io_uring_sqe *sqe = ring.sqes + 2 * place;

	memset(sqe, 0, 2 * sizeof(*sqe));
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = fd;
	sqe->cmd_op = NVME_URING_CMD_IO;
	memcpy(sqe->cmd, command, sizeof(*command));
	ring.sq_array[place] = place;
	__atomic_store_n(ring.sq_tail, tail + 1, __ATOMIC_RELEASE);
}

int main(int argc, char **argv)
{
	unsigned long count, submitted = 0, ended = 0;
	uint64_t expected = 0;
	struct timespec began, now;
	struct range range = { .length = PAGE };
	struct nvme_uring_cmd command = { .opcode = EXECUTE, .timeout_ms = 60000 };
	double seconds;
	int memory, compute;

	if (argc < 4 || argc > 6) {
		fprintf(stderr, "usage: %s MEMORY COMPUTE COUNT [INDEX [CPARAM1]]\n", argv[0]);
		return 2;
	}
	memory = open(argv[1], O_RDWR);
	compute = open(argv[2], O_RDWR);
	if (memory < 0 || compute < 0)
		fail("open");
	count = strtoul(argv[3], NULL, 0);
	range.nsid = ioctl(memory, NVME_IOCTL_ID);
	command.nsid = ioctl(compute, NVME_IOCTL_ID);
	command.cdw2 = argc > 4 ? strtoul(argv[4], NULL, 0) : 2;
	command.cdw3 = 1; /* one range, in the command's data */
	command.cdw10 = argc > 5 ? strtoul(argv[5], NULL, 0) : 0;
	command.addr = (uintptr_t)&range;
	command.data_len = sizeof(range);
	open_ring();
	clock_gettime(CLOCK_MONOTONIC, &began);
	while (ended < count) {
		unsigned new = 0, head = *ring.cq_head;

		for (; submitted < count && submitted - ended < DEPTH; submitted++, new++)
			submit(compute, &command);
		if (syscall(SYS_io_uring_enter, ring.fd, new, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
			fail("io_uring_enter");
		for (; head != __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE); head++, ended++) {
			struct io_uring_cqe *cqe = ring.cqes + 2 * (head & *ring.cq_mask);

			if (cqe->res) {
				fprintf(stderr, "execution %lu ends with %d\n", ended, cqe->res);
				return 1;
			}
			if (ended && cqe->big_cqe[0] != expected) {
				fputs("two executions return different values\n", stderr);
				return 1;
			}
			expected = cqe->big_cqe[0];
		}
		__atomic_store_n(ring.cq_head, head, __ATOMIC_RELEASE);
	}
	clock_gettime(CLOCK_MONOTONIC, &now);
	seconds = now.tv_sec - began.tv_sec + (now.tv_nsec - began.tv_nsec) / 1e9;
	fprintf(stderr, "%.0f executions a second\n", count / seconds);
	printf("returned %llu\n", (unsigned long long)expected);
	return 0;
}
