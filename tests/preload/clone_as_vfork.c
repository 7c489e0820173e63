/* A child made by clone(2) that its parent waits for shares the parent's memory, but has an fd
 * table of its own. Objects that it opens do not exist in the parent. */
#include "../c/check.h"
#include <sched.h>
#include <sys/wait.h>

static volatile int made;

static int makes(void *nothing)
{
	(void)nothing;
	made = eventfd(5, 0);
	return made >= 0 ? 7 : 8;
}

int main(void)
{
	static char stack[1 << 18] __attribute__((aligned(16)));
	uint64_t value = 1;
	int round, status, child, zero, before;
	alarm(200);
	for (round = 0; round < 2; round++) {
		before = eventfd(1, 0);
		CHECK(before >= 0);
		child = clone(makes, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
		CHECK(child > 0 && waitpid(child, &status, 0) == child);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
		zero = open("/dev/zero", O_RDONLY);
		CHECK(zero == made);
		CHECK(read(zero, &value, sizeof value) == sizeof value && value == 0);
		CHECK(read(before, &value, sizeof value) == sizeof value && value == 1);
	}
	return 0;
}
