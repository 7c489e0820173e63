/* A thread made by clone(2), which the C library does not know. No write of either thread is lost,
 * to objects made before it and after it. */
#include "../c/check.h"
#include <sched.h>

enum { WRITES = 3000000 };

static volatile int before, since, step;

static void await(int value)
{
	while (step != value)
		;
}

static void write_to(int counter)
{
	uint64_t one = 1;
	for (int i = 0; i < WRITES; i++)
		CHECK(write(counter, &one, sizeof one) == sizeof one);
}

static int writes(void *unused)
{
	(void)unused;
	step = 1;
	write_to(before);
	await(2);
	step = 3;
	write_to(since);
	step = 4;
	return 0;
}

static void check_count(int counter)
{
	uint64_t count;
	CHECK(read(counter, &count, sizeof count) == sizeof count);
	CHECK(count == 2 * WRITES);
}

int main(void)
{
	static char stack[1 << 16] __attribute__((aligned(16)));
	int how = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
	before = eventfd(0, EFD_NONBLOCK);
	CHECK(before >= 0 && clone(writes, stack + sizeof stack, how, NULL) > 0);
	await(1);
	write_to(before);
	since = eventfd(0, EFD_NONBLOCK);
	CHECK(since >= 0);
	step = 2;
	await(3);
	write_to(since);
	await(4);
	check_count(before);
	check_count(since);
	return 0;
}
